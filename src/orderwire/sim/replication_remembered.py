"""Replicas that remember what they did: the same call in the same state is made once.

An exhaustive search calls a replica in the same state over and over, as the rest of the partition
differs.  Here a process is the number of a state, its files, replica and unfinished work pickled,
and a call is looked up; what has never been asked is computed by the real replica.  Two states that
read alike have one number.  For a process it is always noon: when it is woken, everything that it
remembers becomes older by as long as it would have slept, so that what it writes says nothing of
how long it has run.
"""

import pickle
import pickletools
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication import effects as asked
from orderwire.broker.replication.replica import SyncWork
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import Instant
from orderwire.sim.replication_broker import plain
from orderwire.sim.replication_cluster import NOON, MakeReplica
from orderwire.sim.replication_disk import main_log, messages_on
from orderwire.sim.replication_fingerprint import TIMES_NS, Reader, fingerprint
from orderwire.verify.replication import Batch


class Forgetful(Random):
    """The chance with which a disk keeps nothing but what was synced."""

    def random(self) -> float:
        """Always the least."""
        return 0.0


class Letter:
    """A message between replicas; two that read alike are one."""

    __slots__ = ("epoch", "message", "number")

    def __init__(self, number: int, message: Any) -> None:
        self.number = number
        self.message = message
        self.epoch = getattr(message, "epoch", None)


class Facts(msgspec.Struct, frozen=True, gc=False):
    """What the world asks a process in one state."""

    high_watermark: int
    takes_produce: bool
    serves_fetch: bool
    due: bool
    """Whether it wants to be woken."""
    view: bool | None
    """Whether it was told a view; None: not yet."""
    epoch: int
    start: int
    end: int
    held: tuple[Batch, ...]
    messages: frozenset[str]


class Move(msgspec.Struct, frozen=True, gc=False):
    """What came of a call."""

    state: int
    effects: tuple[Any, ...]
    writes: int
    result: bool
    """Whether it returned something."""


class _Life(msgspec.Struct):
    """A process as it is while it computes."""

    storage: FaultyStorage
    replica: Any = None
    work: SyncWork | None = None


class Book:
    """Every state, every call and every message that has come up."""

    def __init__(
        self, make_replica: MakeReplica, settings: ReplicationSettings, *, power: bool
    ) -> None:
        self._make = make_replica
        self._settings = settings
        self._power = power
        self._numbers: dict[bytes, int] = {}
        self._pickled: list[bytes] = []
        self.facts: list[Facts] = []
        self._moves: dict[tuple[Any, ...], Move] = {}
        self._letters: dict[bytes, Letter] = {}

    @property
    def calls(self) -> int:
        """How many different calls were made."""
        return len(self._moves)

    def __len__(self) -> int:
        return len(self._pickled)

    def begin(self, who: BrokerId) -> int:
        """A machine with an empty disk, and no process."""
        return self._number(who, _Life(FaultyStorage()))

    def move(self, who: BrokerId, state: int, name: str, *arguments: Any) -> Move:
        """Make a call, or remember what came of it."""
        key = (who, state, name, *arguments)
        found = self._moves.get(key)
        if found is None:
            found = self._moves[key] = self._compute(who, state, name, arguments)
        return found

    def _compute(self, who: BrokerId, state: int, name: str, arguments: tuple[Any, ...]) -> Move:
        life: _Life = pickle.loads(self._pickled[state])
        before = life.storage.disk.writes
        result: Any = None
        replica, now = life.replica, NOON
        match name:
            case "start":
                life.replica = self._make(who, life.storage, self._settings, now)
            case "stop":
                life.replica = life.work = None
                if arguments[0]:
                    life.storage = life.storage.after_crash(Forgetful())
                    before = 0
            case "wake":
                due = replica.next_deadline()
                if due is not None and due > now:
                    life = pickle.loads(_older(self._pickled[state], due - now))
                    before = life.storage.disk.writes
                result = life.replica.wake(now)
            case "begin_sync":
                life.work = replica.begin_sync(now)
                writes = life.storage.disk.writes - before
                return Move(self._number(who, life), (), writes, life.work is not None)
            case "run":
                assert life.work is not None
                life.work.run()
            case "end_sync":
                work, life.work = life.work, None
                result = replica.end_sync(work, now, None)
            case "receive":
                source, letter = arguments
                result = replica.receive(source, letter.message, now)
            case "produce":
                token, connection, records, acks = arguments
                lent = bytearray(records)
                result = replica.produce(token, connection, memoryview(lent), acks, now)
                result = tuple(self._effect(each) for each in result)
                lent[:] = bytes(len(lent))
            case "forget":
                replica.forget(*arguments)
            case _:
                result = getattr(replica, name)(*arguments, now)
        effects = tuple(self._effect(each) for each in result or ())
        writes = life.storage.disk.writes - before
        return Move(self._number(who, life), effects, writes, bool(result))

    def _effect(self, effect: Any) -> Any:
        if isinstance(effect, asked.Tell) and not isinstance(effect.message, Letter):
            message = plain(effect.message)
            read = fingerprint(Reader(NOON, power=False).read(message))
            letter = self._letters.get(read)
            if letter is None:
                letter = self._letters[read] = Letter(len(self._letters), message)
            return asked.Tell(effect.to, letter)  # type: ignore[arg-type]
        return effect

    def _number(self, who: BrokerId, life: _Life) -> int:
        reader = Reader(NOON, power=self._power)
        parts = (life.storage.disk, life.replica, life.work)
        read = fingerprint((who, *(reader.read(each) for each in parts)))
        number = self._numbers.get(read)
        if number is None:
            number = self._numbers[read] = len(self._pickled)
            self._pickled.append(pickle.dumps(life, 5))
            self.facts.append(self._facts(life))
        return number

    @staticmethod
    def _facts(life: _Life) -> Facts:
        replica, storage = life.replica, life.storage
        held, messages = main_log(storage), frozenset(messages_on(storage))
        if replica is None:
            return Facts(0, False, False, False, None, -1, 0, 0, held, messages)
        return Facts(
            replica.high_watermark,
            replica.takes_produce,
            replica.serves_fetch,
            replica.next_deadline() is not None,
            None if replica.view is None else True,
            replica.status().get("epoch", -1),
            replica.log.start_offset,
            replica.log.end_offset,
            held,
            messages,
        )

    def read_log(self, state: int, at: int, bytes_max: int, end: int) -> bytes:
        """What a fetch would return."""
        life: _Life = pickle.loads(self._pickled[state])
        part = life.replica.log.read(at, bytes_max, end)
        assert isinstance(part, bytes), part
        return part


