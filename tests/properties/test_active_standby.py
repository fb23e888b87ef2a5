"""Active-standby under crashes, zombies, power failures and broken links; and each rule is needed.

What acks=1 acknowledged may go when the original does: I4 is not promised here.  [S004:4.8]
"""

from collections import Counter
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from replication_shapes import drawn_faults, drawn_producers, drawn_settings

from orderwire.broker.flush import Flush
from orderwire.broker.log import LogConfig, Storage
from orderwire.broker.replication.active_standby import ActiveStandby
from orderwire.broker.replication.active_standby_following import Following, Own
from orderwire.broker.replication.active_standby_messages import Follow
from orderwire.broker.replication.active_standby_term import Term
from orderwire.broker.replication.effects import Answer, Effects
from orderwire.broker.replication.settings import Mode, ReplicationSettings
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant, stream
from orderwire.sim.replication_clients import ProducerSettings, WorldSettings
from orderwire.sim.replication_run import Faults, Outcome, ReplicationRun, RunSettings
from orderwire.verify.replication import by_invariant

LOG = LogConfig(segment_bytes=2_000, recovery_bytes=500, index_interval_bytes=300)


def make(
    me: BrokerId, storage: Storage, settings: ReplicationSettings, now: Instant
) -> ActiveStandby:
    return ActiveStandby(me, storage, LOG, settings, now)


def drawn(seed: int) -> RunSettings:
    """One partition's life.  Without waiting for the disk, no power fails."""
    draw = stream(seed, "active-standby")
    count = draw.choice((2, 3, 3, 3, 4, 5))
    flush = draw.choice((Flush.GROUP, Flush.GROUP, Flush.MESSAGE, Flush.NONE))
    settings = msgspec.structs.replace(drawn_settings(draw, Mode.ACTIVE_STANDBY), flush=flush)
    without = ("power_failures",) if flush is Flush.NONE else ()
    producers = drawn_producers(draw, Mode.ACTIVE_STANDBY, count)
    return RunSettings(
        world=WorldSettings(replicas=count, producers=producers, consumers=draw.randint(1, 2)),
        replication=settings,
        faults=drawn_faults(draw, without),
        acks_one_lost=True,
    )


def breaches(outcome: Outcome) -> dict[str, int]:
    found = by_invariant(outcome.breaches)
    found.pop("I4", None)
    return found


def live(seed: int, maker: Any = make) -> tuple[Outcome, Counter[str]]:
    run = ReplicationRun(maker, drawn(seed), seed)
    outcome = run.run()
    return outcome, Counter(type(event).__name__ for _, event in run.world.notes)


def check(seeds: range) -> Counter[str]:
    seen: Counter[str] = Counter()
    for seed in seeds:
        outcome, notes = live(seed)
        assert not breaches(outcome), f"seed {seed}: {outcome.breaches[:3]}"
        assert outcome.settled_ns is not None, f"seed {seed}: not whole in time"
        assert not outcome.unsent, f"seed {seed}: {outcome.unsent} batches were never answered"
        seen += notes
        seen["acknowledged"] += outcome.acknowledged
    return seen


@pytest.mark.parametrize("start", range(0, 12, 3))
@pytest.mark.paper("S004:4.8")
def test_every_promise_holds_through_faults(start: int) -> None:
    seen = check(range(start, start + 3))
    assert seen["Elected"] > 2
    assert seen["acknowledged"] > 20


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1_000, 1_400, 100))
def test_every_promise_holds_through_many_faults(start: int) -> None:
    seen = check(range(start, start + 100))
    for event in ("Elected", "Deposed", "Truncated", "MemberRemoved", "MemberJoined"):
        assert seen[event] > 0, (event, seen)


class Hasty(ActiveStandby):
    """Answers acks=all when it has appended."""

    def produce(
        self, token: int, connection: int, records: Any, acks: int, now: Instant
    ) -> Effects:
        effects = super().produce(token, connection, records, acks, now)
        result = self._waiting._results.get(token)
        if result is None or result.duplicate:
            return effects
        self._waiting.forget(token)
        return [*effects, Answer(token, result)]


class FirstIsEnough(Term):
    def everybody_has(self, members: Any, mine: int) -> int:
        ends = [f.acked for f in self.followers.values() if f.broker in members]
        return min(mine, max(ends, default=mine))


class ReadyForAny(ActiveStandby):
    """Takes for committed what one member has beside it, not all of them.  [R6]"""

    def _begin_term(self, epoch: int, view: Any, now: Instant) -> Effects:
        effects = super()._begin_term(epoch, view, now)
        if self._term is not None:
            self._term.__class__ = FirstIsEnough
        return effects


