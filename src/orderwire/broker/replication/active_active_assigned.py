"""What an original has assigned and nobody has committed, and who waits for it.  [R1, R6, G16]"""

from collections.abc import Iterator

from orderwire.broker.log import Appended, PartitionLog, ProducerBatch, Refused
from orderwire.broker.log.producers import ProducerTable
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import BatchHeader

SessionKey = tuple[str, int]
"""A producer id, or a connection."""


class Assigned:
    """One request's batches."""

    __slots__ = (
        "answered",
        "at",
        "base",
        "doubt",
        "end",
        "here",
        "owner",
        "producer",
        "session",
        "size",
        "stored",
        "waiting",
    )

    def __init__(
        self, base: int, end: int, owner: BrokerId, session: SessionKey | None, size: int, at: int
    ) -> None:
        self.base = base
        self.end = end
        """One behind the last offset."""
        self.owner = owner
        """Who was told to store it.  [R1]"""
        self.session = session
        self.size = size
        self.at = at
        """When it was handed over."""
        self.producer: tuple[int, int, ProducerBatch] | None = None
        """Id, epoch and sequences of an idempotent producer's batch."""
        self.stored = False
        """Whether some member has it, as far as we know."""
        self.here = False
        """Whether we have a copy: then no round can miss it."""
        self.answered = False
        """Whether somebody was told that it is stored."""
        self.doubt = False
        """Whether only a round can tell what became of it."""
        self.waiting: list[tuple[int, int]] = []
        """Token and acks of each request for it: the first, and what was sent again."""


class AssignedProducers:
    """Idempotent producers, with what is assigned to them and in no log yet."""

    def __init__(self, log: PartitionLog) -> None:
        self._log = log
        self._ahead = ProducerTable()

    def knows(self, producer_id: int) -> bool:
        """Whether it has sent anything before."""
        return producer_id in self._ahead or producer_id in self._log.producers

    def check(
        self, producer_id: int, epoch: int, first: int, last: int
    ) -> Appended | Refused | None:
        """Judge a batch as `ProducerTable.check` does."""
        table = self._ahead if producer_id in self._ahead else self._log.producers
        return table.check(producer_id, epoch, first, last)

    def note(self, producer_id: int, epoch: int, batch: ProducerBatch, now_ms: int) -> None:
        """Remember a batch that was assigned."""
        if producer_id not in self._ahead:
            self._ahead.adopt(producer_id, self._log.producers)
        self._ahead.note(producer_id, epoch, batch, now_ms)

    def go_back(
        self, producer_id: int, stay: list[tuple[int, int, ProducerBatch]], now_ms: int
    ) -> None:
        """Forget what did not come about; these batches are still assigned."""
        self._ahead.forget(producer_id)
        for _, epoch, batch in stay:
            self.note(producer_id, epoch, batch, now_ms)

    def settle(self, producer_id: int) -> None:
        """Everything assigned to this producer is in the log."""
        self._ahead.forget(producer_id)


class AssignedList:
    """All of it, in order of offsets."""

    def __init__(self) -> None:
        self._by_base: dict[int, Assigned] = {}
        self._by_token: dict[int, Assigned] = {}
        self._open: dict[int, Assigned] = {}
        self._producers: dict[int, int] = {}
        self.pending_bytes = 0

    def __len__(self) -> int:
        return len(self._by_base)

    def __iter__(self) -> Iterator[Assigned]:
        return iter(self._by_base.values())

    @property
    def waiting(self) -> int:
        """How many requests wait."""
        return len(self._by_token)

    @property
    def first(self) -> Assigned | None:
        """The one with the lowest offset."""
        return next(iter(self._by_base.values()), None)

    @property
    def oldest_open(self) -> Assigned | None:
        """The first of which nobody has said that it is stored, or that it is not."""
        return next(iter(self._open.values()), None)

    def open_since(self, late: int) -> list[Assigned]:
        """Those that were handed over by then, and are open still."""
        found: list[Assigned] = []
        for entry in self._open.values():
            if entry.at > late:
                break
            found.append(entry)
        return found

    def below(self, end: int) -> list[Assigned]:
        """Those that begin before this offset."""
        found: list[Assigned] = []
        for entry in self._by_base.values():
            if entry.base >= end:
                break
            found.append(entry)
        return found

    def closed(self, entry: Assigned) -> None:
        """Somebody has said what became of it, or nobody can."""
        self._open.pop(entry.base, None)

    def busy(self, producer_id: int) -> bool:
        """Whether anything is assigned to this idempotent producer."""
        return producer_id in self._producers

    def add(self, entry: Assigned) -> None:
        """Offsets only grow."""
        self._by_base[entry.base] = entry
        if not entry.stored:
            self._open[entry.base] = entry
        if entry.producer is not None:
            producer_id = entry.producer[0]
            self._producers[producer_id] = self._producers.get(producer_id, 0) + 1
        self.pending_bytes += entry.size

    def at(self, base: int) -> Assigned | None:
        """The one that begins at this offset."""
        return self._by_base.get(base)

    def remove(self, entry: Assigned) -> None:
        """It is decided; nobody waits for it any more."""
        assert not entry.waiting
        del self._by_base[entry.base]
        self._open.pop(entry.base, None)
        if entry.producer is not None:
            producer_id = entry.producer[0]
            self._producers[producer_id] -= 1
            if not self._producers[producer_id]:
                del self._producers[producer_id]
        self.pending_bytes -= entry.size

    def wait(self, entry: Assigned, token: int, acks: int) -> None:
        """A request waits for it."""
        entry.waiting.append((token, acks))
        self._by_token[token] = entry

    def forget(self, token: int) -> None:
        """A request does not wait any more."""
        entry = self._by_token.pop(token, None)
        if entry is not None:
            entry.waiting = [each for each in entry.waiting if each[0] != token]

    def due(self, entry: Assigned, acks: tuple[int, ...]) -> list[int]:
        """Take the tokens of the requests that wait for it with these acks."""
        due = [token for token, each in entry.waiting if each in acks]
        if due:
            entry.waiting = [each for each in entry.waiting if each[1] not in acks]
            for token in due:
                del self._by_token[token]
        return due

    def of_producer(self, producer_id: int) -> list[tuple[int, int, ProducerBatch]]:
        """What is assigned to an idempotent producer, in order."""
        return [
            each.producer
            for each in self._by_base.values()
            if each.producer is not None and each.producer[0] == producer_id
        ]


def sequenced(header: BatchHeader, base: int) -> tuple[int, int, ProducerBatch] | None:
    """What to remember of an idempotent producer's batch that gets this offset."""
    if header.producer_id < 0 or header.base_sequence < 0:
        return None
    noted = ProducerBatch(
        header.base_sequence, header.last_sequence, base, base + header.last_offset_delta
    )
    return header.producer_id, header.producer_epoch, noted
