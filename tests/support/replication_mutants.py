"""Active-active with one rule taken away each: what the runs and the search have to notice.

[S004:5.3]
"""

from typing import NamedTuple

import msgspec
from replication_catching import DRAWS, Caught, Draws, caught_in
from replication_cores import LOG
from replication_shapes import aimed_run

from orderwire.broker.log import Appended
from orderwire.broker.log.faulty import FaultyStorage
from orderwire.broker.replication.active_active import ActiveActiveReplica
from orderwire.broker.replication.active_active_assigned import Assigned
from orderwire.broker.replication.active_active_member import Member
from orderwire.broker.replication.active_active_original import Original
from orderwire.broker.replication.active_active_rounds import Rounds
from orderwire.broker.replication.settings import (
    Coordination,
    HolePolicy,
    Mode,
    OrphanPolicy,
    ReplicationSettings,
)
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.sim.replication_cluster import MakeReplica
from orderwire.sim.replication_run import RunSettings, run_replication


class Unfenced(ActiveActiveReplica):
    """R2: takes what an epoch says that is over."""

    def is_over(self, epoch: int) -> bool:
        return False


class _FaithlessMember(Member):
    def promised(self, base: int) -> bool:
        return False


class _HurriedRounds(Rounds):
    def _drained(self) -> bool:
        return True


class Undrained(ActiveActiveReplica):
    """A watch may overtake what the original has sent: only the promise keeps it out.  No rule is
    broken."""

    def make_rounds(self, original: Original, now: Instant) -> Rounds:
        return _HurriedRounds(original, now)


class Faithless(Undrained):
    """R3: stores what a round has closed."""

    def make_member(self) -> Member:
        return _FaithlessMember(self.files, self.office, self.links, self.settings, self.out)


class ReadsAhead(ActiveActiveReplica):
    """R6: serves what is in its log, committed or not."""

    @property
    def high_watermark(self) -> int:
        return self.log.end_offset


class _EarlyOriginal(Original):
    def _stored(self, entry: Assigned) -> None:
        super()._stored(entry)
        self._answer(entry, (1, -1), Appended(entry.base, entry.end - 1))


class Early(ActiveActiveReplica):
    """Ack levels: acks=all is answered as soon as one replica has it."""

    def make_original(self, epoch: int) -> Original:
        return _EarlyOriginal(epoch, self.member, self.office, self.links, self.settings, self.out)


class _LonelyRounds(Rounds):
    def closers(self) -> tuple[BrokerId, ...]:
        return self.office.isr if self.original.active else (self.office.me,)


class Lonely(ActiveActiveReplica):
    """R7: recovers from what it has itself."""

    def make_rounds(self, original: Original, now: Instant) -> Rounds:
        return _LonelyRounds(original, now)


class _HastyMember(Member):
    def durable(self, end: int) -> bool:
        return True


class NotSynced(ActiveActiveReplica):
    """R5: is done before it is on disk."""

    def make_member(self) -> Member:
        return _HastyMember(self.files, self.office, self.links, self.settings, self.out)


class Wasteful(ActiveActiveReplica):
    """R8: throws away what the others committed without."""

    def __init__(
        self,
        me: BrokerId,
        storage: FaultyStorage,
        settings: ReplicationSettings,
        now: Instant,
    ) -> None:
        settings = msgspec.structs.replace(settings, orphan_policy=OrphanPolicy.DROP)
        super().__init__(me, storage, LOG, settings, now)


class Mutant(NamedTuple):
    """A protocol without one rule."""

    rule: str
    make_replica: MakeReplica
    breaks: frozenset[str]
    """Invariants of which at least one is broken."""
    draws: Draws
    coordination: Coordination = Coordination.RPC


def made_by(kind: type[ActiveActiveReplica]) -> MakeReplica:
    def make(
        me: BrokerId, storage: FaultyStorage, settings: ReplicationSettings, now: Instant
    ) -> ActiveActiveReplica:
        return kind(me, storage, LOG, settings, now)

    return make


MUTANTS = {
    "fencing": Mutant(
        "R2",
        made_by(Unfenced),
        frozenset({"I1", "I2", "I3", "I5", "I7"}),
        Draws({"expiries": 3, "pauses": 3}),
    ),
    "promise": Mutant(
        "R3",
        made_by(Faithless),
        frozenset({"I1", "I2", "I3", "I4", "I5", "I8"}),
        Draws({"expiries": 1, "slow_spans": 6}, ("produce", "round"), 20),
        Coordination.ZOOKEEPER,
    ),
    "high watermark": Mutant("R6", made_by(ReadsAhead), frozenset({"I3"}), Draws({"crashes": 2})),
    "answer at commit": Mutant("4.4", made_by(Early), frozenset({"I1"}), Draws({})),
    "collect": Mutant(
        "R7",
        made_by(Lonely),
        frozenset({"I1", "I2", "I3"}),
        Draws({"crashes": 3, "expiries": 2}),
    ),
    "orphans": Mutant(
        "R8",
        Wasteful,
        frozenset({"I4", "I8"}),
        Draws({"crashes": 4, "pauses": 4, "partings": 4}),
    ),
    "disk": Mutant("R5", made_by(NotSynced), frozenset({"I1", "I2"}), Draws({"power_failures": 4})),
}


def mutant_run(seed: int, mutant: Mutant) -> RunSettings:
    """A drawn partition of three, with what brings a mutant to light."""
    drawn = aimed_run(seed, Mode.ACTIVE_ACTIVE, replicas=(3,))
    replication = msgspec.structs.replace(
        drawn.replication,
        orphan_policy=OrphanPolicy.REPUBLISH,
        hole_policy=HolePolicy.SEAL,
        coordination=mutant.coordination,
        eager_copy=False,
        sync_on_fetch=False,
        sync_interval_ns=200 * NS_PER_MS,
        round_timeout_ns=300 * NS_PER_MS,
    )
    return msgspec.structs.replace(
        mutant.draws.of(drawn),
        replication=replication,
        acks_one_lost=False,
        acks_one_committed=True,
    )


def caught(mutant: Mutant, draws: int = DRAWS, enough: int | None = None) -> Caught:
    """In how many of these draws it is found out that the rule is missing."""
    return caught_in(
        lambda seed: run_replication(mutant.make_replica, mutant_run(seed, mutant), seed),
        mutant.breaks,
        range(draws),
        enough=enough,
    )
