"""The frame of a participant: commands, its id, its heartbeat, and what the application is told.

How MAPs travel, and what else keeps views right, is for those who fill it: `FdpNode`, `MeshNode`.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from random import Random

from orderwire.discovery.commands import (
    Change,
    Command,
    End,
    Ended,
    Gone,
    Granted,
    Joined,
    MapForm,
    Meet,
    Start,
    Unreachable,
    WholeMaps,
)
from orderwire.discovery.effects import Address, DiscoveryEffects
from orderwire.discovery.entrance import Entrance, LostId, Said
from orderwire.discovery.messages import (
    Addressed,
    Contact,
    Join,
    JoinAck,
    MapRecord,
    Maps,
    Message,
    NotMe,
    Row,
    Status,
    Update,
    held,
    nominal_bytes,
)
from orderwire.discovery.own import Own
from orderwire.discovery.roster import Roster
from orderwire.discovery.settings import (
    DELTAS_MAX,
    EARLY_BYTES_MAX,
    EARLY_MESSAGES_MAX,
    MAP_BYTES_MAX,
    MEMBERS_MAX,
    DiscoverySettings,
)
from orderwire.discovery.timers import Timers, soonest
from orderwire.kernel import Indicate, Instant, LocalProtocolError, RemoteProtocolError, probe

HEARTBEAT = "heartbeat"
CHECK = "check"
LEAVE = "leave"


class Node(ABC):
    """One participant: its own MAP and its view of the others."""

    def __init__(
        self,
        address: Address,
        entrance: Entrance,
        settings: DiscoverySettings,
        chance: Random,
        form: MapForm | None = None,
    ) -> None:
        self.settings = settings
        self._mechanisms = settings.mechanisms
        self._entrance = entrance
        self._chance = chance
        self._timers = Timers()
        self.roster = Roster(settings, address)
        self.own = Own(address, self.roster, form if form is not None else WholeMaps())
        self._early: list[tuple[Instant, Address, Addressed]] = []
        self._early_bytes = 0
        self._early_dropped = 0
        self.leaving = False
        self.gone = False

    # -- the core's contract ----------------------------------------------------------------

    def submit(self, command: Command, now: Instant) -> DiscoveryEffects:
        """Take a command.  Raises LocalProtocolError when it makes no sense now."""
        own = self.own
        if isinstance(command, Unreachable):
            effects = self._from_entrance(self._entrance.unreachable(command.address, now), now)
            if self.roster.me is not None:
                effects += self._unreachable(command.address, now)
        elif isinstance(command, Granted):
            effects = self._adopt(command, now)
        elif isinstance(command, Meet):
            effects = self._from_entrance([*command.members], now)
        elif isinstance(command, Start):
            if own.map.ver:
                raise LocalProtocolError("Start again: a participant starts once")
            _refuse_long(command.map)
            own.map = MapRecord(1, command.map)
            effects = self._from_entrance(self._entrance.ask(0, now), now)
        elif isinstance(command, Change):
            if self.leaving or not own.map.ver:
                raise LocalProtocolError("Change before Start or after End")
            _refuse_long(command.map)
            own.map = MapRecord(own.told.ver + 1, command.map)
            wait = command.collect or self.roster.me is None
            effects = [] if wait else self._update(now)
        else:
            assert isinstance(command, End), command
            if not own.map.ver or self.leaving:
                raise LocalProtocolError("End before Start, or twice")
            effects = self._leave(now)
        return self._settle(effects, now)

    def receive(self, source: Address, message: Message, now: Instant) -> DiscoveryEffects:
        """Take a message from the process that listens at `source`.

        Raises RemoteProtocolError when no correct process sends it.
        """
        if self.gone:
            return []
        effects: DiscoveryEffects = []
        if isinstance(message, Addressed):
            _check_lengths(message)
            if self.roster.me is None:
                self._keep_early(source, message, now)
            else:
                effects = self._addressed(source, message, now)
        elif isinstance(message, NotMe):
            if self.roster.me is not None and self.roster.address_of(message.asked) == source:
                effects = self._not_there(message.asked, now)
        else:
            said = self._entrance.receive(source, message, now, self.roster)
            effects = self._from_entrance(said, now)
        return self._settle(effects, now)

    def wake(self, now: Instant) -> DiscoveryEffects:
        """Act on every deadline at or before `now`."""
        effects: DiscoveryEffects = []
        for name in self._timers.pop_due(now):
            effects += self._due(name, now)
        due = self._entrance.next_deadline()
        if due is not None and due <= now:
            effects += self._from_entrance(self._entrance.wake(now), now)
        return self._settle(effects, now)

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        return None if self.gone else soonest(self._timers.next(), self._entrance.next_deadline())

    @property
    def id(self) -> int | None:
        """One's own id, while there is one."""
        return self.roster.me

    @property
    def dropped(self) -> dict[str, int]:
        """What was not kept because of a limit, by kind; anti-entropy repairs what it can."""
        roster = self.roster
        return {
            "early messages": self._early_dropped,
            "participants": roster.refused,
            "MAPs": roster.maps_refused,
        }

    # -- what is different from one protocol to another ----------------------------------------

    @abstractmethod
    def _joined(self, now: Instant) -> DiscoveryEffects:
        """There is an id: tell those who are known."""

    @abstractmethod
    def _id_lost(self) -> None:
        """There is none any more: forget what was about it."""

    @abstractmethod
    def _meet(self, contact: Contact, now: Instant) -> DiscoveryEffects:
        """The server or a seed named this participant."""

    @abstractmethod
    def _update(self, now: Instant) -> DiscoveryEffects:
        """Tell what has changed. [R12]"""

    @abstractmethod
    def _beat(self, now: Instant) -> DiscoveryEffects:
        """Tell that one is alive, or what has changed."""

    @abstractmethod
    def _say_goodbye(self, row: Row, seq: int, now: Instant) -> DiscoveryEffects:
        """Tell that one leaves. [R17]"""

    @property
    @abstractmethod
    def _is_dismissed(self) -> bool:
        """Whether those who were told goodbye have acknowledged."""

    @abstractmethod
    def _addressed(self, source: Address, message: Addressed, now: Instant) -> DiscoveryEffects:
        """Take another participant's message.  Raises RemoteProtocolError."""

    @abstractmethod
    def _not_there(self, identity: int, now: Instant) -> DiscoveryEffects:
        """Whoever was thought to have this id has another. [R5]"""

    @abstractmethod
    def _unreachable(self, address: Address, now: Instant) -> DiscoveryEffects:
        """Nothing can be sent there. [R14]"""

    def _due(self, name: Hashable, now: Instant) -> DiscoveryEffects:
        """Act on this timer."""
        if name == HEARTBEAT:
            return self._beat(now)
        if name == CHECK:
            self.roster.expire(now)
            self._timers.set(CHECK, Instant(now + self.settings.fail_ns // 4))
            return []
        assert name == LEAVE, name
        return self._go()

    # -- joining and leaving ------------------------------------------------------------------

    def _from_entrance(self, said: Said, now: Instant) -> DiscoveryEffects:
        effects: DiscoveryEffects = []
        for each in said:
            if isinstance(each, Granted):
                effects += self._adopt(each, now)
            elif isinstance(each, Contact):
                effects += self._meet(each, now)
            elif isinstance(each, LostId):
                self.roster.lost |= each.inc == self.roster.inc
            else:
                effects.append(each)
        return effects

    def _adopt(self, granted: Granted, now: Instant) -> DiscoveryEffects:
        """Take this id and tell all. [R2 R6]"""
        roster = self.roster
        if roster.me is not None or self.leaving:
            return []
        roster.adopt(granted.id, granted.inc, granted.id_space)
        self._entrance.adopted(granted.id, granted.inc, now)
        for contact in granted.members:
            roster.learn_contact(contact, now)
        self.own.tell_whole()
        self._restart_heartbeat(now)
        if self._mechanisms.detect:
            self._timers.set(CHECK, Instant(now + self.settings.fail_ns // 4))
        effects = [Indicate(Joined(granted.id, granted.inc)), *self._joined(now)]
        early, self._early, self._early_bytes = self._early, [], 0
        for came, source, message in early:
            try:
                effects += self._addressed(source, held(message, now - came), now)
            except RemoteProtocolError:  # Its sender's fault, and nobody's who joins.
                probe("fdp: early message refused")
        return effects

    def _keep_early(self, source: Address, message: Addressed, now: Instant) -> None:
        """Keep it until there is an id, unless there are too many. [R4]"""
        if not self._mechanisms.early:
            return
        probe("fdp: early message")
        size = nominal_bytes(message)
        if len(self._early) >= EARLY_MESSAGES_MAX or self._early_bytes + size > EARLY_BYTES_MAX:
            probe("fdp: early message dropped")
            self._early_dropped += 1
            return
        self._early_bytes += size
        self._early.append((now, source, message))

    def _restart_heartbeat(self, now: Instant) -> None:
        settings = self.settings
        if self._mechanisms.heartbeats:
            period = self._chance.uniform(settings.heartbeat_min_ns, settings.heartbeat_max_ns)
            self._timers.set(HEARTBEAT, Instant(now + int(period)))

    def _lose_id(self, now: Instant) -> DiscoveryEffects:
        """A newer incarnation has this id: take another. [R11.1]"""
        probe("fdp: id lost")
        lost = self.roster.inc
        self.roster.lose()
        for name in (HEARTBEAT, CHECK):
            self._timers.cancel(name)
        self._id_lost()
        if self.leaving:
            return self._go()
        return self._from_entrance(self._entrance.ask(lost, now), now)

    def _leave(self, now: Instant) -> DiscoveryEffects:
        """Say goodbye, and go when those told have acknowledged. [R17]"""
        self.leaving = True
        self._timers.cancel(HEARTBEAT)
        if self.roster.me is None:
            return self._from_entrance(self._entrance.release(now), now) + self._go()
        self.own.left = True
        row, seq = self.own.next_row(), self.own.next_seq()
        effects = self._say_goodbye(row, seq, now)
        effects += self._from_entrance(self._entrance.release(now), now)
        self._timers.set(LEAVE, Instant(now + self.settings.leave_ns))
        return effects

    def _go(self) -> DiscoveryEffects:
        if self.gone:
            return []
        self.gone = True
        self._timers.clear()
        return [Indicate(Gone())]

    def _settle(self, effects: DiscoveryEffects, now: Instant) -> DiscoveryEffects:
        """Act on what the input has brought about: a lost id, ends."""
        roster = self.roster
        while roster.lost and not self.gone:
            effects += self._lose_id(now)
        if roster.ended:
            for identity, inc, status in roster.ended:
                effects.append(Indicate(Ended(identity, inc, status is Status.LEFT)))
            roster.ended.clear()
        if self.leaving and self._is_dismissed:
            effects += self._go()
        return effects


def _refuse_long(map_bytes: bytes) -> None:
    if len(map_bytes) > MAP_BYTES_MAX:
        raise LocalProtocolError(f"a MAP of {len(map_bytes)} bytes; at most {MAP_BYTES_MAX}")


def _check_lengths(message: Addressed) -> None:
    """Refuse what could not be kept or passed on: what this sends must fit a message."""
    size = 0
    if isinstance(message, Join):
        size = message.map.size_bytes
        if len(message.have) > MEMBERS_MAX:
            raise RemoteProtocolError(
                f"a JOIN that lists {len(message.have)} MAPs; at most {MEMBERS_MAX}"
            )
    elif isinstance(message, Update):
        size = len(message.delta)
    elif isinstance(message, JoinAck):
        if message.maps:
            size = max([each.map.size_bytes for each in message.maps])
    elif isinstance(message, Maps):
        sizes = [each.map.size_bytes for each in message.maps]
        for chain in message.chains:
            sizes.append(sum(map(len, chain.deltas)))
            if len(chain.deltas) > DELTAS_MAX:
                raise RemoteProtocolError(
                    f"a chain of {len(chain.deltas)} changes; at most {DELTAS_MAX}"
                )
        size = max(sizes, default=0)
    if size > MAP_BYTES_MAX:
        raise RemoteProtocolError(
            f"a MAP of {size} bytes in a {type(message).__name__}; at most {MAP_BYTES_MAX}"
        )
