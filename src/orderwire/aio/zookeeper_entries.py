"""How a domain and its participants are written in ZooKeeper.  [S002]

Below `/orderwire/domains/DOMAIN/participants` every participant has one ephemeral znode whose name
is all there is to know, `ADDRESS,NONCE,ID,INC,NUMBER`:

- NUMBER is ZooKeeper's: it orders the joins, as the server's order of issue does. [FDP/1 P1]
- An incarnation is E · 2³² + NUMBER, where E is the second at which the domain began: ensembles
  that lose their data begin to count anew, and what counts from a later second is newer. [R1]
- In an id space of 2⁶⁴ the id is the incarnation with its bits reversed: never used twice, and not
  in the order of joining.  A smaller space has a second folder, `ids`, with an ephemeral znode for
  each id in use; a free one is drawn, and ZooKeeper lets only one participant make it.
- ID and INC are empty at first, since they follow from NUMBER.  A participant whose session has
  ended keeps id and incarnation, as nobody else can have got them, and enters itself again.
"""

from urllib.parse import quote

import msgspec

from orderwire.aio.addresses import split_address
from orderwire.discovery.effects import Address
from orderwire.discovery.messages import Contact
from orderwire.discovery.settings import ID_SPACE_MAX
from orderwire.kernel import LocalProtocolError

ROOT = "/orderwire/domains"
NUMBER_BITS = 32
NAME_CHARS_MAX = 400
_FIELDS = 5


class DomainData(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the participants' folder holds."""

    id_space: int
    """Ids are below it; whoever begins the domain says it for all."""


class Entry(msgspec.Struct, frozen=True):
    """One participant's znode, from its name."""

    address: Address
    nonce: str
    """Which process entered it, in how it names itself to ZooKeeper."""
    id: int | None
    inc: int | None
    number: int

    @classmethod
    def parse(cls, name: str) -> "Entry | None":
        """Read a name; None for one that no correct participant makes."""
        fields = name.split(",")
        if len(name) > NAME_CHARS_MAX or len(fields) != _FIELDS:
            return None
        address, nonce, identity, inc, number = fields
        try:
            split_address(address)
            entry = cls(
                address,
                nonce,
                int(identity, 16) if identity else None,
                int(inc, 16) if inc else None,
                int(number) % (1 << NUMBER_BITS),
            )
        except (LocalProtocolError, ValueError):
            return None
        largest = max(entry.id or 0, entry.inc or 0)
        if largest >= ID_SPACE_MAX or min(entry.id or 0, entry.inc or 0) < 0 or len(address) > 255:
            return None
        return entry

    def prefix(self) -> str:
        """Return the name without its number."""
        identity = "" if self.id is None else f"{self.id:x}"
        inc = "" if self.inc is None else f"{self.inc:x}"
        return f"{self.address},{self.nonce},{identity},{inc},"


class Folder(msgspec.Struct, frozen=True):
    """A domain in ZooKeeper."""

    path: str
    id_space: int
    epoch: int

    @property
    def participants(self) -> str:
        """Where the participants' znodes are."""
        return f"{self.path}/participants"

    @property
    def ids(self) -> str:
        """Where a small space's ids are."""
        return f"{self.path}/ids"

    def id_path(self, identity: int) -> str:
        """Where the znode is of an id in use."""
        return f"{self.ids}/{identity:x}"

    def taken(self, name: str) -> int:
        """Return which id a name below `ids` takes; -1 where it takes none."""
        try:
            identity = int(name, 16)
        except ValueError:
            return -1
        return identity if f"{identity:x}" == name and 0 <= identity < self.id_space else -1

    def contact(self, entry: Entry) -> Contact | None:
        """Return whom an entry names; None when it names nobody of this domain."""
        inc = entry.inc if entry.inc is not None else self.epoch << NUMBER_BITS | entry.number
        identity = entry.id
        if identity is None:
            if self.id_space != ID_SPACE_MAX:
                return None
            identity = spread(inc)
        return Contact(identity, entry.address, inc) if identity < self.id_space else None


def spread(inc: int) -> int:
    """Return the id of an incarnation: its 64 bits in reverse. [S002 spec 0.8]"""
    return int(f"{inc:064b}"[::-1], 2)


def domain_path(domain: str) -> str:
    """Return the znode of a domain, whatever characters its name has."""
    return f"{ROOT}/{quote(domain, safe='').replace('.', '%2E')}"


def is_before(number: int, other: int) -> bool:
    """Whether the first of two numbers was given first: they count on from 2³² at 0."""
    return 0 < (other - number) % (1 << NUMBER_BITS) < 1 << (NUMBER_BITS - 1)
