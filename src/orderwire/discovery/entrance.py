"""How a participant comes by its id: the bootstrap server, seeds, or something outside.

An entrance is a part of `FdpNode`: it returns posts, indications, `Granted` ids, contacts to meet,
and `LostId` when the id has gone to another.
"""

from hashlib import sha256
from random import Random
from typing import Any, Protocol, TypeAlias

import msgspec

from orderwire.discovery.commands import Granted, IdWanted, Refused
from orderwire.discovery.effects import Address, Post
from orderwire.discovery.messages import (
    Contact,
    Full,
    Hello,
    IdReply,
    Members,
    Message,
    Release,
    Renew,
    RenewNo,
    RenewOk,
    RequestId,
    Taken,
    fitting,
)
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import ID_SPACE_MAX, LISTED_BYTES_MAX, DiscoverySettings
from orderwire.kernel import NS_PER_MS, Indicate, Instant, RemoteProtocolError, probe

REQUEST_BACKOFF_MAX = 8
"""Requests for an id come at most this many times slower."""
SEEDS_MAX = 16
ALONE_ROUNDS = 3
"""A participant that is no seed starts alone this many rounds after the last seed would."""
ATTEMPTS_MAX = 1_000
"""Ids tried without a server before giving up."""


class LostId(msgspec.Struct, frozen=True):
    """The id of this incarnation belongs to another."""

    inc: int


Said: TypeAlias = list[Post | Indicate[Any] | Granted | Contact | LostId]


class Entrance(Protocol):
    """Where ids come from."""

    @property
    def seeds(self) -> tuple[Address, ...]:
        """Addresses that anti-entropy tries now and then, whoever is there."""
        ...

    @property
    def met_seed(self) -> bool:
        """Whether a seed has answered."""
        ...

    def ask(self, lost_inc: int, now: Instant) -> Said:
        """Want an id; `lost_inc` is the incarnation whose id was lost, or 0."""
        ...

    def adopted(self, identity: int, inc: int, now: Instant) -> None:
        """Take note that the participant has this id now."""
        ...

    def release(self, now: Instant) -> Said:
        """Give the id back."""
        ...

    def receive(self, source: Address, message: Message, now: Instant, roster: Roster) -> Said:
        """Take a message of servers or seeds."""
        ...

    def unreachable(self, address: Address, now: Instant) -> Said:
        """Take note that nothing can be sent there."""
        ...

    def wake(self, now: Instant) -> Said:
        """Act on what is due."""
        ...

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        ...


class OutsideEntrance:
    """Ids come by the command `Granted`, e.g. from ZooKeeper."""

    seeds: tuple[Address, ...] = ()
    met_seed = False

    def ask(self, lost_inc: int, now: Instant) -> Said:
        """Tell the application that an id is wanted."""
        return [Indicate(IdWanted(lost_inc))]

    def adopted(self, identity: int, inc: int, now: Instant) -> None:
        """Nothing to do."""

    def release(self, now: Instant) -> Said:
        """Nothing to do: the application sees that the participant has gone."""
        return []

    def receive(self, source: Address, message: Message, now: Instant, roster: Roster) -> Said:
        """Refuse: there is no server and there are no seeds."""
        raise RemoteProtocolError(
            f"{type(message).__name__} from {source}, but ids come from outside here"
        )

    def unreachable(self, address: Address, now: Instant) -> Said:
        """Nothing to do."""
        return []

    def wake(self, now: Instant) -> Said:
        """Nothing is ever due."""
        return []

    def next_deadline(self) -> Instant | None:
        """Nothing is ever due."""
        return None


