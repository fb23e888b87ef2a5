"""Members that start again, counting from 0: audited like simulated ones, which go on counting."""

from random import Random

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from random_runs import FAULTS, RandomRun, damage, restarted

from orderwire.trace.events import Event
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import audit
from orderwire.verify.report import RunReport
from orderwire.verify.source import TableSource

NO_NAMES = ("forge", "invent")
"""Faults that make stamps or numbers say another life: what that one lost, nobody can know."""


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