def _older(pickled: bytes, ns: int) -> bytes:
    """The same objects, with every time so long before what it was."""
    patched = bytearray(pickled)
    for code, value, at in pickletools.genops(pickled):
        if code.name == "LONG1" and isinstance(value, int) and value in TIMES_NS:
            assert at is not None
            patched[at + 2 : at + 2 + pickled[at + 1]] = (value - ns).to_bytes(
                pickled[at + 1], "little", signed=True
            )
    return bytes(patched)


class Process:
    """One broker's disk, and the process on it, should it run: stands for a replica, its log, its
    work and its storage at once."""

    def __init__(self, book: Book, who: BrokerId, state: int) -> None:
        self.book = book
        self.who = who
        self.state = state
        self.writes = 0
        self.crash_at_write: int | None = None

    def _call(self, name: str, *arguments: Any) -> tuple[Any, ...]:
        move = self.book.move(self.who, self.state, name, *arguments)
        self.state = move.state
        self.writes += move.writes
        return move.effects

    @property
    def _facts(self) -> Facts:
        return self.book.facts[self.state]

    # As storage and disk.

    @property
    def disk(self) -> "Process":
        """Where writes are counted."""
        return self

    def start(self) -> None:
        """A process begins."""
        self._call("start")

    def stop(self, power: bool) -> None:
        """It ends, the power with it or not."""
        self._call("stop", power)

    # As a log.

    @property
    def log(self) -> "Process":
        """The main log."""
        return self

    @property
    def start_offset(self) -> int:
        """Of the log."""
        return self._facts.start

    @property
    def end_offset(self) -> int:
        """Of the log."""
        return self._facts.end

    def read(self, at: int, bytes_max: int, end: int) -> bytes:
        """Fetch batches."""
        return self.book.read_log(self.state, at, bytes_max, end)

    # As work.

    def run(self) -> None:
        """Write and sync."""
        self._call("run")

    # As a replica.

    @property
    def high_watermark(self) -> int:
        """S + 1."""
        return self._facts.high_watermark

    @property
    def view(self) -> bool | None:
        """None before it was told one."""
        return self._facts.view

    @property
    def takes_produce(self) -> bool:
        """Whether `produce` would take a batch now."""
        return self._facts.takes_produce

    @property
    def serves_fetch(self) -> bool:
        """Whether consumers may read here."""
        return self._facts.serves_fetch

    def next_deadline(self) -> Instant | None:
        """Whether there is one: when, only the process knows."""
        return Instant(0) if self._facts.due else None

    def status(self) -> dict[str, Any]:
        """The epoch."""
        return {"epoch": self._facts.epoch}

    def begin_sync(self, _: Instant) -> "Process | None":
        """Collect what is not durable yet."""
        move = self.book.move(self.who, self.state, "begin_sync")
        self.state = move.state
        self.writes += move.writes
        return self if move.result else None

    def end_sync(self, *_: Any) -> tuple[Any, ...]:
        """Take note of work that has run."""
        return self._call("end_sync")

    def receive(self, source: BrokerId, letter: Any, _: Instant) -> tuple[Any, ...]:
        """Take a message."""
        return self._call("receive", source, letter)

    def produce(
        self, token: int, connection: int, records: memoryview, acks: int, _: Instant
    ) -> tuple[Any, ...]:
        """Take a request."""
        return self._call("produce", token, connection, bytes(records), acks)

    def forget(self, token: int) -> None:
        """Nobody waits any more."""
        self._call("forget", token)

    def __getattr__(self, name: str) -> Callable[..., tuple[Any, ...]]:
        """Every other call has its time last, which the process knows better."""
        if name not in _CALLS:
            raise AttributeError(name)
        return lambda *arguments: self._call(name, *arguments[:-1])


_CALLS = frozenset(
    {"viewed", "session_lost", "connected", "disconnected", "wanted", "start_moved", "locked"}
    | {"sync_end_seen", "wake"}
)
