"""A replica as simple as can be: one original for ever, which waits for every member.

It proves the world and the oracles, not a protocol: it survives no failure of its original.
"""

from typing import Any

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import (
    Appended,
    LogConfig,
    PartitionLog,
    Refused,
    Storage,
    StorageError,
    SyncJob,
)
from orderwire.broker.replication.effects import (
    Advance,
    Answer,
    ChangeIsr,
    Effects,
    Elect,
    Elected,
    Note,
    Sync,
    Tell,
)
from orderwire.broker.replication.settings import ReplicationSettings
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.broker.wire.batch import walk
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import Instant


class Copy(msgspec.Struct, frozen=True, array_like=True, tag="copy"):
    """Batches that begin at this offset."""

    epoch: int
    base: int
    records: bytes
    high_watermark: int


class Have(msgspec.Struct, frozen=True, array_like=True, tag="have"):
    """All below this offset is on my disk."""

    epoch: int
    end: int


class CrudeReplica:
    is_blank = False

    def __init__(
        self,
        me: BrokerId,
        storage: Storage,
        settings: ReplicationSettings,
        now: Instant,
    ) -> None:
        self.me = me
        self.settings = settings
        self.log = PartitionLog.open(storage, LogConfig(), now // 1_000_000)
        self.high_watermark = 0
        self.view: PartitionView | None = None
        self.ends: dict[int, int] = {}
        """What each connected peer has durably."""
        self.waiting: list[tuple[int, Appended, int]] = []

    @property
    def takes_produce(self) -> bool:
        return self.view is not None and self.view.original == self.me

    @property
    def serves_fetch(self) -> bool:
        return self.view is not None and self.me in self.view.isr

    @property
    def assigned_end(self) -> int:
        return self.log.end_offset

    def viewed(self, view: PartitionView, now: Instant) -> Effects:
        elected = view.original == self.me and not self.takes_produce
        self.view = view
        if view.original is None and self.me == 0:
            return [Elect(view.epoch)]
        effects: Effects = []
        if elected:
            effects.append(Note(Elected(view.epoch)))
            for peer, end in self.ends.items():
                effects += self._catch_up(BrokerId(peer), end)
        if view.original is not None and view.original != self.me:
            effects.append(Tell(view.original, Have(0, self.log.synced_offset)))
        return effects + self._move()

    def configure(self, settings: ReplicationSettings, now: Instant) -> Effects:
        self.settings = self.settings.changed_to(settings)
        return []

    def session_lost(self, now: Instant) -> Effects:
        return []

    def connected(self, broker: BrokerId, now: Instant) -> Effects:
        return [Tell(broker, Have(0, self.log.synced_offset))]

    def disconnected(self, broker: BrokerId, now: Instant) -> Effects:
        self.ends.pop(broker, None)
        if self.takes_produce and self.view is not None and broker in self.view.isr:
            isr = tuple(each for each in self.view.isr if each != broker)
            return [ChangeIsr(isr, self.view.version, self.view.epoch)]
        return []

    def ended(self, broker: BrokerId, now: Instant) -> Effects:
        return []

    def produce(
        self, token: int, connection: int, records: Buffer, acks: int, now: Instant
    ) -> Effects:
        if not self.takes_produce or self.view is None:
            return [Answer(token, Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not here"))]
        base = self.log.end_offset
        copy = bytearray(records)
        result = self.log.append(copy, self.view.epoch, now // 1_000_000)
        if isinstance(result, Refused):
            return [Answer(token, result)]
        if result.duplicate:
            self.waiting.append((token, result, acks))
            return self._answers()
        effects: Effects = [Sync()]
        for peer, end in self.ends.items():
            if end >= 0:
                message = Copy(self.view.epoch, base, bytes(copy), self.high_watermark)
                effects.append(Tell(BrokerId(peer), message))
        self.waiting.append((token, result, acks))
        return effects + self._answers()

    def _answers(self) -> Effects:
        due = [
            each
            for each in self.waiting
            if each[2] == 1 or each[1].last_offset < self.high_watermark
        ]
        self.waiting = [each for each in self.waiting if each not in due]
        return [Answer(token, result) for token, result, _ in due]

    def forget(self, token: int) -> None:
        self.waiting = [each for each in self.waiting if each[0] != token]

    def wanted(self, now: Instant) -> Effects:
        return []

    def start_moved(self, now: Instant) -> Effects:
        return []

    def hand_over(self, to: BrokerId, now: Instant) -> Effects:
        return []

    def locked(self, now: Instant) -> Effects:
        return []

    def sync_end_seen(self, end: int, epoch: int, round_number: int, now: Instant) -> Effects:
        return []

    def receive(self, source: BrokerId, message: Any, now: Instant) -> Effects:
        if isinstance(message, Have):
            first = source not in self.ends
            self.ends[source] = max(message.end, self.ends.get(source, 0))
            effects: Effects = []
            if first and self.takes_produce:
                effects += self._catch_up(source, message.end)
            return effects + self._move()
        assert isinstance(message, Copy)
        for at, header in walk(message.records):
            if header.base_offset == self.log.end_offset:
                records = bytearray(message.records[at : at + header.size_bytes])
                self.log.append(records, message.epoch, now // 1_000_000)
        effects = self._advance(min(message.high_watermark, self.log.end_offset))
        if self.log.synced_offset == self.log.end_offset:
            return [*effects, Tell(source, Have(message.epoch, self.log.synced_offset))]
        return [*effects, Sync()]

    def _catch_up(self, peer: BrokerId, end: int) -> Effects:
        assert self.view is not None
        part = self.log.read(end, 1 << 20)
        assert not isinstance(part, Refused)
        data = bytes(part)  # type: ignore[arg-type]
        return [Tell(peer, Copy(self.view.epoch, end, data, self.high_watermark))] if data else []

    def _advance(self, high_watermark: int) -> Effects:
        if high_watermark <= self.high_watermark:
            return []
        self.high_watermark = high_watermark
        return [Advance(high_watermark), *self._answers()]

    def _move(self) -> Effects:
        view = self.view
        if view is None or not self.takes_produce:
            return []
        ends = [self.ends.get(each, 0) for each in view.isr if each != self.me]
        effects = self._advance(min([self.log.synced_offset, *ends]))
        for peer, end in self.ends.items():
            if peer not in view.isr and end >= self.high_watermark:
                isr = tuple(sorted({*view.isr, BrokerId(peer)}))
                effects.append(ChangeIsr(isr, view.version, view.epoch))
                break
        if effects and isinstance(effects[0], Advance):
            for peer in self.ends:
                copy = Copy(view.epoch, self.log.end_offset, b"", self.high_watermark)
                effects.append(Tell(BrokerId(peer), copy))
        return effects

    def begin_sync(self, now: Instant) -> SyncJob | None:
        return self.log.begin_sync()

    def end_sync(self, work: SyncJob, now: Instant, error: StorageError | None = None) -> Effects:
        self.log.end_sync(work, error)
        if self.takes_produce:
            return self._move()
        if self.view is None or self.view.original is None:
            return []
        return [Tell(self.view.original, Have(self.view.epoch, self.log.synced_offset))]

    def wake(self, now: Instant) -> Effects:
        return []

    def next_deadline(self) -> Instant | None:
        return None

    def status(self) -> dict[str, Any]:
        return {"epoch": self.view.epoch if self.view is not None else -1}

    def close(self) -> None:
        self.log.close()
