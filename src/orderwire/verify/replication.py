"""The ten invariants of a replicated partition, over plain histories.  [S004:4.5]

A history is what happened at one partition, in order.  A trace of real brokers needs these kinds:

- `Requested` and `Acknowledged`, from the producers;
- `Delivered`, from the consumers, with the high watermark that came with the data;
- `Committed`, from a broker, at every advance of its high watermark, with the batches in between;
- `Held`, from a broker's files, with its in-sync membership: at least once at the end, and whenever
  somebody looks;
- `OnDisk`, from all brokers' files at one moment: journals, lanes and orphans too;
- `Elected`, `RoundEnd`, `TookLower`, `Republished` and `LogStart`, from the brokers' notes;
- `Settled`, once, when the faults have stopped and the partition has had its time;
- `Missing`, before all else, where something of this is not there.

A message is named by its producer; one that a producer without idempotence sends again has another
name each time, as nothing tells the copies apart.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeAlias

import msgspec


class Batch(msgspec.Struct, frozen=True, gc=False):
    """One batch as a replica holds it."""

    first: int
    last: int
    epoch: int
    digest: int
    """The checksum of what producers and brokers never change."""
    messages: tuple[str, ...] = ()
    """What the records are, in order; empty in a seal."""
    seal: bool = False
    """A control batch that stands where nothing is."""


class Requested(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A producer sends messages for the first time, or again under the same names."""

    session: str
    """A producer id, or a connection: whose order has to be kept."""
    messages: tuple[str, ...]
    acks: int