class ServerEntrance:
    """Ids are leased from a bootstrap server. [FDP/1 R1 R16]"""

    seeds: tuple[Address, ...] = ()
    met_seed = False

    def __init__(
        self,
        guid: str,
        address: Address,
        server: Address,
        settings: DiscoverySettings,
        *,
        wish: int | None = None,
    ) -> None:
        self._guid = guid
        self._address = address
        self._server = server
        self._settings = settings
        self._wish = wish
        self._lost_inc = 0
        self._asking = False
        self._asks = 0
        self._held: tuple[int, int] | None = None
        self._due: Instant | None = None

    def ask(self, lost_inc: int, now: Instant) -> Said:
        """Request an id until there is an answer."""
        self._held = None
        self._asking = True
        self._lost_inc = lost_inc
        self._asks = 0
        return self._request(now)

    def _request(self, now: Instant) -> Said:
        factor = min(1 << self._asks, REQUEST_BACKOFF_MAX)
        self._asks = min(self._asks + 1, REQUEST_BACKOFF_MAX)
        self._due = Instant(now + factor * self._settings.request_ns)
        request = RequestId(self._guid, self._address, self._lost_inc, self._wish)
        return [Post(self._server, request)]

    def adopted(self, identity: int, inc: int, now: Instant) -> None:
        """Renew from now on."""
        self._asking = False
        self._held = (identity, inc)
        self._schedule_renewal(now)

    def _schedule_renewal(self, now: Instant) -> None:
        self._due = None
        if self._settings.mechanisms.server_sync:
            self._due = Instant(now + self._settings.lease_ns // 3)

    def release(self, now: Instant) -> Said:
        """Free the id at once."""
        held, self._held = self._held, None
        self._asking = False
        self._due = None
        if held is None:
            return []
        return [Post(self._server, Release(held[0], self._guid, held[1]))]

    def receive(self, source: Address, message: Message, now: Instant, roster: Roster) -> Said:
        """Take an answer of the server; anything else is refused."""
        if source != self._server:
            raise RemoteProtocolError(
                f"{type(message).__name__} from {source}, which is not the server {self._server}"
            )
        if isinstance(message, IdReply):
            if not self._asking or message.guid != self._guid:
                return []
            id_space = message.id_space or ID_SPACE_MAX
            if message.id >= id_space:
                raise RemoteProtocolError(f"id {message.id} in an id space of {id_space}")
            return [Granted(message.id, message.inc, id_space, message.members)]
        if isinstance(message, Full):
            if not self._asking or message.guid != self._guid:
                return []
            wait_ns = max(message.retry_ms * NS_PER_MS, self._settings.request_ns // 10)
            self._due = Instant(now + min(wait_ns, self._settings.lease_ns))
            return [Indicate(Refused(message.retry_ms, message.recovering, message.limit))]
        if isinstance(message, RenewOk):
            if self._held != (message.id, message.inc):
                return []
            return list(message.members)
        if isinstance(message, RenewNo):
            return [LostId(message.inc)] if self._held == (message.id, message.inc) else []
        raise RemoteProtocolError(f"{type(message).__name__} is not for a participant")

    def unreachable(self, address: Address, now: Instant) -> Said:
        """Ask again soon when it was the server: it may be starting, too."""
        if address == self._server and self._asking and self._due is not None:
            soon = self._settings.request_ns // 10 * self._asks
            self._due = min(self._due, Instant(now + soon))
        return []

    def wake(self, now: Instant) -> Said:
        """Ask again, or renew."""
        if self._due is None or self._due > now:
            return []
        if self._asking:
            return self._request(now)
        assert self._held is not None
        self._schedule_renewal(now)
        return [Post(self._server, Renew(self._held[0], self._guid, self._held[1], self._address))]

    def next_deadline(self) -> Instant | None:
        """When the next request or renewal is due."""
        return self._due


def drawn_id(guid: str, attempt: int, id_space: int) -> int:
    """Return the id that a guid tries at this attempt. [spec 5]"""
    digest = sha256(f"{guid}/{attempt}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % id_space


class SeedEntrance:
    """Ids are drawn from the guid; seeds, plain addresses, say who is there. [spec 5]"""

    def __init__(
        self,
        guid: str,
        address: Address,
        seeds: tuple[Address, ...],
        settings: DiscoverySettings,
        chance: Random,
        *,
        started_ms: int,
        id_space: int = ID_SPACE_MAX,
        hello_ns: int = 100 * NS_PER_MS,
    ) -> None:
        """`started_ms` is the wall clock's time; incarnations grow with it."""
        if not 1 <= len(seeds) <= SEEDS_MAX:
            raise ValueError(f"{len(seeds)} seeds; expected 1 to {SEEDS_MAX}")
        self.seeds = seeds
        self.met_seed = False
        self._guid = guid
        self._address = address
        self._settings = settings
        self._id_space = id_space
        self._hello_ns = hello_ns
        self._inc = started_ms << 16 | chance.getrandbits(16)
        self._attempt = 0
        self._round = 0
        self._asking = False
        self._held: int | None = None
        self._due: Instant | None = None
        rank = seeds.index(address) + 1 if address in seeds else len(seeds) + ALONE_ROUNDS
        self._alone_after = rank

    @property
    def _id(self) -> int:
        return drawn_id(self._guid, self._attempt, self._id_space)

    def ask(self, lost_inc: int, now: Instant) -> Said:
        """Say hello to all seeds until one answers."""
        if lost_inc:
            self._attempt += 1
            self._inc = max(self._inc, lost_inc) + 1
        self._held = None
        self._asking = True
        self._round = 0
        return self._hello(now)

    def _hello(self, now: Instant) -> Said:
        others = [each for each in self.seeds if each != self._address]
        if self._round >= self._alone_after or not others:
            probe("fdp: starts alone")
            return self._grant(())
        self._round += 1
        self._due = Instant(now + self._hello_ns)
        return [Post(each, Hello(self._id, self._inc, self._address)) for each in others]

    def _grant(self, members: tuple[Contact, ...]) -> Said:
        return [Granted(self._id, self._inc, self._id_space, members)]

    def adopted(self, identity: int, inc: int, now: Instant) -> None:
        """Stop asking."""
        self._asking = False
        self._held = identity
        self._due = None

    def release(self, now: Instant) -> Said:
        """Nobody keeps a lease."""
        self._asking = False
        self._held = None
        self._due = None
        return []

    def receive(self, source: Address, message: Message, now: Instant, roster: Roster) -> Said:
        """Answer a newcomer, or take an answer."""
        if isinstance(message, Hello):
            return self._welcome(source, message, now, roster)
        if isinstance(message, Members):
            if (message.id, message.inc) != (self._id, self._inc):
                return []
            self.met_seed = True
            return self._grant(message.members) if self._asking else list(message.members)
        if isinstance(message, Taken):
            if not self._asking or (message.id, message.inc) != (self._id, self._inc):
                return []
            self._attempt += 1
            if self._attempt >= ATTEMPTS_MAX:
                self._attempt = 0
                self._due = Instant(now + self._settings.lease_ns)
                return [
                    Indicate(Refused(self._settings.lease_ns // NS_PER_MS, False, self._id_space))
                ]
            self._round = 0
            return self._hello(now)
        raise RemoteProtocolError(f"{type(message).__name__} needs a bootstrap server")

    def _welcome(self, source: Address, message: Hello, now: Instant, roster: Roster) -> Said:
        if roster.me is None:
            return []
        if message.id >= self._id_space:
            raise RemoteProtocolError(f"id {message.id} in an id space of {self._id_space}")
        if message.id == roster.me or roster.holds_other(message.id, message.addr):
            return [Post(source, Taken(message.id, message.inc))]
        members = (Contact(roster.me, self._address, roster.inc), *roster.all_contacts())
        members = fitting([each for each in members if each.addr != message.addr], LISTED_BYTES_MAX)
        roster.learn_contact(Contact(message.id, message.addr, message.inc), now)
        return [Post(source, Members(message.id, message.inc, members))]

    def unreachable(self, address: Address, now: Instant) -> Said:
        """Wait for the next round."""
        return []

    def wake(self, now: Instant) -> Said:
        """Begin the next round."""
        if self._due is None or self._due > now:
            return []
        self._due = None
        return self._hello(now) if self._asking else []

    def next_deadline(self) -> Instant | None:
        """When the next round is due."""
        return self._due
