"""Worked scenarios of causal order.

The format is one JSON object per scenario: processes, Δ, ε, clocks, sends with the arrival of each
copy, and per family of algorithms what every process must deliver and discard, at which tick.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from orderwire.kernel import GROUP_SIZE_MAX, members_of
from orderwire.ordering.catalog import ALGORITHMS, Algorithm
from orderwire.ordering.jang_delta_codec import JangDeltaPdu
from orderwire.sim.schedule import Replayed, Schedule, ScheduledSend, replay
from orderwire.sim.vector_format import VectorError, without_remarks
from orderwire.verify.causal import check_causal_order, check_delta_causal_order
from orderwire.verify.delta import (
    check_liveness,
    check_no_duplicates,
    check_no_needless_waiting,
)
from orderwire.verify.history import rebuild
from orderwire.verify.verdict import Verdict

EXACT = "exact"
"""The family of the algorithms that deliver as soon as the definition allows."""
BOUNDED = "maxcb-"
"""The families whose algorithms name so many messages per destination at most, `maxcb-paper:3`."""
TICKS_MAX = 1 << 60
"""Bound on every time of a scenario: clocks and stamps must fit the wire."""


class VectorSend(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"sender": "from"},
    forbid_unknown_fields=True,
):
    """One message of a scenario."""

    id: str
    t: int
    sender: str
    to: list[str]
    arrive: dict[str, int | None] = {}
    before_arrivals: bool = False


class ProcessExpectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one process must do: (message, local tick), in order."""

    deliver: list[tuple[str, int]] = []
    discard: list[tuple[str, int]] = []


class Tags(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"waits": "DC", "entries": "CI"},
    forbid_unknown_fields=True,
):
    """Control information on the wire, all empty entries sent.  None: not stated."""

    waits: dict[str, list[tuple[str, str]]] | None = None
    """A destination left out waits for nothing."""
    entries: list[tuple[str, str, list[str]]] | None = None


