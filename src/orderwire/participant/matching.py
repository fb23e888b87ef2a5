"""Who reads what: the destination sets of writes, learnt from control messages.

A member counts as a reader of a topic while its stream stands and it has said so.  So a writer
never addresses a member that has not learnt the topic's number, and no message comes before the
declaration of its topic.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, assert_never

from orderwire.kernel import (
    Destinations,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
)
from orderwire.ordering.wire import encode_varint
from orderwire.participant.control import (
    PROTOCOL_VERSION,
    TOPICS_MAX,
    Declare,
    Message,
    State,
    Want,
    Withdraw,
    decode,
    encode,
)
from orderwire.participant.qos import SEATED
from orderwire.participant.samples import Sample
from orderwire.participant.topics import Pattern

RETIRED_MAX = 256
"""Withdrawn topics of one member whose last messages are still taken."""


class Subscriber(Protocol):
    """What the matching must know of a reader."""

    @property
    def domain_key(self) -> str:
        """The ordering domain it reads in."""
        ...

    @property
    def pattern(self) -> Pattern:
        """Which topics it reads."""
        ...

    def wants(self, name: str, *, own: bool) -> bool:
        """Whether it reads this topic; `own` says that this participant writes it."""
        ...

    def matches_changed(self) -> None:
        """The writers that it matches are other ones now."""
        ...

    def put(self, samples: Sequence[Sample]) -> None:
        """Queue samples whose turn has come."""
        ...


class Outlet:
    """A topic that this participant writes to: its number, and who reads it."""

    def __init__(
        self,
        number: int,
        name: str,
        domain: str,
        *,
        me: ProcessId,
        held: bool = False,
        seated: frozenset[ProcessId] | None = None,
    ) -> None:
        self.number = number
        self.name = name
        self.domain = domain
        self.writers = 0
        """How many writers of this participant share it."""
        self.held = held
        """Whether readers of other members do not count yet: this participant keeps quiet."""
        self._me = me
        self._seated = seated
        """Whose readers count, where members need a seat."""
        self.destinations = Destinations(0)
        self.matched = 0
        """Readers at all members."""
        self.prefix = encode_varint(number << 1)
        """What a message to this topic begins with."""
        self.batch_prefix = encode_varint(number << 1 | 1)
        """The same when it holds several data."""
        self._readers: dict[ProcessId, int] = {}
        self._waiters: list[tuple[int, asyncio.Future[None]]] = []

    def set_readers(self, member: ProcessId, readers: int) -> None:
        """Note how many readers this member has."""
        if readers:
            self._readers[member] = readers
        else:
            self._readers.pop(member, None)
        self._count()

    def release(self) -> None:
        """Let the readers of all members count."""
        self.held = False
        self._count()

    def seat(self, members: frozenset[ProcessId]) -> None:
        """Count the readers of these members alone."""
        self._seated = members
        self._count()

    def _count(self) -> None:
        seated = self._seated
        counted = {
            m: n
            for m, n in self._readers.items()
            if (m == self._me or not self.held) and (seated is None or m in seated)
        }
        self.destinations = Destinations(sum(1 << member for member in counted))
        self.matched = sum(counted.values())
        for count, waiter in self._waiters:
            if self.matched >= count and not waiter.done():
                waiter.set_result(None)
        self._waiters = [entry for entry in self._waiters if not entry[1].done()]

    def fail(self, why: str) -> None:
        """Let nobody wait for readers any more."""
        for _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(LocalProtocolError(why))
        self._waiters.clear()

    async def wait(self, count: int) -> None:
        """Return once at least `count` readers match."""
        if self.matched < count:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append((count, waiter))
            await waiter


Routes = dict[ProcessId, dict[int, tuple[str, tuple[Subscriber, ...]]]]
"""Writer's member → topic number → topic name and the readers here."""


