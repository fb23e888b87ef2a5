"""What every replica of a partition with lanes does with its main log: take cuts, copy, be Done."""

from typing import TYPE_CHECKING

from orderwire.broker.log import Refused
from orderwire.broker.replication.effects import Effects, Note, Sync, Tell, Truncated
from orderwire.broker.replication.lane_messages import (
    CutRecord,
    LaneCollect,
    LaneCommit,
    LaneCut,
    LaneDiverged,
    LaneDone,
    LaneFenced,
    LaneFetch,
    LaneLog,
    LaneState,
)
from orderwire.broker.replication.lane_order import Placed
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import walk
from orderwire.kernel import NS_PER_MS, Instant

if TYPE_CHECKING:
    from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes

_MISSING_DIVISOR = 8
"""A slice that its owner does not bring in this part of `round_timeout_ns` comes from the original.
"""


class LaneMember:
    """The part of a replica that follows."""

    def __init__(self, replica: "ActiveActiveLanes") -> None:
        self._replica = replica
        self._store = replica.store
        self._following: BrokerId | None = None
        """Who is original of the known epoch, as its messages say."""
        self._followed_epoch = -1
        self._cut: LaneCut | None = None
        """The newest one, while something of it is missing."""
        self._missing_until: Instant | None = None
        self._source: BrokerId | None = None
        """From whom the log is being copied."""
        self._asked_until: Instant | None = None
        self._asked_from = -1
        """Where our log ended when we last asked for what follows."""
        self._again_at: Instant | None = None
        """When to ask the original again, should we still be out of sync."""

    @property
    def _timeout(self) -> int:
        return self._replica.settings.round_timeout_ns

    def stop(self) -> None:
        """We are original now."""
        self._following = None
        self._cut = self._missing_until = None
        self._source = self._asked_until = None

    # Who is original.

    def viewed(self, now: Instant) -> Effects:
        """Somebody else is original; out of sync, ask it for the log.  [R8]"""
        replica = self._replica
        view = replica.view
        assert view is not None
        assert view.original is not None
        if replica.in_sync or self._source == view.original:
            return []
        return self.fetch(view.original, now)

    def connected(self, broker: BrokerId, now: Instant) -> Effects:
        """Out of sync, ask the original for the log.  [R8]"""
        view = self._replica.view
        if view is not None and view.original == broker and not self._replica.in_sync:
            return self.fetch(broker, now)
        return []

    def disconnected(self, broker: BrokerId) -> None:
        """It will not answer any more."""
        if self._source == broker:
            self._source = self._asked_until = None

    def _follow(self, source: BrokerId, epoch: int, now: Instant) -> Effects | None:
        """Whether its messages count; raises our epoch when it is new.  None: they do not."""
        replica = self._replica
        if epoch < replica.known_epoch:
            return None
        effects = replica.superseded(epoch)
        if replica.original is not None:
            return None  # two originals of one epoch: ZooKeeper sees to it that there are not
        if self._followed_epoch != epoch:
            self._followed_epoch = epoch
            self._begin_anew(now)
        self._following = source
        return effects

    def collect(self, source: BrokerId, message: LaneCollect, now: Instant) -> Effects:
        """Say what we have.  [R7]"""
        effects = self._follow(source, message.epoch, now)
        if effects is None:
            return [Tell(source, LaneFenced(self._replica.known_epoch))]
        last = self._store.last
        state = LaneState(
            message.epoch,
            last.epoch,
            last.round,
            last.end_offset,
            last.whole,
            self._replica.known_committed,
            self._store.doubtful,
        )
        return [*effects, Tell(source, state)]

    # Cuts.

    def cut(self, source: BrokerId, cut: LaneCut, now: Instant) -> Effects:
        """Write what is ordered now, as soon as everything of it is here.  [R5]"""
        effects = self._follow(source, cut.epoch, now)
        if effects is None:
            return [Tell(source, LaneFenced(self._replica.known_epoch))]
        stamp = self._store.last.stamp
        if stamp >= (cut.epoch, cut.round):
            self._replica.open_lane()
            return [*effects, *self._report(now), *self._hear(cut.committed, cut.log_start, now)]
        self._cut = cut
        self._missing_until = None
        last = self._store.last
        if stamp != cut.previous or last.end_offset != cut.start_offset or not last.whole:
            return effects + self._fetch_once(source, now)
        return effects + self.go_on(now)

    def go_on(self, now: Instant) -> Effects:
        """Try the newest cut again."""
        cut = self._cut
        store = self._store
        last = store.last
        if cut is None or last.stamp != cut.previous or self._source is not None:
            return []
        if last.end_offset != cut.start_offset or not last.whole:
            return []
        placed = None
        if store.last.end_offset == store.log.end_offset:
            placed = store.apply(cut, now // NS_PER_MS)
        assert self._following is not None
        if placed is None:
            if not self._replica.in_sync:
                return self._fetch_once(self._following, now)
            if self._missing_until is None:
                self._missing_until = Instant(now + self._timeout // _MISSING_DIVISOR)
            return []
        self._cut = self._missing_until = None
        replica = self._replica
        replica.open_lane()
        effects = replica.ordered(cut.slices, placed)
        effects += self.put_on_disk(now)
        effects += self._hear(cut.committed, cut.log_start, now)
        return effects + replica.push(now)

    def commit(self, source: BrokerId, message: LaneCommit, now: Instant) -> Effects:
        """Every member is Done with a round.  [R6]"""
        effects = self._follow(source, message.epoch, now)
        if effects is None:
            return [Tell(source, LaneFenced(self._replica.known_epoch))]
        effects += self._hear(message.committed, message.log_start, now)
        if self._store.last.stamp >= (message.epoch, message.round):
            effects += self._replica.committed((message.epoch, message.round), message.committed)
        return effects

    def _hear(self, committed: int, log_start: int, now: Instant) -> Effects:
        """What is committed, as far as we have it, and where the log begins."""
        store = self._store
        last = store.last
        if last.epoch != self._replica.known_epoch or not last.whole:
            return []
        effects = self._replica.advance(min(committed, last.end_offset))
        if log_start > store.log.start_offset:
            start = min(log_start, self._replica.high_watermark)
            done = store.log.delete_records(start, now // NS_PER_MS)
            assert not isinstance(done, Refused), done
        return effects

    # Done.

    def _report(self, now: Instant) -> Effects:
        """Tell the original that our last cut is on disk; or put it there first.  [R5]"""
        store = self._store
        last = store.last
        if not last.whole or last.epoch != self._replica.known_epoch:
            return []
        if not store.is_durable:
            return [Sync()]
        return self._tell_done(last.epoch, last.round, now)

    def put_on_disk(self, now: Instant) -> Effects:
        """Our log has another cut: be Done with it once it is durable.  [R5]"""
        return self.synced(now) if self._store.is_durable else [Sync()]

    def synced(self, now: Instant) -> Effects:
        """Something is durable now."""
        store = self._store
        effects: Effects = []
        epoch, round_number = store.durable
        if epoch == self._replica.known_epoch and store.last.whole:
            effects += self._tell_done(epoch, round_number, now)
        if not store.is_durable:
            effects.append(Sync())
        return effects

    def _tell_done(self, epoch: int, round_number: int, now: Instant) -> Effects:
        replica = self._replica
        self._store.kept.settle()
        self._store.doubtful = False
        message = LaneDone(epoch, round_number)
        if replica.original is not None:
            if replica.original.epoch != epoch:
                return []
            return replica.original.is_done(replica.me, message, now) + replica.push(now)
        if self._following is None or self._followed_epoch != epoch:
            return []
        # What came meanwhile goes first: so the next round has it.
        return [*replica.push(now, everything=True), Tell(self._following, message)]

    # Copying another's log.

    def fetch(self, source: BrokerId, now: Instant) -> Effects:
        """Ask for what follows our log."""
        if source not in self._replica.links:
            return []
        self._source = source
        self._missing_until = None
        self._asked_until = Instant(now + self._timeout // 2)
        self._again_at = Instant(now + self._timeout)
        log = self._store.log
        self._asked_from = log.end_offset
        message = LaneFetch(self._replica.known_epoch, log.end_offset, log.epochs.latest)
        return [Tell(source, message)]

    def stop_fetching(self, now: Instant) -> None:
        """We are original now: whoever was asked for its log answers too late.  [R7]"""
        self._begin_anew(now)

    def _begin_anew(self, now: Instant) -> None:
        """What was copied of a log without its last cut is nothing, and nobody's to be lost."""
        self._cut = self._missing_until = None
        self._source = self._asked_until = None
        store = self._store
        if store.log.end_offset > store.last.end_offset:
            store.back_to(store.last.end_offset, now // NS_PER_MS)

    def _fetch_once(self, source: BrokerId, now: Instant) -> Effects:
        return [] if self._source == source else self.fetch(source, now)

    def serve(self, source: BrokerId, message: LaneFetch, now: Instant) -> Effects:
        """Send another replica what follows its log, or say that its log is not ours.  [R8]"""
        replica = self._replica
        store = self._store
        log = store.log
        epoch = replica.known_epoch
        original = replica.original
        if message.epoch > epoch:
            return replica.superseded(message.epoch)
        effects: Effects = []
        if original is not None:
            if original.cut is None:
                return []  # not whole yet: it asks again
            effects = original.lacks(source, message.end_offset, now)
        elif self._following != source or self._followed_epoch != epoch:
            return []
        offset = message.end_offset
        read_at = max(offset, log.start_offset)
        if offset < log.start_offset:  # which may lie inside a batch
            first = next(log.batches(read_at, read_at + 1), None)
            offset = read_at if first is None else first.base_offset
        elif message.last_epoch < 0:  # it has no batch: its end may lie inside one
            first = next(log.batches(read_at, read_at + 1), None)
            offset = read_at if first is None else min(first.base_offset, offset)
        elif message.last_epoch >= 0:
            last_epoch, end = log.epoch_end(message.last_epoch)
            if last_epoch < 0:  # all of our log is later; before it begins nothing counts
                end = log.first_base
            if end < offset or (last_epoch >= 0 and last_epoch != message.last_epoch):
                return [*effects, Tell(source, LaneDiverged(epoch, last_epoch, end))]
        data = b""
        if read_at < log.end_offset:
            found = log.copy(read_at, replica.settings.message_bytes_max)
            assert not isinstance(found, Refused), found
            data = found
        record: CutRecord | None = None
        cut: LaneCut | None = None
        if self._reaches_end(offset, data):
            record = store.last
            if original is not None:
                cut = original.cut
                original.fetched(source)
        part = LaneLog(epoch, offset, data, record, cut, replica.high_watermark, log.start_offset)
        return [*effects, Tell(source, part)]

    def _reaches_end(self, offset: int, data: bytes) -> bool:
        for _, header in walk(data):
            offset = header.last_offset + 1
        return offset == self._store.log.end_offset

    def diverged(self, source: BrokerId, message: LaneDiverged, now: Instant) -> Effects:
        """Go back to where our log is still the source's.  [R8]"""
        if source != self._source or message.epoch != self._replica.known_epoch:
            return []
        store = self._store
        before = store.log.end_offset
        epoch, end = store.log.epoch_end(message.last_epoch)
        target = min(end, message.end_offset) if epoch >= 0 else message.end_offset
        committed = self._replica.high_watermark
        if target < committed:
            return []  # lost, as ZooKeeper will tell; then it is asked again
        record = store.back_to(target, now // NS_PER_MS)
        self._replica.waiting.reverted(record.end_of(self._replica.me))
        note = Note(Truncated(before, store.log.end_offset))
        return [note, *self.fetch(source, now)]

    def log_part(self, source: BrokerId, message: LaneLog, now: Instant) -> Effects:
        """Append what another replica sent; with its last cut we have all it has.  [R8]"""
        replica = self._replica
        if source != self._source or message.epoch < replica.known_epoch:
            return []
        effects: Effects = []
        if message.epoch > replica.known_epoch or replica.original is None:
            followed = self._follow(source, message.epoch, now)
            if followed is None:
                return []
            effects += followed
            self._source = source
        store = self._store
        now_ms = now // NS_PER_MS
        end = store.log.end_offset
        inside = message.offset < end == store.log.start_offset  # of a batch of the source
        if inside or end < message.offset <= message.log_start:
            store.reset(message.offset, now_ms)
        if message.offset != store.log.end_offset:
            if self._asked_until is not None and self._asked_from == store.log.end_offset:
                return effects  # asked for twice: what follows is on its way, once is enough
            return effects + self.fetch(source, now)
        if message.data:
            store.copy_in(message.data, now_ms)
        record = message.record
        if record is None:
            if not replica.in_sync:
                end = store.log.end_offset
                store.take_record(CutRecord(-1, 0, end, (), 0, whole=False))
            return effects + self.fetch(source, now)
        self._source = self._asked_until = None
        if record != store.last:
            effects += self._copied(record, message.cut, now)
        if source == replica.office.original and message.epoch == replica.known_epoch:
            store.kept.settle()
        if replica.original is not None:
            return effects + replica.original.go_on(now)
        replica.open_lane()
        effects += self._hear(message.committed, message.log_start, now)
        effects += self._report(now)
        return effects + self.go_on(now) + replica.push(now)

    def _copied(self, record: CutRecord, cut: LaneCut | None, now: Instant) -> Effects:
        """Our log is this cut now."""
        replica = self._replica
        store = self._store
        before = store.last.end_of(replica.me)
        store.take_record(record)
        effects: Effects = []
        if cut is not None and (cut.epoch, cut.round) == record.stamp:
            ends = [each.offset for each in cut.slices[1:]] + [cut.end_offset]
            for piece, end in zip(cut.slices, ends, strict=False):
                if piece.broker == replica.me and piece.start == before:
                    placed = Placed(cut.epoch, piece.offset)
                    placed.place(store.parts(piece.broker, piece.start, piece.end), piece)
                    # Of a lane that has lost something in a power failure nobody here knows where
                    # the rest stands; who sends it again is told.
                    if placed.next_offset == end:
                        effects += replica.waiting.ordered(piece, placed.places)
        return effects + replica.waiting.passed(record.end_of(replica.me))

    # Time.

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        effects: Effects = []
        if self._asked_until is not None and self._asked_until <= now:
            source, self._source, self._asked_until = self._source, None, None
            if source is not None:
                effects += self.fetch(source, now)
        again = self._asks_again()
        if again is not None and again <= now:
            original = self._replica.office.original
            self._again_at = None
            if original is not None:
                effects += self._fetch_once(original, now)
        if self._missing_until is not None and self._missing_until <= now:
            self._missing_until = None
            if self._following is not None:
                effects += self._fetch_once(self._following, now)
        return effects

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        due = (self._asked_until, self._missing_until, self._asks_again())
        return min((each for each in due if each is not None), default=None)

    def _asks_again(self) -> Instant | None:
        """The original may have given us up for late; it does not tell."""
        replica = self._replica
        if replica.in_sync or self._source is not None or replica.original is not None:
            return None
        return self._again_at
