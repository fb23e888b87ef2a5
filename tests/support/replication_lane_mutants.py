"""Replicas with lanes that leave out one rule each: the judge has to find every one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec
from tests.support.replication_catching import DRAWS, Caught, Draws, caught_in
from tests.support.replication_lanes import lane_replica
from tests.support.replication_shapes import aimed_run

from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes
from orderwire.broker.replication.active_active_lanes_member import LaneMember
from orderwire.broker.replication.active_active_lanes_original import LaneOriginal
from orderwire.broker.replication.effects import Effects
from orderwire.broker.replication.lane_order import SequenceJudge
from orderwire.broker.replication.lane_store import LaneStore, LaneSync
from orderwire.broker.replication.lane_waiting import Waiting, WaitingRequests
from orderwire.broker.replication.settings import Mode
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, Instant
from orderwire.sim.replication_run import Outcome, RunSettings, run_replication

_take_over = LaneOriginal._take_over
_open_lane = ActiveActiveLanes.open_lane
_add = WaitingRequests.add


def _follow_anybody(self: LaneMember, source: BrokerId, epoch: int, now: Instant) -> Effects | None:
    if self._replica.original is not None:
        return None
    self._following = source
    self._followed_epoch = epoch
    return []


def _add_hastily(self: WaitingRequests, request: Waiting) -> None:
    request.at_commit = False
    _add(self, request)


def _order_anew(self: LaneOriginal, now: Instant) -> Effects:
    replica = self._replica
    last = self._store.back_to(replica.high_watermark, now // NS_PER_MS)
    replica.waiting.reverted(last.end_of(self._me))
    return _take_over(self, now)


def _open_anew(self: ActiveActiveLanes) -> None:
    if not self.is_open and self.in_sync:
        lane = self.store.lane
        while lane._segments:
            lane._storage.remove(f"lane-{lane._segments.pop().base:020}")
    _open_lane(self)


def _nothing_to_sync(self: LaneStore) -> LaneSync:
    return LaneSync(None, None, self.last, changes=0, undone=self._undone_times)


def _all_of_the_log(self: ActiveActiveLanes) -> int:
    return self.store.log.end_offset


def _nowhere(self: ActiveActiveLanes, high_watermark: int) -> None:
    """What is committed does not matter."""


MUTANTS: dict[str, list[tuple[type, str, Any]]] = {
    # [R2] Messages of lower epochs count.
    "unfenced": [(LaneMember, "_follow", _follow_anybody)],
    # [R6] acks=all is answered as acks=1 is.
    "acks-all-at-order": [(WaitingRequests, "add", _add_hastily)],
    # [R6] Whatever is in the log is served.
    "reads-ahead": [(ActiveActiveLanes, "high_watermark", property(_all_of_the_log, _nowhere))],
    # [R7] Whom it asks matters little: what is committed every member has, and so the new original.
    # But it has to keep to that.  A new original orders anew what it does not know to be committed.
    "cut-ignored": [(LaneOriginal, "_take_over", _order_anew)],
    # [R5] Done is answered before anything is on disk.
    "done-before-sync": [
        (LaneStore, "begin_sync", _nothing_to_sync),
    ],
    # [R8] Whoever comes back begins with an empty lane.
    "own-lane-dropped": [(ActiveActiveLanes, "open_lane", _open_anew)],
    # [I5] What is ordered already is ordered again.
    "duplicates-ordered": [(SequenceJudge, "judge", lambda *_, **__: None)],
}

RULES = {
    "unfenced": "R2",
    "acks-all-at-order": "4.4",
    "reads-ahead": "R6",
    "cut-ignored": "R7",
    "done-before-sync": "R5",
    "own-lane-dropped": "R8",
    "duplicates-ordered": "I5",
}
BREACHES = {
    # Commits are ordered by ZooKeeper's compare-and-set of the in-sync set and by Done from
    # everybody in it: without fencing nothing that was promised breaks, as the model said; what
    # shows is that lower epochs are written, and replicas that never come together.
    "unfenced": {"I7", "I8"},
    "acks-all-at-order": {"I1"},
    "reads-ahead": {"I3"},
    "cut-ignored": {"I1", "I2", "I3"},
    "done-before-sync": {"I1", "I2"},
    "own-lane-dropped": {"I4", "I8"},
    "duplicates-ordered": {"I1", "I5"},
}

DRAWS_OF = {
    "unfenced": Draws({"expiries": 4, "slow_spans": 6, "splits": 2}, ("election",), 10),
    "acks-all-at-order": Draws({"crashes": 2}),
    "reads-ahead": Draws({"crashes": 2}),
    "cut-ignored": Draws({"crashes": 3, "expiries": 3, "splits": 3}, ("round", "election"), 10),
    "done-before-sync": Draws({"power_failures": 4, "torn_crashes": 2}, ("round", "disk")),
    "own-lane-dropped": Draws({"crashes": 5, "splits": 4}, ("produce", "round"), 10),
    "duplicates-ordered": Draws(
        {"client_breaks": 6, "crashes": 2, "expiries": 2}, ("produce", "copy"), 3
    ),
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """While this lasts, every replica lacks the rule."""
    with ExitStack() as patches:
        for each in MUTANTS[name]:
            patches.enter_context(mock.patch.object(*each, create=True))
        yield


def lane_run(seed: int, name: str) -> RunSettings:
    """A drawn partition, with what brings a mutant to light."""
    drawn = DRAWS_OF[name].of(aimed_run(seed, Mode.ACTIVE_ACTIVE_LANES))
    if name != "own-lane-dropped":
        return drawn
    # What acks=1 acknowledged, and nobody else may have yet.
    producers = tuple(
        msgspec.structs.replace(each, acks=1, idempotent=False, in_flight_max=3)
        for each in drawn.world.producers
    )
    return msgspec.structs.replace(
        drawn, world=msgspec.structs.replace(drawn.world, producers=producers)
    )


def caught(name: str, draws: int = DRAWS, enough: int | None = None) -> Caught:
    """In how many of these draws it is found out that the rule is missing."""

    def live(seed: int) -> Outcome:
        with mutated(name):
            return run_replication(lane_replica, lane_run(seed, name), seed)

    return caught_in(live, BREACHES[name], range(draws), enough=enough)