class Violated(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a deliberately wrong variant must show."""

    safety: list[tuple[str, str, str]] = []
    """(process, message delivered too late, message delivered before it)."""
    safety_weak: list[tuple[str, str, str]] = []
    """Those that violate the definition of [S001] too."""
    live_late: list[tuple[str, str]] = []
    """(process, message delivered after its deadline)."""


class Scenario(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario of causal order."""

    name: str = ""
    processes: list[str]
    delta: int | None
    sends: list[VectorSend]
    epsilon: int = 0
    clock_offset: dict[str, int] = {}
    timer_granularity: int = 1
    stamps: dict[str, int] = {}
    causal_past: dict[str, list[str]] = {}
    expect: dict[str, dict[str, ProcessExpectation]] = {}
    jang_tags: dict[str, Tags] = {}
    violated_by: dict[str, Violated] = {}
    source: str = ""
    about: str = ""


def read_scenario(raw: Mapping[str, Any]) -> Scenario:
    """Return the scenario of a JSON object.  Raises VectorError with what is wrong with it."""
    if "sends" not in raw:
        kind = raw.get("kind")
        what = f"kind {kind!r}" if kind is not None else f"keys {', '.join(sorted(raw)) or 'none'}"
        raise VectorError(f"no documented format: {what}")
    try:
        scenario = msgspec.convert(without_remarks(raw), Scenario)
    except msgspec.ValidationError as error:
        raise VectorError(f"malformed scenario: {error}") from error
    _check_names(scenario)
    return scenario


def _check_names(scenario: Scenario) -> None:
    """Refuse what cannot be replayed."""
    processes = scenario.processes
    known = set(processes)
    if not processes or len(known) != len(processes):
        raise VectorError(f"processes {processes} are none, or not distinct")
    if len(processes) > GROUP_SIZE_MAX:
        raise VectorError(f"{len(processes)} processes, at most {GROUP_SIZE_MAX}")
    if scenario.timer_granularity < 1 or scenario.epsilon < 0:
        raise VectorError(
            f"timer_granularity {scenario.timer_granularity} or epsilon {scenario.epsilon}"
            " is out of range"
        )
    if scenario.delta is not None and scenario.delta < 1:
        raise VectorError(f"delta {scenario.delta} is not positive")
    ids: set[str] = set()
    for send in scenario.sends:
        if send.id in ids:
            raise VectorError(f"message {send.id!r} is sent twice")
        ids.add(send.id)
        named = {send.sender, *send.to, *send.arrive}
        if not named <= known:
            raise VectorError(f"message {send.id!r} names {sorted(named - known)}")
        others = set(send.to) - {send.sender}
        if not send.to or set(send.arrive) != others:
            raise VectorError(
                f"message {send.id!r} goes to {sorted(others)}, arrivals are given for "
                f"{sorted(send.arrive)}"
            )
        for process, at in send.arrive.items():
            if at is not None and at < send.t:
                raise VectorError(f"message {send.id!r} arrives at {process} before it is sent")
    if not set(scenario.clock_offset) <= known:
        raise VectorError(f"clock_offset names {sorted(set(scenario.clock_offset) - known)}")
    _check_ticks("delta", (scenario.delta,))
    _check_ticks("epsilon, timer_granularity", (scenario.epsilon, scenario.timer_granularity))
    _check_ticks("clock_offset", scenario.clock_offset.values())
    for send in scenario.sends:
        _check_ticks(f"message {send.id!r}", (send.t, *send.arrive.values()))
    for family in scenario.expect:
        _check_bound(family)


def _check_ticks(what: str, ticks: Iterable[int | None]) -> None:
    odd = [each for each in ticks if each is not None and abs(each) > TICKS_MAX]
    if odd:
        raise VectorError(f"{what}: {odd} ticks, at most {TICKS_MAX}")


def _check_bound(family: str) -> None:
    """Refuse a family without the bound that it needs, or with one that nothing heeds."""
    name, colon, bound = family.partition(":")
    if name.startswith(BOUNDED):
        if not (bound.isascii() and bound.isdecimal() and int(bound)):
            raise VectorError(f"expectation {family!r}: the bound is no positive number")
    elif colon and name in {entry.expectation for entry in ALGORITHMS.values()}:
        raise VectorError(f"expectation {family!r}: {name} takes no bound")


def schedule_of(scenario: Scenario) -> Schedule:
    """Return the scenario as a schedule: processes as numbers."""
    index = {name: at for at, name in enumerate(scenario.processes)}
    return Schedule(
        processes=len(scenario.processes),
        lifetime=scenario.delta,
        epsilon=scenario.epsilon,
        clock_offsets=tuple(scenario.clock_offset.get(name, 0) for name in scenario.processes),
        timer_granularity=scenario.timer_granularity,
        sends=tuple(
            ScheduledSend(
                id=send.id,
                at=send.t,
                sender=index[send.sender],
                to=tuple(sorted(index[name] for name in set(send.to))),
                arrive={index[name]: at for name, at in send.arrive.items()},
                before_arrivals=send.before_arrivals,
            )
            for send in scenario.sends
        ),
    )


def check_scenario(scenario: Scenario, entry: Algorithm, family: str) -> Iterator[str | None]:
    """Yield one outcome per check: None, or what is wrong."""
    schedule = schedule_of(scenario)
    bound = family.partition(":")[2]
    options = {"max_cb": int(bound), "floor_cap": int(bound)} if bound else {}
    for empties in (False, True):
        replayed = replay(
            schedule, entry, run_id=scenario.name, send_empty_entries=empties, **options
        )
        yield from _check_deliveries(scenario, family, replayed)
        yield from _check_stamps(scenario, replayed)
        if family == EXACT:
            yield from _check_history(scenario, replayed)
        if not any(
            isinstance(pdu, JangDeltaPdu)
            for message in replayed.messages.values()
            for pdu in message.pdus.values()
        ):
            return
    yield from _check_tags(scenario, replayed)


def _check_deliveries(scenario: Scenario, family: str, replayed: Replayed) -> Iterator[str | None]:
    expected = scenario.expect.get(family)
    if expected is None:
        return
    for name in expected:
        if name not in scenario.processes:
            yield f"expectation for {name!r}, which is no process"
    for index, name in enumerate(scenario.processes):
        wanted = expected.get(name, ProcessExpectation())
        for what, got, want in (
            ("delivers", replayed.delivered[index], wanted.deliver),
            ("discards", replayed.discarded[index], wanted.discard),
        ):
            yield None if got == want else f"{name} {what} {got}, expected {want}"


def _check_stamps(scenario: Scenario, replayed: Replayed) -> Iterator[str | None]:
    for id_, stamp in scenario.stamps.items():
        message = replayed.messages.get(id_)
        got = None if message is None else message.stamp
        yield None if got == stamp else f"{id_} is stamped {got}, expected {stamp}"


def _check_history(scenario: Scenario, replayed: Replayed) -> Iterator[str | None]:
    """Compare causal pasts, and let the oracles judge the run."""
    history = rebuild(replayed.events)
    for id_, past in scenario.causal_past.items():
        message = replayed.messages.get(id_)
        if message is None:
            yield f"causal_past names {id_!r}, which is not sent"
            continue
        known = history.past_of(history.by_key[message.sender, message.number])
        got = sorted(replayed.ids[other.key] for other in known)
        yield None if got == sorted(past) else f"{id_} has the past {got}, expected {past}"
    slack = scenario.timer_granularity - 1
    for check in (
        check_causal_order(history),
        check_delta_causal_order(history),
        check_liveness(history, timer_slack_ns=slack),
        check_no_duplicates(history),
        check_no_needless_waiting(history, timer_slack_ns=slack),
    ):
        if check.verdict is Verdict.INVALID:
            first = check.violations[0]
            yield f"{check.id}: {first.why}, at process {scenario.processes[first.process]}"
        else:
            yield None


def _check_tags(scenario: Scenario, replayed: Replayed) -> Iterator[str | None]:
    """Compare DC and CI of every copy on the wire, as sets."""
    names = scenario.processes
    # By the stamps of the wire: those reported are shifted when clocks read less than 0.
    at_stamp = {
        (message.sender, pdu.stamp): message.id
        for message in replayed.messages.values()
        for pdu in message.pdus.values()
    }
    for id_, tags in scenario.jang_tags.items():
        message = replayed.messages.get(id_)
        if message is None:
            yield f"jang_tags name {id_!r}, which is not sent"
            continue
        copies = {names[process]: pdu for process, pdu in message.pdus.items()}
        for process in sorted(set(tags.waits or ()) - set(copies)):
            yield f"jang_tags of {id_} name {process!r}, which gets no copy"
        for process, pdu in copies.items():
            waits = {(names[k], at_stamp.get((k, wait), f"#{wait}")) for k, wait in pdu.waits}
            entries = {
                (
                    names[k],
                    at_stamp.get((k, stamp), f"#{stamp}"),
                    frozenset(names[p] for p in members_of(mask)),
                )
                for k, group in pdu.entries.items()
                for stamp, mask in group
            }
            yield _differing_tags(f"{id_} to {process}", tags, process, waits, entries)


def _differing_tags(
    copy: str,
    tags: Tags,
    process: str,
    waits: set[tuple[str, str]],
    entries: set[tuple[str, str, frozenset[str]]],
) -> str | None:
    """Say how one copy's tags differ from what is stated, if they do."""
    if tags.waits is not None:
        wanted = sorted(set(tags.waits.get(process, ())))
        if sorted(waits) != wanted:
            return f"{copy} has DC {sorted(waits)}, expected {wanted}"
    if tags.entries is not None:
        stated = {(k, m, frozenset(left)) for k, m, left in tags.entries}
        if entries != stated:
            return f"{copy} has CI {_shown(entries)}, expected {_shown(stated)}"
    return None


def _shown(entries: set[tuple[str, str, frozenset[str]]]) -> list[tuple[str, str, list[str]]]:
    return sorted((k, m, sorted(left)) for k, m, left in entries)
