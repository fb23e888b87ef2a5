"""Active-standby with one rule taken away each: what drawn runs have to notice.  [S004:5.3]

It has no rounds to close and no orphans: R3 and R8 have nothing that stands for them here.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock

import msgspec
from replication_catching import DRAWS, Caught, Draws, caught_in
from replication_cores import active_standby
from replication_shapes import aimed_run

from orderwire.broker.flush import Flush
from orderwire.broker.replication.active_standby import ActiveStandby, ToFollower
from orderwire.broker.replication.active_standby_following import Following, Own
from orderwire.broker.replication.active_standby_messages import Follow, Here, Records
from orderwire.broker.replication.active_standby_term import Term
from orderwire.broker.replication.effects import Effects, Tell
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import Instant
from orderwire.sim.replication_run import Outcome, RunSettings, run_replication

_produce = ActiveStandby.produce
_receive = ActiveStandby.receive
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


def _deaf(self: ActiveStandby, source: BrokerId, message: Any, now: Instant) -> Effects:
    """Who makes itself known says which epoch it knows: that would depose a zombie, too."""
    if isinstance(message, Here) and self._term is not None:
        message = Here(self._term.epoch)
    return _receive(self, source, message, now)


class Twin(NamedTuple):
    """A protocol without one rule."""

    rule: str
    patches: list[tuple[type, str, Any]]
    breaks: frozenset[str]
    """Invariants of which at least one is broken."""
    draws: Draws


TWINS = {
    "fencing": Twin(
        "R2",
        [(ActiveStandby, "_led", _led_by_anybody), (ActiveStandby, "receive", _deaf)],
        frozenset({"I1", "I2", "I3", "I7", "I8"}),
        Draws({"splits": 6}, ("produce",)),
    ),
    "high watermark": Twin(
        "R6",
        [(ActiveStandby, "high_watermark", property(lambda self: self.log.end_offset))],
        frozenset({"I3"}),
        Draws({"crashes": 2}),
    ),
    "answer at commit": Twin(
        "4.4", [(ActiveStandby, "produce", _answer_at_once)], frozenset({"I1"}), Draws({})
    ),
    "every member has it": Twin(
        "R6",
        [(Term, "everybody_has", lambda self, members, mine: mine)],
        frozenset({"I1", "I2", "I3"}),
        Draws({"crashes": 3, "expiries": 3, "splits": 2}, ("copy", "round"), 3),
    ),
    "cut back": Twin(
        "R7",
        [(Following, "begin", _keep_the_tail)],
        frozenset({"I1", "I2", "I3", "I8"}),
        Draws({"crashes": 3, "expiries": 3, "splits": 3}, ("copy", "election"), 3),
    ),
    "disk": Twin(
        "R5",
        [
            (Own, "durable_end", property(lambda self: self.log.end_offset)),
            (Following, "_take", _take_hastily),
        ],
        frozenset({"I1", "I2"}),
        Draws({"power_failures": 4, "torn_crashes": 2}),
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
    """A drawn partition of three, with what brings a twin to light."""
    drawn = aimed_run(seed, Mode.ACTIVE_STANDBY, replicas=(3,))
    replication = msgspec.structs.replace(
        drawn.replication, flush=Flush.GROUP, min_insync_replicas=1
    )
    world = drawn.world
    if twin.rule == "R2":  # a zombie goes on taking what nobody else has to have
        producers = tuple(
            msgspec.structs.replace(each, acks=1, idempotent=False, in_flight_max=5)
            for each in world.producers
        )
        world = msgspec.structs.replace(world, producers=producers)
    return msgspec.structs.replace(
        twin.draws.of(drawn), world=world, replication=replication, looks=20
    )


def caught(name: str, draws: int = DRAWS, enough: int | None = None) -> Caught:
    """In how many of these draws it is found out that the rule is missing."""
    twin = TWINS[name]

    def live(seed: int) -> Outcome:
        with without(name):
            return run_replication(active_standby, twin_run(seed, twin), seed)

    return caught_in(live, twin.breaks, range(draws), enough=enough)
