"""What the original of a partition with lanes does: collect, order, commit, keep the in-sync set.

A new original asks every in-sync member for its last cut and takes over the log of the latest: a
cut that some member is Done with may have been committed by the original before, and stays as it
is.  [R7]  It proposes that log again, as a cut of its own epoch without new batches; when all are
Done with it, the partition is whole.  From then on its log only grows in this epoch: what it
proposed is never replaced, however often members come and go.

It orders what it has in memory of every lane, so a member that lacks something gets it from the
original's main log.  [S004:4.3]
"""

from enum import Enum
from typing import TYPE_CHECKING

from orderwire.broker.flush import Flush
from orderwire.broker.replication.effects import (
    Committed,
    Effects,
    Elected,
    MemberJoined,
    MemberRemoved,
    Note,
    Recovered,
    RoundOpened,
    SetSync,
    Tell,
)
from orderwire.broker.replication.lane_messages import (
    CutRecord,
    LaneCollect,
    LaneCommit,
    LaneCut,
    LaneDone,
    LaneResend,
    LaneSlice,
    LaneState,
)
from orderwire.broker.replication.lane_order import Placed, SequenceJudge
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, Instant

if TYPE_CHECKING:
    from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes

_JOIN_LAG_ROUNDS = 8
"""A replica this close behind is waited for, so that it catches up under load."""
GRACE_DIVISOR = 10
"""A member whose connection broke has this part of `round_timeout_ns` to come back."""


class Phase(Enum):
    """How far a new original is."""

    COLLECTING = "collecting"
    COPYING = "copying"
    LOSING = "losing"
    """What it takes over lacks something that was committed: that is being written down."""
    ORDERING = "ordering"


