"""What the application and the runtime tell a participant, and what it tells the application."""

from typing import Protocol, TypeAlias

import msgspec

from orderwire.discovery.effects import Address
from orderwire.discovery.messages import Contact, MapRecord


class Start(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Join the domain with this MAP."""

    map: bytes


class Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This is my MAP from now on."""

    map: bytes
    collect: bool = False
    """Tell it with the next heartbeat, together with what changes until then. [R12]"""


class End(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Leave the domain."""


class Unreachable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The runtime could not connect to this address, or its connection broke. [R14]"""

    address: Address


class Granted(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An id, from whatever gives ids where it is not the bootstrap server or seeds."""

    id: int
    inc: int
    id_space: int
    members: tuple[Contact, ...]
    """All that were given an id before."""


class Meet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """These are there too, from whatever gave the id: SYNC with those that are unknown. [R16]"""

    members: tuple[Contact, ...]


Command: TypeAlias = Start | Change | End | Unreachable | Granted | Meet


class IdWanted(msgspec.Struct, frozen=True):
    """Please command `Granted`: there is no id yet, or the one of `lost_inc` is another's."""

    lost_inc: int


class Joined(msgspec.Struct, frozen=True):
    """The participant has an id and has told the others that it knows."""

    id: int
    inc: int


class Refused(msgspec.Struct, frozen=True):
    """The domain is full, or its server recovers; another attempt comes by itself."""

    retry_ms: int
    recovering: bool
    limit: int = 0
    """Of participants, if the domain is full."""


class Learnt(msgspec.Struct, frozen=True):
    """A participant's MAP: the first that was seen, or a newer one."""

    id: int
    inc: int
    ver: int
    addr: Address
    map: MapRecord
    hop: int
    """Hops of the broadcast that brought it; 0 when it was asked for."""


class Ended(msgspec.Struct, frozen=True):
    """That incarnation is no longer there."""

    id: int
    inc: int
    left: bool
    """It said goodbye; else there was no evidence of it for too long."""


class Gone(msgspec.Struct, frozen=True):
    """This participant has left; nothing more will come of it."""


class MapForm(Protocol):
    """What the core must know of MAPs, which are bytes to it."""

    def difference(self, old: bytes, new: bytes) -> bytes:
        """Return the change from one full MAP to another."""
        ...

    def shortened(self, record: MapRecord) -> MapRecord:
        """Return the same MAP without changes behind it."""
        ...


class WholeMaps:
    """A change is the whole new MAP."""

    def difference(self, old: bytes, new: bytes) -> bytes:
        """Return the new MAP."""
        return new

    def shortened(self, record: MapRecord) -> MapRecord:
        """Return the last change as the full MAP."""
        return MapRecord(record.ver, record.deltas[-1] if record.deltas else record.full)