class Matching:
    """All outlets and readers of one participant, and what the other members declared."""

    def __init__(
        self,
        me: ProcessId,
        members: Sequence[str],
        group: str,
        send: Callable[[ProcessId, bytes], None],
    ) -> None:
        """`members` are the names by id; `group` must be the same at all of them."""
        self._me = me
        self._members = members
        self._group = group
        self._send = send
        self._connected: set[ProcessId] = set()
        self._outlets: dict[tuple[str, str], Outlet] = {}
        self._numbers: dict[int, Outlet] = {}
        self._next_number = 0
        self._held: set[str] = set()
        """Domains in which this participant keeps quiet."""
        self._seated: dict[str, frozenset[ProcessId]] = {}
        """Domain → members whose readers count, where members need a seat."""
        self._declared: dict[ProcessId, dict[int, Declare]] = {me: {}}
        self._wanted: dict[ProcessId, dict[int, int]] = {me: {}}
        """Readers here of each declared topic, as last told to its writer's member."""
        self._retired: dict[ProcessId, dict[int, str]] = {}
        """Withdrawn topics by number, with their domain: what was written before may still come."""
        self._readers: dict[Subscriber, int] = {}
        """Each with a number of its own."""
        self._readers_ever = 0
        self.on_offers: Callable[[], None] | None = None
        """Called when this participant writes or reads something else than before."""
        self.routes: dict[str, Routes] = {}
        """Domain → routes; only topics that are wanted here."""

    # Of this participant.

    def declare(self, name: str, domain: str) -> Outlet:
        """Return the outlet of this topic, a new one or a shared one.

        Raises LocalProtocolError when there are TOPICS_MAX already.
        """
        outlet = self._outlets.get((name, domain))
        if outlet is None:
            if len(self._numbers) >= TOPICS_MAX:
                raise LocalProtocolError(
                    f"cannot write to {name!r}: this participant writes to {TOPICS_MAX} topics"
                    " already; close a writer that is no longer needed"
                )
            # Numbers are not used again: an answer under way may still be about an earlier topic.
            number = self._next_number
            self._next_number += 1
            outlet = Outlet(
                number,
                name,
                domain,
                me=self._me,
                held=domain in self._held,
                seated=self._seated.get(domain),
            )
            self._outlets[name, domain] = outlet
            self._numbers[number] = outlet
            declared = Declare(number, name, domain)
            self._tell_all(declared)
            self._learn(self._me, declared)
            self._offers_changed()
        outlet.writers += 1
        return outlet

    def withdraw(self, outlet: Outlet) -> None:
        """A writer of this outlet was closed."""
        outlet.writers -= 1
        if outlet.writers == 0:
            del self._outlets[outlet.name, outlet.domain]
            del self._numbers[outlet.number]
            self._tell_all(Withdraw(outlet.number))
            self._forget(self._me, outlet.number)
            self._offers_changed()

    def offers(self) -> list[tuple[int, bool, str, str]]:
        """Return what is written and read here: key, whether it is read, name or pattern, domain.

        The key is the same as long as the thing is.
        """
        written = [
            (2 * number, False, outlet.name, outlet.domain)
            for number, outlet in self._numbers.items()
        ]
        read = [
            (2 * number + 1, True, reader.pattern.text, reader.domain_key)
            for reader, number in self._readers.items()
        ]
        return written + read

    def _offers_changed(self) -> None:
        if self.on_offers is not None:
            self.on_offers()

    def hold(self, domain: str) -> None:
        """Count no readers of other members in this domain, whose outlets are yet to come."""
        self._held.add(domain)

    def release(self, domain: str) -> None:
        """Count the readers of all members in this domain."""
        self._held.discard(domain)
        for outlet in self._numbers.values():
            if outlet.domain == domain:
                outlet.release()

    def seat(self, domain: str, members: frozenset[ProcessId]) -> None:
        """Count readers and writers of these members alone in this domain, from now on.

        What they want holds although their streams break: they get the data another way.
        """
        self._seated[domain] = members
        for outlet in self._numbers.values():
            if outlet.domain == domain:
                outlet.seat(members)
        self._tell_readers(domain)

    def add_reader(self, reader: Subscriber) -> None:
        """Match this reader from now on."""
        self._readers[reader] = self._readers_ever
        self._readers_ever += 1
        self._match_again(reader.domain_key)
        reader.matches_changed()
        self._offers_changed()

    def remove_reader(self, reader: Subscriber) -> None:
        """Match this reader no more."""
        del self._readers[reader]
        self._match_again(reader.domain_key)
        self._offers_changed()
        for member, numbers in self._retired.items():
            routes = self.routes.get(reader.domain_key, {}).get(member, {})
            for number in [n for n, domain in numbers.items() if domain == reader.domain_key]:
                name, readers = routes[number]
                left = tuple(each for each in readers if each is not reader)
                if left:
                    routes[number] = (name, left)
                else:
                    self._drop_retired(member, number)

    def matches_of(self, reader: Subscriber) -> list[tuple[ProcessId, str]]:
        """Return member and name of every topic that this reader reads, ascending."""
        return sorted(
            (member, declared.name)
            for member, declared in self._all_declared()
            if self._is_match(reader, member, declared)
            and member in self._seated.get(declared.domain, (member,))
        )

    def incompatible_with(self, reader: Subscriber) -> list[tuple[ProcessId, str, str]]:
        """Return member, name and domain of topics it would read if their order were the same."""
        matched = set(self.matches_of(reader))
        return sorted(
            (member, declared.name, declared.domain)
            for member, declared in self._all_declared()
            if declared.domain != reader.domain_key
            and reader.wants(declared.name, own=member == self._me)
            and (member, declared.name) not in matched
        )

    # Of the others.

    def connected(self, member: ProcessId) -> None:
        """The stream to this member stands: tell it everything."""
        self._connected.add(member)
        mine = tuple(self._declared[self._me].values())
        self._send(member, encode(State(PROTOCOL_VERSION, self._group, mine)))
        # Wants follow the member's own State, since they are about the topics in it.

    def disconnected(self, member: ProcessId) -> None:
        """Nothing is known of this member's readers until it is back, but of those with seats."""
        self._connected.discard(member)
        self._forget_readers(member, [*self._seated])

    def forget(self, member: ProcessId) -> None:
        """This member has left: it writes nothing any more, and reads nothing."""
        self._connected.discard(member)
        self._forget_readers(member)
        for number in list(self._declared.get(member, {})):
            self._retire(member, number)

    def _forget_readers(self, member: ProcessId, but: Sequence[str] = ()) -> None:
        for outlet in self._numbers.values():
            if outlet.domain not in but:
                outlet.set_readers(member, 0)

    def control(self, member: ProcessId, data: bytes | memoryview) -> None:
        """Take a control message.  Raises RemoteProtocolError."""
        message = decode(data)
        match message:
            case State():
                self._replace(member, message)
            case Declare():
                self._learn(member, message)
            case Withdraw():
                self._retire(member, message.number)
            case Want():
                outlet = self._numbers.get(message.number)
                if outlet is not None:  # else: withdrawn while the message was under way
                    outlet.set_readers(member, message.readers)
            case _:
                assert_never(message)

    def _replace(self, member: ProcessId, state: State) -> None:
        if state.members != self._group:
            raise RemoteProtocolError(
                f"{self._members[member]} counts other members than we do:"
                f" {state.members.split()} there, {self._group.split()} here."
                " Start all with the same members"
            )
        kept = {declared.number for declared in state.topics}
        for number in [n for n in self._declared.get(member, {}) if n not in kept]:
            self._retire(member, number)
        # It may remember what an earlier life of ours wanted of topics with seats: tell them all.
        self._wanted[member] = {d.number: -1 for d in state.topics if d.domain.startswith(SEATED)}
        for declared in state.topics:
            self._learn(member, declared)

    def _learn(self, member: ProcessId, declared: Declare) -> None:
        topics = self._declared.setdefault(member, {})
        self._drop_retired(member, declared.number)
        if topics.get(declared.number, declared) != declared:  # a new incarnation's
            self._forget(member, declared.number)
        if declared.number not in topics and len(topics) >= TOPICS_MAX:
            raise RemoteProtocolError(
                f"{self._members[member]} declares more than {TOPICS_MAX} topics"
            )
        topics[declared.number] = declared
        self._match(member, declared)
        self._tell_readers(declared.domain)

    def _forget(self, member: ProcessId, number: int) -> None:
        declared = self._declared.get(member, {}).pop(number, None)
        self._wanted.get(member, {}).pop(number, None)
        if declared is not None:
            self.routes.get(declared.domain, {}).get(member, {}).pop(number, None)
            self._tell_readers(declared.domain)

    def _retire(self, member: ProcessId, number: int) -> None:
        """A topic was withdrawn, which may be heard of before the last that was written to it."""
        declared = self._declared.get(member, {}).get(number)
        if declared is None:
            return
        routes = self.routes.get(declared.domain, {}).get(member, {})
        route = routes.get(number)
        self._forget(member, number)
        if route is not None:
            routes[number] = route
            retired = self._retired.setdefault(member, {})
            retired[number] = declared.domain
            if len(retired) > RETIRED_MAX:
                self._drop_retired(member, next(iter(retired)))

    def _drop_retired(self, member: ProcessId, number: int) -> None:
        domain = self._retired.get(member, {}).pop(number, None)
        if domain is not None:
            self.routes.get(domain, {}).get(member, {}).pop(number, None)

    # Matching.

    def _all_declared(self) -> list[tuple[ProcessId, Declare]]:
        return [
            (member, declared)
            for member, topics in self._declared.items()
            for declared in topics.values()
        ]

    def _is_match(self, reader: Subscriber, member: ProcessId, declared: Declare) -> bool:
        return declared.domain == reader.domain_key and reader.wants(
            declared.name, own=member == self._me
        )

    def _match_again(self, domain: str) -> None:
        for member, declared in self._all_declared():
            if declared.domain == domain:
                self._match(member, declared)

    def _match(self, member: ProcessId, declared: Declare) -> None:
        readers = tuple(
            reader for reader in self._readers if self._is_match(reader, member, declared)
        )
        routes = self.routes.setdefault(declared.domain, {}).setdefault(member, {})
        if readers:
            routes[declared.number] = (declared.name, readers)
        else:
            routes.pop(declared.number, None)
        wanted = self._wanted.setdefault(member, {})
        if wanted.get(declared.number, 0) == len(readers):
            return
        wanted[declared.number] = len(readers)
        if member == self._me:
            self._numbers[declared.number].set_readers(member, len(readers))
        elif member in self._connected:
            self._send(member, encode(Want(declared.number, len(readers))))

    def _tell_readers(self, domain: str) -> None:
        for reader in self._readers:
            if reader.domain_key == domain:
                reader.matches_changed()

    def _tell_all(self, message: Message) -> None:
        data = encode(message)
        for member in sorted(self._connected):
            self._send(member, data)
