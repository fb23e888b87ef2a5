"""Active-standby with one rule taken away each: what drawn runs have to notice.  [S004:5.3]

It has no rounds to close and no orphans: R3 and R8 have nothing that stands for them here.
"""

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from replication_cores import active_standby
from replication_shapes import drawn_run

from orderwire.broker.flush import Flush
from orderwire.broker.replication.active_standby import ActiveStandby, ToFollower
from orderwire.broker.replication.active_standby_following import Following, Own
from orderwire.broker.replication.active_standby_messages import Follow, Records
from orderwire.broker.replication.active_standby_term import Term
from orderwire.broker.replication.effects import Effects, Tell
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant, OrderwireError
from orderwire.sim.replication_run import Faults, RunSettings, run_replication
from orderwire.verify.replication import by_invariant

_produce = ActiveStandby.produce
_begin = Following.begin
_take = Following._take


def _answer_at_once(
    self: ActiveStandby, token: int, connection: int, records: Any, acks: int, now: Instant
) -> Effects:
    return _produce(self, token, connection, records, 1, now)


def _keep_the_tail(self: Following, source: BrokerId, message: Follow, now: Instant) -> Effects:
    offset = max(message.offset, self._own.log.end_offset)
    kept = msgspec.structs.replace(message, offset=offset, anew=False)
    return _begin(self, source, kept, now)


def _take_hastily(self: Following, source: BrokerId, message: Records, now: Instant) -> Effects:
    return [*_take(self, source, message, now), Tell(source, self._stored())]


def _led_by_anybody(
    self: ActiveStandby, source: BrokerId, message: ToFollower, now: Instant
) -> Effects:
    effects: Effects = []
    if message.epoch > self._kept.known_epoch:
        effects += self._depose(message.epoch)
        self._kept.raise_epoch(message.epoch)
        self._following.end()
    elif self._term is not None:
        return []
    return effects + self._following.led(source, message, now)


class Twin(NamedTuple):
    """A protocol without one rule."""

    rule: str
    patches: list[tuple[type, str, Any]]
    breaks: frozenset[str]
    """Invariants of which at least one is broken."""
    faults: dict[str, int]
    first_seed: int = 0


TWINS = {
    "fencing": Twin(
        "R2",
        [(ActiveStandby, "_led", _led_by_anybody)],
        frozenset({"I1", "I2", "I3", "I7", "I8"}),
        {"expiries": 3, "pauses": 3, "partings": 3},
        first_seed=90,
    ),
    "high watermark": Twin(
        "R6",
        [(ActiveStandby, "high_watermark", property(lambda self: self.log.end_offset))],
        frozenset({"I3"}),
        {"crashes": 2},
    ),
    "answer at commit": Twin(
        "4.4", [(ActiveStandby, "produce", _answer_at_once)], frozenset({"I1"}), {}
    ),
    "every member has it": Twin(
        "R6",
        [(Term, "everybody_has", lambda self, members, mine: mine)],
        frozenset({"I1", "I2", "I3"}),
        {"crashes": 3, "expiries": 2},
    ),
    "cut back": Twin(
        "R7",
        [(Following, "begin", _keep_the_tail)],
        frozenset({"I1", "I2", "I3", "I8"}),
        {"crashes": 3, "expiries": 3, "pauses": 2},
    ),
    "disk": Twin(
        "R5",
        [
            (Own, "durable_end", property(lambda self: self.log.end_offset)),
            (Following, "_take", _take_hastily),
        ],
        frozenset({"I1", "I2"}),
        {"power_failures": 4, "torn_crashes": 2},
    ),
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """While this lasts, every replica lacks the rule."""
    with ExitStack() as patches:
        for each in TWINS[name].patches:
            patches.enter_context(mock.patch.object(*each))
        yield


def twin_run(seed: int, twin: Twin) -> RunSettings:
    """A drawn partition of three that is busy while faults come: what brings a twin to light."""
    drawn = drawn_run(seed, Mode.ACTIVE_STANDBY, replicas=(3,))
    replication = msgspec.structs.replace(
        drawn.replication, flush=Flush.GROUP, min_insync_replicas=1
    )
    producers = tuple(
        msgspec.structs.replace(each, batches=(1, 2) * 12) for each in drawn.world.producers
    )
    return msgspec.structs.replace(
        drawn,
        world=msgspec.structs.replace(drawn.world, producers=producers),
        replication=replication,
        faults=Faults(**twin.faults),
        faults_ns=400 * NS_PER_MS,
        settle_ns=2 * NS_PER_S,
    )


def caught(name: str, seeds: Iterable[int] | None = None) -> tuple[int, dict[str, int]]:
    """How many runs it took to break what the twin should, and what broke; nothing: none did."""
    twin = TWINS[name]
    for count, seed in enumerate(seeds or range(twin.first_seed, twin.first_seed + 30), 1):
        try:
            with without(name):
                outcome = run_replication(active_standby, twin_run(seed, twin), seed)
        except (AssertionError, OrderwireError):
            continue  # it noticed itself that something is wrong
        found = by_invariant(outcome.breaches)
        if found.keys() & twin.breaks:
            return count, found
    return 0, {}