class Acknowledged(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A producer is told where its messages are."""

    messages: tuple[str, ...]
    acks: int
    base_offset: int


class Delivered(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A consumer moves from a position to another, with these messages."""

    consumer: str
    broker: int
    position: int
    next_position: int
    high_watermark: int
    """Of the broker that answered."""
    records: tuple[tuple[int, str], ...]


class Committed(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A replica's high watermark moves; what lies in between is committed."""

    broker: int
    life: int
    """Which start of the broker: a high watermark is noted lazily, so that it may be lower after
    a start."""
    start: int
    high_watermark: int
    batches: tuple[Batch, ...]


class Held(msgspec.Struct, frozen=True, tag=True, gc=False):
    """What a replica's main log holds, all of it."""

    broker: int
    in_sync: bool
    """Whether the in-sync set has it, as ZooKeeper says."""
    high_watermark: int | None
    """None when the broker is down."""
    batches: tuple[Batch, ...]


class OnDisk(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Which messages are on any replica's disk, wherever."""

    messages: frozenset[str]
    acks_one_lost: bool = False
    """Whether acks=1 promises nothing: a disk has lost what was not synced, orphans are dropped, or
    an active-standby original was deposed."""


class Elected(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A replica says that it is original."""

    epoch: int
    broker: int


class RoundEnd(msgspec.Struct, frozen=True, tag=True, gc=False):
    """syncStart S and syncEnd E, as offsets behind the last one, as an original wrote them."""

    epoch: int
    start: int
    end: int


class TookLower(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A replica wrote to its files for a request of an epoch below the one it knew."""

    broker: int
    epoch: int
    known: int


class Republished(msgspec.Struct, frozen=True, tag=True, gc=False):
    """An orphan has offsets from here on: behind what its producer sent later, as it must.

    Its owner hears of it late, perhaps when it is committed."""

    new_offset: int


class LogStart(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Retention, or DeleteRecords: nothing is promised below this offset any more."""

    offset: int


class Lost(msgspec.Struct, frozen=True, tag=True, gc=False):
    """An original has it written down that nobody in sync has what is committed from `start` on.

    The one way in which S may go back: power failures of all, where nobody waits for a disk, and an
    original that is put in the place of those that had it."""

    epoch: int
    broker: int
    start: int
    end: int
    """S as far as anybody knew."""
    held: tuple[Batch, ...] = ()
    """What in-sync replicas hold from there on."""
    unclean: bool = False
    """Somebody wanted it: who was in sync is gone for ever, and the original cannot know whether
    what it has from there on was ever committed."""


class WentBack(msgspec.Struct, frozen=True, tag=True, gc=False):
    """A replica's high watermark is lower than before, in the same life."""

    broker: int
    life: int
    high_watermark: int
    empty: bool = False
    """Whether it has begun anew."""


class Settled(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Faults stopped a while ago."""

    in_sync: tuple[int, ...]
    replicas: tuple[int, ...]
    acks_one_lost: bool = False
    """Whether what acks=1 acknowledged may be gone: a power failure, or `OrphanPolicy.DROP`."""


class Missing(msgspec.Struct, frozen=True, tag=True, gc=False):
    """Rows of the history are not there: what it lacks proves nothing, and nothing is proved by it.

    A contradiction among what is there stays one.
    """

    what: str
    rows: int
    """How many; 0: not known."""


Event: TypeAlias = (
    Requested
    | Acknowledged
    | Delivered
    | Committed
    | Held
    | OnDisk
    | Elected
    | RoundEnd
    | TookLower
    | Republished
    | LogStart
    | Lost
    | WentBack
    | Settled
    | Missing
)


class Breach(msgspec.Struct, frozen=True, gc=False):
    """An invariant that does not hold, and where."""

    invariant: str
    sentence: str


def _due(event: Delivered, committed: list[str | None]) -> list[tuple[int, str]]:
    """What a delivery has to bring, of what is committed by offset."""
    return [
        (offset, message)
        for offset in range(event.position, event.next_position)
        if (message := committed[offset]) is not None
    ]


class Judge:
    """Takes a history event by event and keeps every breach."""

    def __init__(self, *, breaches_max: int = 100) -> None:
        self.breaches: list[Breach] = []
        self.lacks = False
        """Whether parts of the history are missing: nothing holds for certain."""
        self._breaches_max = breaches_max
        self.truth: dict[int, Batch] = {}
        """Batch by its first offset: what was committed there first."""
        self.end = 0
        """One behind the last committed offset."""
        self._message_at: list[str | None] = []
        """By offset; None in a seal."""
        self._committed: dict[str, int] = {}
        self._acknowledged: dict[str, tuple[int, int]] = {}
        """Message → offset and acks."""
        self._sent: dict[str, int] = {}
        self._session: dict[str, tuple[str, int]] = {}
        self._newest: dict[str, int] = {}
        self._original: dict[int, int] = {}
        self._high: dict[tuple[int, int], int] = {}
        self._round = (-1, -1)
        """Epoch and syncStart."""
        self._log_start = 0
        self._lost_from: int | None = None
        """The least offset that was ever told to be lost."""
        self._republished: set[int] = set()
        self._late: dict[int, str] = {}
        """First offset of a batch that stands behind a later one of its session, and the sentence
        that says so, should it not turn out to be an orphan."""
        self._unaware: dict[int, list[str | None]] = {}
        """Broker that has not heard of a loss yet → what was committed before, by offset."""
        self._passed: list[Delivered] = []
        """Deliveries of what nobody had committed yet when they came."""

    def take(self, event: Event) -> None:
        """Look at the next event."""
        match event:
            case Requested():
                self._requested(event)
            case Acknowledged():
                self._told(event)
            case Delivered():
                self._delivered(event)
            case Committed():
                self._advanced(event)
            case Held():
                self._held(event)
            case OnDisk():
                self._on_disk(event)
            case Elected(epoch, broker):
                first = self._original.setdefault(epoch, broker)
                if first != broker:
                    self._say("I7", f"epoch {epoch} has the originals {first} and {broker}")
            case RoundEnd(epoch, start, end):
                if end < start:
                    self._say("I6", f"syncEnd {end} lies before syncStart {start}")
                if start < self._round[1]:
                    self._say("I6", f"syncStart went back from {self._round} to {epoch, start}")
                self._round = (epoch, start)
            case TookLower(broker, epoch, known):
                self._say("I7", f"{broker} knew epoch {known} and stored something of {epoch}")
            case Republished(new_offset):
                self._republished.add(new_offset)
                self._late.pop(new_offset, None)
            case LogStart(offset):
                self._log_start = max(self._log_start, offset)
            case Lost():
                self._lost(event)
            case WentBack(broker, life, high_watermark, empty):
                self._unaware.pop(broker, None)
                lost = self._lost_from
                # A life that has told of nothing yet takes nothing back.
                before = self._high.get((broker, life))
                if lost is None or (before is not None and before < lost and not empty):
                    self._say(
                        "I6",
                        f"the high watermark of {broker} went back to {high_watermark}, and lost"
                        f" is only what follows {self._lost_from}",
                    )
                self._high[broker, life] = high_watermark
            case Settled():
                self._settled(event)
            case Missing():
                self.lacks = True

    def _say(self, invariant: str, sentence: str, *, absent: bool = False) -> None:
        """Note a breach; `absent`: something is not there, which may be the history's fault."""
        if absent and self.lacks:
            return
        if len(self.breaches) < self._breaches_max:
            self.breaches.append(Breach(invariant, sentence))

    def _lost(self, event: Lost) -> None:
        """[I6] What nobody in sync has is not committed any more, nor acknowledged."""
        start = max(event.start, 0)
        for batch in event.held:
            if event.unclean:
                break
            if batch.first == start and self.truth.get(start) == batch:
                self._say("I6", f"{batch} is told to be lost, and an in-sync replica has it")
        self._lost_from = min(start, start if self._lost_from is None else self._lost_from)
        self._round = (event.epoch, min(self._round[1], start))
        self._log_start = min(self._log_start, start)
        if start >= self.end:
            return
        before = list(self._message_at)
        for (broker, _), high in self._high.items():
            if high > start:
                self._unaware.setdefault(broker, before)
        for first in [each for each in self.truth if each >= start]:
            del self.truth[first]
        gone = {name for name in self._message_at[start:] if name is not None}
        del self._message_at[start:]
        self.end = start
        for name in gone:
            del self._committed[name]
        for name, (offset, _) in list(self._acknowledged.items()):
            if offset >= start:
                del self._acknowledged[name]
        self._newest.clear()
        for name in self._committed:
            place = self._session.get(name)
            if place is not None:
                self._newest[place[0]] = max(self._newest.get(place[0], -1), place[1])

    def _requested(self, event: Requested) -> None:
        for message in event.messages:
            if message not in self._session:
                number = self._sent.get(event.session, 0)
                self._sent[event.session] = number + 1
                self._session[message] = (event.session, number)

    def _told(self, event: Acknowledged) -> None:
        """[I1] acks=all says that it is committed, there."""
        for place, message in enumerate(event.messages, event.base_offset):
            said = self._acknowledged.get(message)
            if said is not None and said[0] != place:
                self._say("I5", f"{message} was acknowledged at {said[0]} and at {place}")
            acks = -1 if said is not None and said[1] == -1 else event.acks
            self._acknowledged[message] = (place, acks)
            if event.acks == -1 and self._committed.get(message) != place:
                at = self._committed.get(message)
                said_of = f"{message} is acknowledged at {place}; it is committed at {at}"
                self._say("I1", said_of, absent=at is None)

    def _delivered(self, event: Delivered) -> None:
        """[I3] Each message below the new position, in order, and nothing else."""
        if event.next_position > event.high_watermark:
            self._say(
                "I3",
                f"{event.consumer} read to {event.next_position} at {event.broker}, whose high"
                f" watermark is {event.high_watermark}",
            )
        before = self._unaware.get(event.broker)
        if (
            before is not None
            and event.next_position <= len(before)
            and list(event.records) == _due(event, before)
        ):
            return  # as it might have been read a moment before the loss
        if event.next_position > self.end:
            self._passed.append(event)
            said = f"{event.consumer} passed {self.end}, which is not committed"
            self._say("I3", said, absent=True)
            return
        self._compare_delivery(event)

    def _compare_delivery(self, event: Delivered) -> None:
        due = _due(event, self._message_at)
        if list(event.records) != due:
            self._say(
                "I3",
                f"{event.consumer} went from {event.position} to {event.next_position} at"
                f" {event.broker} with {list(event.records)}; committed are {due}",
                absent=True,
            )

    def _advanced(self, event: Committed) -> None:
        """[I2, I6, I10]"""
        high = self._high.get((event.broker, event.life))
        if high is None:  # a new life begins with what ZooKeeper says
            self._unaware.pop(event.broker, None)
            high = 0
        if event.high_watermark < high:
            self._say(
                "I6",
                f"the high watermark of {event.broker} went back from {high} to"
                f" {event.high_watermark}",
            )
        self._high[event.broker, event.life] = event.high_watermark
        at = max(event.start, self._log_start)
        for batch in event.batches:
            if batch.last < at:
                continue
            if batch.first > at:
                self._say("I10", f"{event.broker} commits {batch.first} behind {at - 1}")
            at = batch.last + 1
            self._commit(event.broker, batch)
        if at < event.high_watermark:
            self._say(
                "I10", f"{event.broker} says {event.high_watermark}, but its log ends at {at}"
            )

    def _commit(self, broker: int, batch: Batch) -> None:
        known = self.truth.get(batch.first)
        if known is not None:
            if known != batch:
                self._say("I2", f"{broker} has {batch}, but committed is {known}")
            return
        if batch.first < self.end:
            self._say("I2", f"{broker} commits {batch} inside what is committed to {self.end}")
            return
        self._message_at += [None] * (batch.first - self.end)
        if not batch.seal and len(batch.messages) != batch.last - batch.first + 1:
            self._say("I10", f"{batch} has {len(batch.messages)} messages")
        self.truth[batch.first] = batch
        self.end = batch.last + 1
        if batch.seal:
            self._message_at += [None] * (self.end - batch.first)
            return
        for offset, message in enumerate(batch.messages, batch.first):
            self._message_at.append(message)
            self._commit_message(message, offset, batch.first)

    def _commit_message(self, message: str, offset: int, base: int) -> None:
        """[I5, I9]"""
        first = self._committed.setdefault(message, offset)
        if first != offset:
            self._say("I5", f"{message} is committed at {first} and at {offset}")
            return
        place = self._session.get(message)
        if place is None:
            said = f"{message} is committed at {offset}, and nobody sent it"
            self._say("I5", said, absent=True)
            return
        session, number = place
        newest = self._newest.get(session, -1)
        if number < newest:
            if base not in self._republished:
                said = f"{message} of {session} is committed at {offset}, behind a later one"
                self._late[base] = said
            return
        self._newest[session] = number

    def _held(self, event: Held) -> None:
        """[I1, I2, I10]"""
        end: int | None = None
        below: dict[int, Batch] = {}
        for batch in event.batches:
            # What lies below the log's start may be half gone.
            if end is not None and batch.first != end and batch.first > self._log_start:
                self._say("I10", f"{event.broker} has {batch.first} behind {end - 1}")
            end = batch.last + 1
            below[batch.first] = batch
        limit = self.end if event.in_sync else event.high_watermark or 0
        for first, batch in self.truth.items():
            if batch.last >= limit or batch.last < self._log_start:
                continue
            held = below.get(first)
            if held == batch:
                continue
            self._say("I2", f"{event.broker} holds {held}, but committed is {batch}")
            for message in batch.messages:
                if self._acknowledged.get(message, (0, 0))[1] == -1:
                    self._say("I1", f"{event.broker} has lost {message}, acknowledged by all")
        if event.high_watermark is not None and event.high_watermark > max(
            end or 0, self._log_start
        ):
            self._say(
                "I10", f"{event.broker} says {event.high_watermark}, but its log ends at {end}"
            )

    def _on_disk(self, event: OnDisk) -> None:
        """[I4]"""
        if event.acks_one_lost:
            return
        for message, (offset, acks) in self._acknowledged.items():
            gone = message not in event.messages and offset >= self._log_start
            if acks == 1 and gone and self._committed.get(message, -1) < 0:
                said = f"{message}, acknowledged at {offset}, is on no disk"
                self._say("I4", said, absent=True)

    def _settled(self, event: Settled) -> None:
        """[I4, I8, I9]"""
        for said in self._late.values():
            self._say("I9", said, absent=True)
        if event.in_sync != event.replicas:
            self._say("I8", f"in sync are {event.in_sync} of {event.replicas}")
        for message in self.uncommitted():
            offset, acks = self._acknowledged[message]
            if acks == -1 or not event.acks_one_lost:
                said = f"{message}, acknowledged at {offset} (acks {acks}), is not committed"
                self._say("I8", said, absent=True)

    def uncommitted(self) -> list[str]:
        """Messages that were acknowledged and are not committed.

        Not counted is what acks=1 acknowledged at an offset that is deleted by now.
        """
        return [
            message
            for message, (offset, acks) in self._acknowledged.items()
            if message not in self._committed and (acks == -1 or offset >= self._log_start)
        ]

    def acks_of(self, message: str) -> int:
        """With which acks it was acknowledged; 0: it was not."""
        return self._acknowledged.get(message, (0, 0))[1]

    @property
    def acknowledged(self) -> int:
        """How many messages were."""
        return len(self._acknowledged)

    def facts(self) -> tuple[object, ...]:
        """What, beside what is committed, decides later verdicts."""
        return (
            self._acknowledged,
            self._session,
            self._original,
            self._round,
            self._log_start,
            self._republished,
        )

    def forget_heights(self) -> None:
        """Do not compare high watermarks with earlier ones, as who tells them has no past."""
        self._high.clear()

    def committed_messages(self) -> dict[str, int]:
        """Message → offset."""
        return dict(self._committed)


def judge(events: Iterable[Event]) -> list[Breach]:
    """Every breach of a history."""
    judging = Judge()
    for event in events:
        judging.take(event)
    return judging.breaches


def by_invariant(breaches: Iterable[Breach]) -> dict[str, int]:
    """How often each invariant is broken."""
    counted: dict[str, int] = defaultdict(int)
    for breach in breaches:
        counted[breach.invariant] += 1
    return dict(sorted(counted.items()))
