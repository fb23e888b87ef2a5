"""Replicas with lanes that leave out one rule each: the judge has to find every one."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes
from orderwire.broker.replication.active_active_lanes_member import LaneMember
from orderwire.broker.replication.active_active_lanes_original import LaneOriginal
from orderwire.broker.replication.effects import Effects
from orderwire.broker.replication.lane_order import SequenceJudge
from orderwire.broker.replication.lane_store import LaneStore, LaneSync
from orderwire.broker.replication.lane_waiting import Waiting, WaitingRequests
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, Instant

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
    "cut-ignored": {"I1", "I2", "I3", "AssertionError"},
    "done-before-sync": {"I1", "I2"},
    "own-lane-dropped": {"I4"},
    "duplicates-ordered": {"I5"},
}

FIRST_SEED = {"cut-ignored": 43, "own-lane-dropped": 4, "unfenced": 110}
"""Close before one that shows it."""


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """While this lasts, every replica lacks the rule."""
    with ExitStack() as patches:
        for each in MUTANTS[name]:
            patches.enter_context(mock.patch.object(*each, create=True))
        yield