class LaneOriginal:
    """One epoch of being original."""

    def __init__(self, replica: "ActiveActiveLanes", epoch: int, now: Instant) -> None:
        self._replica = replica
        self._store = replica.store
        self._me = replica.me
        self.epoch = epoch
        self.phase = Phase.COLLECTING
        self.recovered = False
        self.round = 0
        """The last that was proposed."""
        self.committed_round = 0
        self._complete = True
        """Whether every member is Done with it."""
        self._cut: LaneCut | None = None
        self._states: dict[int, LaneState] = {}
        self._source: BrokerId | None = None
        """Whose log is later than ours."""
        self.done: dict[int, int] = {}
        """Member → the last round it is Done with, in this epoch."""
        self._learners: set[BrokerId] = set()
        """Out of sync, but they have our log and take cuts."""
        self._joining: set[BrokerId] = set()
        """Learners that rounds wait for."""
        self._asked_for: tuple[BrokerId, ...] = ()
        """The in-sync set that ZooKeeper was asked for last."""
        self._since = now
        """When the phase or the round began."""
        self._next_round = now
        self._isr = replica.isr

    # Who counts.

    @property
    def members(self) -> set[BrokerId]:
        """Whom a commit waits for: who is in sync, or may be as soon as ZooKeeper says so."""
        members = set(self._replica.isr) | self._joining
        if self._replica.office.changing:
            members.update(self._asked_for)
        return members

    def _others(self) -> list[BrokerId]:
        return sorted((self.members | self._learners) - {self._me})

    def _tell_all(self, message: LaneCut | LaneCommit) -> Effects:
        links = self._replica.links
        return [Tell(each, message) for each in self._others() if each in links]

    # What happens.

    def begin(self, now: Instant) -> Effects:
        """Collect.  [R7]"""
        effects: Effects = [Note(Elected(self.epoch))]
        for member in self._replica.isr:
            if member != self._me and member in self._replica.links:
                effects.append(Tell(member, LaneCollect(self.epoch)))
        return effects + self.go_on(now)

    def connected(self, broker: BrokerId, now: Instant) -> Effects:
        """Tell it where we are."""
        if broker not in self.members:
            return []
        if self.phase is not Phase.ORDERING:
            return [Tell(broker, LaneCollect(self.epoch))]
        assert self._cut is not None
        return [
            Tell(broker, self._cut),
            Tell(broker, self._commit()),
            Tell(broker, LaneResend(self._store.copy(broker).end)),
        ]

    def disconnected(self, broker: BrokerId, now: Instant) -> Effects:
        """It has a little while to come back."""
        self._learners.discard(broker)
        if broker not in self._replica.isr:
            self._joining.discard(broker)
        if self.phase is not Phase.ORDERING:
            self._states.pop(broker, None)
        return self.go_on(now)

    def state(self, source: BrokerId, state: LaneState, now: Instant) -> Effects:
        """A member answers what it has."""
        if self.phase is Phase.ORDERING or source not in self._replica.isr:
            return []
        effects: Effects = []
        if state.whole:
            effects = self.lacks(source, state.end_offset, now)
        self._states[source] = state
        return effects + self.go_on(now)

    def lacks(self, source: BrokerId, end_offset: int, now: Instant) -> Effects:
        """A member whose log ends before what is committed has lost its disk.  [S004:9.10]"""
        if source not in self._replica.isr or end_offset >= self._replica.high_watermark:
            return []
        return self._remove({source}, now, "its log ends before what is committed")

    def is_done(self, source: BrokerId, message: LaneDone, now: Instant) -> Effects:
        """A replica has everything up to a round on its disk.  [R5]"""
        if message.round <= self.done.get(source, 0) and source in self._replica.isr:
            return []
        self.done[source] = message.round
        learns = source in self._learners and source not in self._replica.isr
        if learns and message.round + _JOIN_LAG_ROUNDS >= self.round:
            self._joining.add(source)
        return self.go_on(now)

    def fetched(self, source: BrokerId) -> None:
        """A replica has our log to its end."""
        if source not in self._replica.isr:
            self._learners.add(source)

    def viewed(self, now: Instant) -> Effects:
        """ZooKeeper may have another in-sync set."""
        view = self._replica.view
        assert view is not None
        effects: Effects = []
        before, self._isr = set(self._isr), view.isr
        for member in view.isr:
            self._joining.discard(member)
            self._learners.discard(member)
            if member not in before:
                effects.append(Note(MemberJoined(self.epoch, member)))
                if member in self._replica.links:
                    # It may have had our log before the last commit, and was not told of that.
                    effects.append(Tell(member, self._commit()))
                    effects.append(Tell(member, LaneResend(self._store.copy(member).end)))
        for member in sorted(before - set(view.isr)):
            self._states.pop(member, None)
            self._learners.discard(member)
            self.done.pop(member, None)
        return effects + self.go_on(now)

    def start_moved(self) -> Effects:
        """Our log begins later; before the first commit of this epoch the commit will tell."""
        return self._tell_all(self._commit()) if self.committed_round else []

    def taken(self, now: Instant) -> Effects:
        """Our own lane has something more."""
        if not self._complete or now < self._next_round:
            return []
        return self.go_on(now)

    # What follows.

    def go_on(self, now: Instant) -> Effects:
        """Take every step that is possible now."""
        effects: Effects = []
        if self.phase is Phase.COLLECTING:
            effects += self._collected(now)
        if self.phase is Phase.COPYING:
            assert self._source is not None
            state = self._states.get(self._source)
            if state is None:  # gone: whoever is left decides
                self.phase = Phase.COLLECTING
                return effects + self._collected(now)
            if self._store.last.stamp >= (state.cut_epoch, state.cut_round):
                effects += self._take_over(now)
        elif self.phase is Phase.LOSING:
            effects += self._take_over(now)
        if self.phase is Phase.ORDERING:
            effects += self._finish_round(now)
            effects += self._admit(now)
            effects += self._maybe_round(now)
            effects += self._leave(now)
        return effects

    def _leave(self, now: Instant) -> Effects:
        """Give the epoch up, if that is wanted and everything that was proposed is committed."""
        office = self._replica.office
        if (
            not office.leaves(now)
            or office.changing
            or not (self._complete and self.recovered)
            or self.committed_round < self.round
        ):
            return []
        return self._replica.leave()

    def _collected(self, now: Instant) -> Effects:
        isr = self._replica.isr
        if any(member != self._me and member not in self._states for member in isr):
            return []
        best = self._store.last.stamp
        self._source = None
        for member in isr:
            state = self._states.get(member)
            if state is None or not state.whole:
                continue
            stamp = state.cut_epoch, state.cut_round
            if stamp > best:
                best, self._source = stamp, member
        if self._source is None:
            return self._take_over(now)
        self.phase = Phase.COPYING
        self._since = now
        return self._replica.fetch(self._source, now)

    def _take_over(self, now: Instant) -> Effects:
        """Our log is the latest: propose it as it is.  [R7]"""
        self._replica.member.stop_fetching(now)
        told, effects = self._tell_loss(now)
        if not told:
            self.phase = Phase.LOSING
            return effects
        self.phase = Phase.ORDERING
        effects += self._propose((), self._store.last.ends, now)
        self._replica.open_lane()
        for member in self._others():
            if member in self._replica.links:
                effects.append(Tell(member, LaneResend(self._store.copy(member).end)))
        return effects + self._replica.member.put_on_disk(now)

    def _known(self) -> int:
        """S + 1 as anybody has ever noted it."""
        view = self._replica.view
        assert view is not None
        known = [state.known for state in self._states.values()]
        return max(view.sync_start, self._replica.known_committed, *known)

    def _tell_loss(self, now: Instant) -> tuple[bool, Effects]:
        """Whether nothing that is committed is lost, or it is written down that S goes back.

        All of the in-sync set have answered.  Where nobody waits for a disk and none of them can
        know what it had, more may be gone than anybody noted.  [S004:4.8]
        """
        reach, known = self._store.last.end_offset, self._known()
        doubtful = (
            self.epoch > 0
            and self._store.doubtful
            and all(each.doubtful for each in self._states.values())
        )
        told = True
        effects: Effects = []
        unclean = self._replica.office.unclean
        if unclean:  # our log behind S may be what others never had
            reach = min(reach, self._replica.high_watermark)
        if known > reach or doubtful or unclean:
            told, effects = self._replica.office.tell_loss(reach, known, now)
        view = self._replica.view
        if view is not None and view.losses:
            self._store.log.producers.may_lack()
        return told, effects

    @property
    def _needs_all(self) -> bool:
        """Whether what is committed may be with those alone that have not answered: then nobody is
        removed.  Without `flush` a loss is the price that was chosen."""
        if self.phase not in (Phase.COLLECTING, Phase.COPYING):
            return False
        if self._replica.settings.flush is Flush.NONE:
            return False
        ends = [state.end_offset for state in self._states.values() if state.whole]
        return self._known() > max(self._store.last.end_offset, *ends, 0)

    def _finish_round(self, now: Instant) -> Effects:
        effects: Effects = []
        members = self.members
        if not self._complete and all(self.done.get(each, 0) >= self.round for each in members):
            self._complete = True
        replica = self._replica
        if (
            self._complete
            and self.committed_round < self.round
            and len(replica.isr) >= replica.settings.min_insync_replicas
        ):
            self.committed_round = self.round
            last = self._store.last
            effects += replica.committed(last.stamp, last.end_offset)
            effects += self._tell_all(self._commit())
            effects.append(Note(Committed(self.epoch, self.round, last.end_offset)))
            effects.append(SetSync(last.end_offset, last.end_offset, self.epoch, self.round))
        if self._complete and not self.recovered:
            self.recovered = True
            effects.append(Note(Recovered(self.epoch, self._store.log.end_offset)))
        return effects

    def _commit(self) -> LaneCommit:
        """What is committed, and where the log begins."""
        return LaneCommit(
            self.epoch,
            self.committed_round,
            self._replica.high_watermark,
            self._store.log.start_offset,
        )

    def _admit(self, now: Instant) -> Effects:
        """Add replicas to the in-sync set that have all that is committed.  [R8]"""
        if self._replica.office.changing or not self.recovered:
            return []
        view = self._replica.view
        assert view is not None
        ready = {
            each
            for each in self._joining
            if each in view.replicas and self.done.get(each, 0) >= self.committed_round
        }
        if not ready:
            return []
        return self._change(ready | set(view.isr), now)

    def _change(self, members: set[BrokerId], now: Instant) -> Effects:
        isr = tuple(sorted(members))
        effects = self._replica.office.change(isr, now)
        if effects:
            self._asked_for = isr
        return effects

    def _pending(self) -> bool:
        """Whether a lane has something that is not ordered."""
        store = self._store
        last = store.last
        if store.lane.pending_bytes(last.end_of(self._me)):
            return True
        return any(copy.end > last.end_of(each) for each, copy in store.copies.items())

    def _maybe_round(self, now: Instant) -> Effects:
        """Order what came meanwhile, as soon as anything did.  [R9]"""
        if not self._complete or not self.recovered or now < self._next_round:
            return []
        if not self._pending() or self._replica.office.leaving is not None:
            return []
        return self._order(now)

    def _order(self, now: Instant) -> Effects:
        replica = self._replica
        store = self._store
        effects = replica.push(now, everything=True)
        last = store.last
        ends = dict(last.ends)
        judge = SequenceJudge(store.log.producers, replica.producers.bound)
        offset = store.log.end_offset
        slices = []
        written = {}
        for broker in sorted({self._me, *store.copies, *ends}):
            start = ends.get(broker, 0)
            end = replica.orderable(broker)
            if end <= start:
                continue
            fresh = store.lane.fresh if broker == self._me else store.copy(broker).fresh
            placed = written[broker] = Placed(self.epoch, offset)
            placed.decide(store.parts(broker, start, end), broker, fresh, judge)
            store.write(placed, now // NS_PER_MS)
            ends[broker] = end
            slices.append(LaneSlice(broker, start, end, offset, tuple(placed.left_out)))
            offset = placed.next_offset
        effects += self._propose(tuple(slices), tuple(sorted(ends.items())), now)
        effects += replica.ordered(tuple(slices), written)
        return effects + replica.member.put_on_disk(now)

    def _propose(
        self, slices: tuple[LaneSlice, ...], ends: tuple[tuple[int, int], ...], now: Instant
    ) -> Effects:
        """Tell the members the cut that our main log is already."""
        store = self._store
        before: CutRecord = store.last
        self.round += 1
        self._complete = False
        self._since = now
        self._next_round = Instant(now + self._replica.settings.sync_min_gap_ns)
        start, end = before.end_offset, store.log.end_offset
        cut = LaneCut(
            epoch=self.epoch,
            round=self.round,
            previous=before.stamp,
            start_offset=start,
            end_offset=end,
            slices=slices,
            ends=ends,
            committed=self._replica.high_watermark,
            log_start=store.log.start_offset,
        )
        self._cut = cut
        store.close_cut(cut)
        effects: Effects = [Note(RoundOpened(self.epoch, self.round, 0, start, end))]
        return [*effects, *self._tell_all(cut)]

    @property
    def cut(self) -> LaneCut | None:
        """The last one proposed."""
        return self._cut

    # Time.

    def _late(self) -> list[BrokerId]:
        """Whom we wait for."""
        isr = self._replica.isr
        if self.phase is Phase.COLLECTING:
            return [each for each in isr if each != self._me and each not in self._states]
        if self.phase is Phase.LOSING:
            return []
        if self.phase is Phase.COPYING:
            return [] if self._source is None else [self._source]
        if self._complete:
            return []
        return sorted(
            each
            for each in self.members
            if each != self._me and self.done.get(each, 0) < self.round
        )

    def _limit(self, member: BrokerId) -> Instant:
        """Until when we wait for it."""
        timeout = self._replica.settings.round_timeout_ns
        if member in self._replica.gone:
            return self._since
        lost_at = self._replica.lost_at.get(member)
        if member in self._replica.links or lost_at is None:
            return Instant(self._since + timeout)
        return Instant(max(self._since, lost_at) + timeout // GRACE_DIVISOR)

    def wake(self, now: Instant) -> Effects:
        """Act on every deadline at or before `now`."""
        effects: Effects = []
        if not self._replica.office.changing:
            late = {each for each in self._late() if self._limit(each) <= now}
            if late:
                self._joining -= late
                late &= set(self._replica.isr)
                effects += self._remove(late, now, f"not done in {self.phase.value}")
        return effects + self.go_on(now)

    def _remove(self, late: set[BrokerId], now: Instant, reason: str) -> Effects:
        """Go on without members that take too long.  [R5]"""
        if not late or self._needs_all:
            return []
        effects = self._change(set(self._replica.isr) - late, now)
        if not effects:
            return []
        notes = [Note(MemberRemoved(self.epoch, each, reason)) for each in sorted(late)]
        return [*notes, *effects]

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        due: list[Instant] = []
        if not self._replica.office.changing and not self._needs_all:
            due = [self._limit(each) for each in self._late()]
        loss_due = self._replica.office.loss_due
        if self.phase is Phase.LOSING and loss_due is not None:
            due.append(loss_due)
        if (
            self.phase is Phase.ORDERING
            and self._complete
            and self.recovered
            and self._pending()
            and self._replica.office.leaving is None
        ):
            due.append(self._next_round)
        return min(due, default=None)
