"""Members that start again, counting from 0: audited like simulated ones, which go on counting."""

from itertools import pairwise
from random import Random

import msgspec
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_runs import FAULTS, RandomRun, damage

from orderwire.trace.events import Event, EventKind
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import audit
from orderwire.verify.report import RunReport
from orderwire.verify.source import TableSource

NO_NAMES = ("forge", "invent")
"""Faults that make stamps or numbers say another life: what that one lost, nobody can know."""
_OF_MESSAGES = (EventKind.SEND, EventKind.DELIVER, EventKind.DISCARD, EventKind.RECEIVE)


def restarted(events: list[Event], chance: Random) -> tuple[list[Event], list[Event]] | None:
    """Let one process of a run start again somewhere: as on sockets, and as in the simulator."""
    who = chance.choice(sorted({event.process for event in events}))
    mine = [event for event in events if event.process == who]
    latest = -1
    places = []
    for at, (event, follow) in enumerate(pairwise(mine), 1):
        latest = max(latest, event.time_ns, event.stamp_ns if event.source == who else -1)
        if latest < follow.time_ns:
            places.append((at, follow.time_ns))
    if not places:
        return None
    at, start_ns = chance.choice(places)
    first = next(event for event in mine if event.kind is EventKind.START)
    start = msgspec.structs.replace(first, time_ns=start_ns, clock_ns=start_ns)
    sent = sum(event.kind is EventKind.SEND for event in mine[:at])
    goes_on, again = [], []
    for event in events:
        if event.process == who and event.position == at:
            goes_on.append(msgspec.structs.replace(start, position=at))
            again.append(start)
        later = event.process == who and event.position >= at
        goes_on.append(msgspec.structs.replace(event, position=event.position + later))
        fields = {"position": event.position - at + 1 if later else event.position}
        if event.kind in _OF_MESSAGES and event.source == who and event.stamp_ns >= start_ns:
            fields["number"] = event.number - sent
        again.append(msgspec.structs.replace(event, **fields))
    return again, goes_on


def judged(events: list[Event]) -> RunReport:
    report, _ = audit(TableSource(table_from_events(events)))
    return report.runs[0]


@given(
    seed=st.integers(0, 2**32),
    messages=st.integers(1, 40),
    faults=st.lists(st.sampled_from([each for each in FAULTS if each not in NO_NAMES]), max_size=1),
)
@settings(max_examples=80)
def test_lives_that_count_anew_are_judged_as_if_they_went_on(
    seed: int, messages: int, faults: list[str]
) -> None:
    chance = Random(seed)
    events = RandomRun(chance).run(messages)
    for fault in faults:
        events = damage(events, fault, chance)
    forms = restarted(events, chance)
    assume(forms is not None)
    assert forms is not None
    again, goes_on = map(judged, forms)
    assert again.accounting == goes_on.accounting
    assert again.incomplete == goes_on.incomplete
    assert [(c.id, c.verdict, c.violations) for c in again.checks] == [
        (c.id, c.verdict, c.violations) for c in goes_on.checks
    ]
