"""Run a schedule and let every oracle judge it."""

from typing import Any

from orderwire.ordering.catalog import Algorithm
from orderwire.sim.schedule import Replayed, Schedule, replay
from orderwire.trace.events import EventKind
from orderwire.verify.causal import check_causal_order, check_delta_causal_order
from orderwire.verify.delta import (
    check_liveness,
    check_no_duplicates,
    check_no_needless_waiting,
)
from orderwire.verify.fifo import check_fifo_order
from orderwire.verify.history import History, rebuild
from orderwire.verify.verdict import Check, Verdict


def judge(schedule: Schedule, replayed: Replayed) -> dict[str, Check]:
    """Every check of a run; a delivery may be late by less than one timer period."""
    history = rebuild(replayed.events)
    slack = schedule.timer_granularity - 1
    checks = (
        check_causal_order(history),
        check_delta_causal_order(history),
        check_fifo_order(history),
        check_liveness(history, timer_slack_ns=slack),
        check_no_duplicates(history),
        check_no_needless_waiting(history, timer_slack_ns=slack),
    )
    return {check.id: check for check in checks}


def broken(schedule: Schedule, replayed: Replayed) -> dict[str, str]:
    """The checks that reject a run, with the first reason."""
    return {
        check.id: check.violations[0].why
        for check in judge(schedule, replayed).values()
        if check.verdict is Verdict.INVALID
    }


def history_of(schedule: Schedule, algorithm: Algorithm) -> History:
    return rebuild(replay(schedule, algorithm).events)


def what_happened(replayed: Replayed) -> list[Any]:
    """All events but the ones that name the algorithm."""
    return [event for event in replayed.events if event.kind is not EventKind.START]


def tags(replayed: Replayed) -> dict[tuple[str, int], tuple[Any, Any]]:
    """CI and DC of every copy on the wire."""
    return {
        (name, process): (dict(pdu.entries), sorted(pdu.waits))
        for name, message in replayed.messages.items()
        for process, pdu in message.pdus.items()
    }