class FollowsFromItsEnd(Following):
    def begin(self, source: BrokerId, message: Follow, now: Instant) -> Effects:
        if not message.anew and message.offset < self._own.log.end_offset:
            message = msgspec.structs.replace(message, offset=self._own.log.end_offset)
        return super().begin(source, message, now)


class KeepsItsEnd(ActiveStandby):
    """Does not cut off what the original has not got.  [KIP-101]"""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._following = FollowsFromItsEnd(self._own)


class EagerToAdmit(Term):
    def joining(self, isr: Any, high_watermark: int, now: Instant) -> Any:
        new = [f.broker for f in self.followers.values() if f.follows]
        return tuple(sorted({*isr, *new}))


class Admits(ActiveStandby):
    """Takes into the in-sync set who follows, however far behind.  [R8]"""

    def _begin_term(self, epoch: int, view: Any, now: Instant) -> Effects:
        effects = super()._begin_term(epoch, view, now)
        if self._term is not None:
            self._term.__class__ = EagerToAdmit
        return effects


class TrustsThePageCache(Own):
    @property
    def durable_end(self) -> int:
        return self.log.end_offset


class Forgetful(ActiveStandby):
    """Takes the page cache for the disk."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._own.__class__ = TrustsThePageCache


class Shrinks(ActiveStandby):
    """Leaves whom it asked ZooKeeper to remove out of account before it has heard of it.  [R5]"""

    def _move(self, now: Instant) -> Effects:
        view = self._office.view
        if self._office.changing and self._asked_isr and view is not None:
            self._office.view = msgspec.structs.replace(view, isr=self._asked_isr)
            effects = super()._move(now)
            self._office.view = view
            return effects
        return super()._move(now)


class ReadsAhead(ActiveStandby):
    """Lets consumers read what it has.  [R6]"""

    def _move(self, now: Instant) -> Effects:
        effects = super()._move(now)
        return (
            effects if self._term is None else effects + self._own.advance(self.log.end_offset, now)
        )


FAULTS: dict[type[ActiveStandby], dict[str, int]] = {
    Hasty: {"expiries": 6, "crashes": 4},
    ReadyForAny: {"expiries": 6, "crashes": 6, "slow_spans": 4},
    KeepsItsEnd: {"expiries": 6, "crashes": 6, "partings": 3},
    Admits: {"expiries": 8, "crashes": 6, "link_breaks": 4},
    Forgetful: {"power_failures": 6, "crashes": 2},
    Shrinks: {"expiries": 6, "partings": 6, "pauses": 3, "slow_spans": 3},
    ReadsAhead: {"expiries": 6, "crashes": 4, "partings": 3},
}
"""What shows that a rule is missing."""
BEGIN = {Forgetful: 10, Shrinks: 30, Admits: 18}
"""Where one was found out before: the search begins there."""


@pytest.mark.slow
@pytest.mark.parametrize("twin", FAULTS, ids=lambda twin: twin.__name__)
def test_each_rule_is_needed(twin: type[ActiveStandby]) -> None:
    """Without it S is wrong, somewhere in sixty lives."""
    for number in range(60):
        seed = (BEGIN.get(twin, 0) + number) % 60
        settings = RunSettings(
            world=WorldSettings(
                producers=(
                    ProducerSettings(batches=(1,) * 25, in_flight_max=2),
                    ProducerSettings(acks=1, batches=(1, 2) * 10),
                    ProducerSettings(idempotent=False, batches=(1,) * 20),
                ),
                consumers=2,
            ),
            replication=ReplicationSettings(
                min_insync_replicas=1 + seed % 2,
                round_timeout_ns=60 * NS_PER_MS,
                link_grace_ns=6 * NS_PER_MS,
                message_bytes_max=8 << 20 if seed % 3 else 200,
            ),
            faults=Faults(**FAULTS[twin]),
            faults_ns=NS_PER_S,
            settle_ns=3 * NS_PER_S,
            looks=20,
            acks_one_lost=True,
        )
        run = ReplicationRun(lambda *args: twin(args[0], args[1], LOG, *args[2:]), settings, seed)
        with suppress(AssertionError):  # the world found it first
            run.run()
        if {"I1", "I2", "I3"} & set(by_invariant(run.judge.breaches)):
            return
    raise AssertionError(f"{twin.__name__} was never found out")
