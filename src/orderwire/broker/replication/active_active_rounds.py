"""Drives the rounds of an active-active partition: opens, counts, shrinks, commits, lets in.

Only an original has one, for its epoch.  [R3-R9, G1-G3, G6, G19]
"""

from orderwire.broker.flush import Flush
from orderwire.broker.replication.active_active_messages import (
    CaughtUp,
    Closed,
    Collect,
    Commit,
    CommittedLog,
    CopyFailed,
    Done,
    Held,
    InSync,
    Pulled,
    RejoinFetch,
    SyncClose,
    SyncCopy,
    SyncPull,
)
from orderwire.broker.replication.active_active_original import Original
from orderwire.broker.replication.active_active_round import Joining, Round
from orderwire.broker.replication.effects import (
    Advance,
    Committed,
    MemberJoined,
    MemberRemoved,
    Recovered,
    RoundOpened,
    Sealed,
    SetSync,
    Unlock,
)
from orderwire.broker.replication.settings import Coordination, HolePolicy
from orderwire.broker.replication.spans import Span, common, union
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, Instant

_RECOVERY_FACTOR = 10
"""A recovery may have to copy everything that waited for rounds."""


class Rounds:
    """All rounds of one epoch, one at a time."""

    def __init__(self, original: Original, now: Instant) -> None:
        self.original = original
        self.files = original.files
        self.member = original.member
        self.office = original.office
        self.links = original.links
        self.settings = original.settings
        self.out = original.out
        self.round: Round | None = None
        self.count = 0
        """Rounds that were committed."""
        self.sealed = 0
        """Offsets that nobody had."""
        self._number = 0
        self._opened_at: Instant = now
        self._ended_at: Instant = now
        self._retry_at: Instant | None = None
        self._joining: dict[BrokerId, Joining] = {}
        self._offers: dict[BrokerId, list[Held]] = {}
        self._asked: dict[BrokerId, RejoinFetch] = {}
        """Who wants in while a round runs."""
        self._reported: set[BrokerId] = set()
        """Outsiders that said what they have since this round opened."""
        self.recovered_end = 0
        """Offsets from here on are of our epoch."""
        self._fetching: BrokerId | None = None
        """The outsider that was asked for what is missing, until when."""
        self._fetch_until: Instant = now
        self._drain_end: int | None = None
        self.links.look_anew()
        self._open(recovery=True, now=now)

    @property
    def epoch(self) -> int:
        """The epoch whose rounds these are."""
        return self.original.epoch

    @property
    def sync_end(self) -> int:
        """E + 1 of the open round; S + 1 while there is none."""
        return self.files.committed if self.round is None else max(self.round.end, self.round.start)

    @property
    def settled(self) -> int:
        """Whoever wants in has to have everything below: with too few in sync, what was recovered
        is not committed (yet, or not known to be), and stays as it is.  [R7, R8]"""
        return max(self.files.committed, self.recovered_end)

    def lag(self) -> dict[BrokerId, int | None]:
        """How many committed offsets each replica lacks; None: nobody knows."""
        view = self.office.view
        assert view is not None
        lag: dict[BrokerId, int | None] = {}
        for each in view.replicas:
            one = self._joining.get(each)
            behind = None if one is None else max(self.files.committed - one.end, 0)
            lag[each] = 0 if each in view.isr else behind
        return lag

    # What is due.

    def step(self, now: Instant, *, woken: bool) -> None:
        """Do what can be done now.  Only who is `woken` finds others too late: in the middle of
        what has come, their answers may be what comes next.
        """
        if woken:
            self._remove_late(now)
        self._let_in(now)
        if self.round is None:
            if self._may_open(now) and self._drained():
                self._open(recovery=False, now=now)
        else:
            self._drive(self.round, now, woken=woken)

    def next_deadline(self, now: Instant) -> Instant | None:
        """When something is due."""
        times: list[Instant | None] = [self._retry_at]
        waits = self.office.changing or self._needs_all
        for each in self.office.isr:
            if each != self.office.me and not self.links.up(each) and not waits:
                times.append(self.links.silent_until(each, now, self.settings))
        if not self.office.changing:
            times.append(self.original.next_slow())
        running = self.round
        if running is not None and running.losing:
            times.append(self.office.loss_due)
        elif running is not None:
            if running.holes_since is None:
                times.append(running.deadline)
                if not running.planned:
                    times.append(running.repeat_at)
            elif self._fetching is not None:
                times.append(self._fetch_until)
            elif self.settings.hole_policy is HolePolicy.SEAL:
                times.append(Instant(running.holes_since + self.settings.hole_timeout_ns))
        elif self._has_work() and self._drain_end is None:
            gap = Instant(self._opened_at + self.settings.sync_min_gap_ns)
            period = Instant(self._ended_at + self.settings.sync_interval_ns)
            due = gap if self.original.round_wanted else max(gap, period)
            times.append(max([due, *(each.until for each in self._joining.values())]))
        return min((each for each in times if each is not None), default=None)

    def _has_work(self) -> bool:
        return (
            self.original.active
            and self.original.next_offset > self.files.committed
            and len(self.office.isr) >= self.settings.min_insync_replicas
            and not self.office.changing
        )

    def _may_open(self, now: Instant) -> bool:
        """[R9] Somebody wants a round, or it is time; but they begin some way apart."""
        if not self._has_work() or now < self._opened_at + self.settings.sync_min_gap_ns:
            return False
        if any(now < each.until for each in self._joining.values()):
            return False
        period = self._ended_at + self.settings.sync_interval_ns
        return self.original.round_wanted or now >= period or self._drain_end is not None

    # Opening.

    def _drained(self) -> bool:
        """Whether what the round will cover has arrived: a watch may overtake it.  [G1]

        Over one connection it cannot; and what is refused, its producer has to send again.
        """
        if self.settings.coordination is Coordination.RPC:
            return True
        if self._drain_end is None:
            self._drain_end = self._take_end()
        return self.original.answered_below(self._drain_end)

    def _take_end(self) -> int:
        """Where the next round ends.  Who wants one from now on wants another."""
        end = self.original.round_end()
        self.original.round_wanted = end < self.original.next_offset
        return end

    def closers(self) -> tuple[BrokerId, ...]:
        """Who has to promise, and to be done: the whole in-sync set.  [R6, R7]"""
        return self.office.isr

    def _open(self, *, recovery: bool, now: Instant) -> None:
        self._number += 1
        end = -1
        if recovery:
            self.original.round_wanted = False
        else:
            end = self._take_end() if self._drain_end is None else self._drain_end
            self._drain_end = None
        self.round = running = Round(
            self._number, self.files.committed, end, self.closers(), recovery=recovery
        )
        running.deadline = Instant(now + self.settings.round_timeout_ns)
        self._opened_at = now
        self._reported.clear()
        self._begin_attempt(running, now)

    def _begin_attempt(self, running: Round, now: Instant) -> None:
        """Ask for promises.  [R3, R7]"""
        running.asked(now, self.settings)
        running.holes_since = None
        self._retry_at = None
        end = max(running.end, running.start)
        self.out.note(RoundOpened(self.epoch, running.number, running.attempt, running.start, end))
        if (
            self.settings.coordination is Coordination.ZOOKEEPER
            and not running.recovery
            and running.attempt == 0
        ):
            self.out.add(SetSync(None, running.end, self.epoch, running.number))
            self._ask(running, self.office.me)
            return
        self._ask(running, *running.members)

    def _ask(self, running: Round, *members: BrokerId) -> None:
        number, attempt = running.number, running.attempt
        message: Collect | SyncClose = Collect(self.epoch, number, attempt)
        if not running.recovery:
            message = SyncClose(self.epoch, number, attempt, running.start, running.end)
        for each in members:
            self.out.tell(each, message)

    def _again(self, running: Round, now: Instant) -> None:
        """Another attempt, with who is in sync now.  [R5]"""
        running.again(self.closers())
        running.deadline = Instant(now + self.settings.round_timeout_ns)
        self._begin_attempt(running, now)

    # Progress.

    def _drive(self, running: Round, now: Instant, *, woken: bool) -> None:
        if self._retry_at is not None and now >= self._retry_at:
            self._again(running, now)
            return
        if running.losing or running.holes_since is not None:
            self._plan(running, now)
            return
        if woken and not running.planned and now >= running.repeat_at:
            running.asked_again(now)
            self._ask(running, *running.awaited)
        if woken and now >= running.deadline:
            running.deadline = Instant(now + self.settings.round_timeout_ns)
            self.original.late(running.end)
            self._remove(set(running.awaited) - {self.office.me}, "its round took too long", now)

    def closed(self, source: BrokerId, message: Closed, now: Instant) -> None:
        """A member has promised.  [R3]"""
        running = self._current(message.round, message.attempt)
        if running is None or running.planned or source not in running.members:
            return
        running.closed[source] = message.held
        running.committed[source] = message.committed
        running.known[source] = message.known
        if message.doubtful:
            running.doubtful.add(source)
        if message.alone:
            running.alone.add(source)
        if running.recovery:  # what somebody has seen committed is committed
            running.start = max(running.start, message.committed)
        if not running.awaited:
            self._plan(running, now)

    def _plan(self, running: Round, now: Instant) -> None:
        """Find the holes, and say who copies what.  [R4, R5]"""
        blank = running.blank()
        if self.office.me in blank:
            self.round = None
            self.original.give_up()
            return
        if blank:
            self._remove(blank, "it has lost what is committed", now)
            return  # another attempt follows, without these
        if running.recovery:
            running.sift()
            running.end = running.held_end()
            running.losing = not self._loss_is_told(running, now)
            if running.losing:
                return
        sealed = running.holes()
        if sealed and (self._fetch(running, sealed, now) or not self._may_seal(running, now)):
            return
        if running.holes_since is not None:
            running.holes_since = None
            running.deadline = Instant(now + self.settings.round_timeout_ns)
        running.planned = True
        if running.recovery:  # nobody knows how much it is
            running.deadline = Instant(now + _RECOVERY_FACTOR * self.settings.round_timeout_ns)
        plan = running.plan(self.epoch, sealed)
        for first, end, _ in plan.seals:
            self.sealed += end - first
            self.out.note(Sealed(self.epoch, first, end - 1))
        self.original.planned(running.start, running.end, sealed, now)
        for member in running.members:
            if member in running.alone:
                continue  # it has everything, so nothing is sealed, and writes already
            message = SyncCopy(
                self.epoch,
                running.number,
                running.attempt,
                running.end,
                plan.pulls[member],
                plan.seals,
                now // NS_PER_MS,
                running.stale.get(member, []),
            )
            self.out.tell(member, message)
        if not running.awaited:
            self._finish(running, now)

    def _known(self, running: Round) -> int:
        """S + 1 as anybody has ever noted it."""
        view = self.office.view
        assert view is not None
        return max(view.sync_start, running.start, *running.known.values(), 0)

    def _loss_is_told(self, running: Round, now: Instant) -> bool:
        """Whether nothing that is committed is lost, or it is written down that S goes back.

        All of the in-sync set have answered.  Where nobody waits for a disk and none of them can
        know what it had, more may be gone than anybody noted.  [S004:4.8]
        """
        unclean = self.office.unclean  # then what we have behind S others may never have had
        reach, known = running.start if unclean else running.reach(), self._known(running)
        doubtful = self.epoch > 0 and running.doubtful >= set(running.members)
        if known <= reach and not doubtful and not unclean:
            return True
        told, effects = self.office.tell_loss(reach, known, now)
        self.out.extend(effects)
        return told

    @property
    def _needs_all(self) -> bool:
        """Whether what is committed may be with those alone that have not answered: then nobody is
        removed.  Without `flush` a loss is the price that was chosen."""
        running = self.round
        return (
            running is not None
            and running.recovery
            and not running.planned
            and self.settings.flush is not Flush.NONE
            and self._known(running) > running.reach()
        )

    def _may_seal(self, running: Round, now: Instant) -> bool:
        """Whether nobody is waited for who may have what is missing.  [R4]"""
        view = self.office.view
        assert view is not None
        outside = set(view.replicas) - set(view.isr) - self._reported
        if not outside or (running.recovery and self.office.unclean):
            return True
        if running.holes_since is None:
            running.holes_since = now
        if self.settings.hole_policy is HolePolicy.WAIT:
            return False
        return now >= running.holes_since + self.settings.hole_timeout_ns

    def _fetch(self, running: Round, holes: list[Span], now: Instant) -> bool:
        """Get from an outsider what nobody in sync has; returns whether one is asked.  [R4]

        Only what our epoch assigned: there, offset and epoch name a batch.
        """
        if self._fetching is not None and now < self._fetch_until:
            return True
        self._fetching = None
        if running.recovery:
            return False
        ours = [hole for hole in holes if hole[0] >= self.recovered_end]
        for broker, held in list(self._offers.items()):
            spans = common(ours, union(run[:2] for run in held if run[2] == self.epoch))
            if spans and self.links.up(broker):
                if running.holes_since is None:
                    running.holes_since = now
                self._fetching = broker
                self._fetch_until = Instant(now + self.settings.round_timeout_ns)
                self._offers[broker] = []  # once is enough, unless it tells again
                message = SyncPull(self.epoch, running.number, running.attempt, spans)
                self.out.tell(broker, message)
                return True
        return False

    def fetched(self, source: BrokerId, message: Pulled, now: Instant) -> bool:
        """Take what an outsider had; returns whether we had asked for it."""
        running = self._current(message.round, message.attempt)
        if running is None or running.holes_since is None or source != self._fetching:
            return False
        self._fetching = None
        if message.records:
            self.files.keep(message.records)
            self._again(running, now)  # now we have it
        return True

    def copy_failed(self, source: BrokerId, message: CopyFailed, now: Instant) -> None:
        """Two members cannot reach each other, or one has lost what it had."""
        running = self._current(message.round, message.attempt)
        if running is None or not running.planned:
            return
        running.avoid.add((source, message.source))
        if self._retry_at is None:  # who has a way to it may have it by then
            self._retry_at = Instant(now + self.settings.sync_min_gap_ns)

    def done(self, source: BrokerId, message: Done, now: Instant) -> None:
        """A member has everything, durably.  [R5]"""
        running = self._current(message.round, message.attempt)
        if running is None or source not in running.members:
            return
        if not running.planned and source not in running.alone:
            return
        running.done.add(source)
        if running.planned and not running.awaited:
            self._finish(running, now)

    def _current(self, number: int, attempt: int) -> Round | None:
        running = self.round
        if running is None or (number, attempt) != (running.number, running.attempt):
            return None
        return running

    # The end.

    def _finish(self, running: Round, now: Instant) -> None:
        """Every in-sync replica has it: commit, unless they are too few.  [R6, S004:4.4]"""
        self.round = None
        self._ended_at = now
        self._retry_at = None
        if len(self.office.isr) >= self.settings.min_insync_replicas:
            self.count += 1
            self._commit(running.end, running.number, now)
        elif running.recovery:
            self._commit(running.start, running.number, now)
        if running.recovery:
            self.recovered_end = running.end
            self.original.begin()
            self.out.note(Recovered(self.epoch, running.end))
        self._offers.clear()
        asked, self._asked = self._asked, {}
        for source, message in asked.items():
            self.rejoin(source, message, now)
        if self.settings.coordination is Coordination.ZOOKEEPER:
            self.out.add(Unlock())

    def _commit(self, committed: int, number: int, now: Instant) -> None:
        """S := E.  [R6]"""
        if self.files.commit(committed, now):
            self.out.add(Advance(self.files.committed))
            self.out.note(Committed(self.epoch, number, self.files.committed))
            # Where a round began by `syncEnd`, that is written already.
            written = self.settings.coordination is Coordination.ZOOKEEPER and self.original.active
            end = None if written else self.files.committed
            self.out.add(SetSync(self.files.committed, end, self.epoch, number))
        self.original.committed(self.files.committed)
        self.tell_all_committed()

    def tell_all_committed(self) -> None:
        """Let every member know S, and where our log begins.  [R6]"""
        self.tell_committed(*(each for each in self.office.isr if each != self.office.me))

    def tell_committed(self, *members: BrokerId) -> None:
        """Let members know them."""
        message = Commit(
            self.epoch,
            self.files.committed,
            self.original.next_offset,
            min(self.files.log.start_offset, self.files.committed),
        )
        for each in members:
            self.out.tell(each, message)

    # Who is in sync.

    def viewed(self, before: tuple[BrokerId, ...], now: Instant) -> None:
        """The in-sync set is what we wanted, or not."""
        isr = self.office.isr
        for gone in sorted(set(before) - set(isr)):
            self.original.lost(gone)
        for new in sorted(set(isr) - set(before)):
            self._joining.pop(new, None)
            self.out.note(MemberJoined(self.epoch, new))
            self.tell_committed(new)
        if before != isr:
            if len(isr) < self.settings.min_insync_replicas:
                self.original.too_few()
            if self.round is not None:
                self._again(self.round, now)

    def heard(self, broker: BrokerId, now: Instant) -> None:
        """A member is there (again): what it had promised before, it may not know any more."""
        if broker not in self.office.isr:
            return
        if self.original.active:
            self.tell_committed(broker)
        running = self.round
        if running is not None and (running.planned or broker in running.closed):
            self._again(running, now)
        elif running is not None:
            self._ask(running, broker)

    def disconnected(self, broker: BrokerId) -> None:
        """A peer is out of reach."""
        self._joining.pop(broker, None)
        self._asked.pop(broker, None)
        self._offers.pop(broker, None)
        if self._fetching == broker:
            self._fetching = None
        self.original.lost(broker)

    def _remove_late(self, now: Instant) -> None:
        """Who has been out of reach for too long, or leaves batches lie.  [R5]"""
        late = {
            each
            for each in self.office.isr
            if each != self.office.me
            and not self.links.up(each)
            and now >= self.links.silent_until(each, now, self.settings)
        }
        self._remove(late, "it is out of reach", now)
        self._remove(self.original.slow(now) & set(self.office.isr), "it does not store", now)

    def _remove(self, members: set[BrokerId], reason: str, now: Instant) -> None:
        """Ask for an in-sync set without these.  [R5]"""
        if not members or self.office.changing or self._needs_all:
            return
        isr = tuple(each for each in self.office.isr if each not in members)
        self.out.extend(self.office.change(isr, now))
        for each in sorted(members):
            self.out.note(MemberRemoved(self.epoch, each, reason))

    # Who wants in.  [R8]

    def rejoin(self, source: BrokerId, message: RejoinFetch, now: Instant) -> None:
        """An outsider asks for what is committed."""
        view = self.office.view
        assert view is not None
        if source in view.isr:
            if message.blank and message.offset < self.settled:
                self._remove({source}, "it has lost what is committed", now)
                return
            self.out.tell(source, InSync(self.epoch, view.version))
            return
        if source not in view.replicas:
            return
        if view.losses and message.lost_epoch < view.losses[-1].epoch:
            return  # ZooKeeper will tell it how far S went back; it asks again
        self._offers[source] = message.held
        self._reported.add(source)
        running = self.round
        if not self.original.active or (running is not None and message.held):
            # Once it knows what is committed it lets go of what it has: the round may need that.
            self._asked[source] = message
            if running is not None and running.holes_since is not None:
                self._plan(running, now)
            return
        if self.files.committed < message.committed <= self.files.log.end_offset:
            self._commit(message.committed, self._number, now)  # somebody has seen it committed
        self._joining.pop(source, None)
        self._send_committed(source, message.offset)
        if running is not None and running.holes_since is not None:
            self._plan(running, now)

    def _send_committed(self, to: BrokerId, offset: int) -> None:
        log = self.files.log
        at = max(offset, log.start_offset)
        records = b""
        if at < self.settled:
            found = log.copy(at, self.settings.message_bytes_max, self.settled)
            assert isinstance(found, bytes), found
            records = found
        start = min(log.start_offset, self.files.committed)
        committed, settled = self.files.committed, self.settled
        self.out.tell(to, CommittedLog(self.epoch, offset, committed, settled, start, records))

    def caught_up(self, source: BrokerId, message: CaughtUp, now: Instant) -> None:
        """An outsider has all that was committed when it asked."""
        if source in self.office.isr or not self.original.active or not self.links.up(source):
            return
        # It gets what was committed meanwhile, and no round opens before it has told.
        self._joining[source] = Joining(message.end, Instant(now + self.settings.round_timeout_ns))

    def _let_in(self, now: Instant) -> None:
        """Add who has everything that is committed, between rounds.  [R8]"""
        for broker in [each for each, one in self._joining.items() if one.until <= now]:
            del self._joining[broker]
        if self.round is not None or self.office.changing or not self._joining:
            return
        ready = [each for each, one in self._joining.items() if one.end >= self.settled]
        if ready:
            isr = tuple(sorted({*self.office.isr, *ready}))
            self.out.extend(self.office.change(isr, now))
            return
        for broker, one in self._joining.items():
            if one.sent < self.settled:
                one.sent = self.settled
                self._send_committed(broker, one.end)
