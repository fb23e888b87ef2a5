"""The audit of simulated runs: ordered ones keep their promises, the control group breaks order."""

import msgspec
import pytest

from orderwire.sim.run import simulate
from orderwire.sim.scenarios import find_scenario
from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.report import Report
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

SCENARIOS = ["s000-small", "lossy", "skewed", "partition", "churn", "swarm"]


def audited(scenario: str, seed: int, algorithm: str) -> Report:
    chosen = msgspec.structs.replace(find_scenario(scenario), algorithm=algorithm)
    run = simulate(chosen, seed)
    options = AuditOptions(clocks=True)
    return audit(TableSource(table_from_events(run.events)), options)[0]


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_causal_run_keeps_every_promise(scenario: str, seed: int) -> None:
    report = audited(scenario, seed, "jang-delta")
    assert {check.id: check.violations for check in report.checks if check.promised} == {
        "W1": 0,
        "C1": 0,
        "C2": 0,
        "O1": 0,
        "O2": 0,
        "S1": 0,
    }
    complete = not report.runs[0].incomplete
    assert report.verdict is (Verdict.VALID if complete else Verdict.UNKNOWN)


@pytest.mark.parametrize("scenario", ["lossy", "skewed"])
def test_a_fifo_run_keeps_its_promise_and_is_not_causal(scenario: str) -> None:
    report = audited(scenario, 1, "fifo")
    verdicts = {check.id: check.verdict for check in report.checks}
    assert report.verdict is verdicts["O2"] is Verdict.VALID
    assert verdicts["O1"] is Verdict.INVALID


@pytest.mark.parametrize("scenario", ["lossy", "skewed"])
def test_the_control_group_breaks_order_and_nothing_else(scenario: str) -> None:
    report = audited(scenario, 1, "unordered")
    verdicts = {check.id: check.verdict for check in report.checks}
    assert report.verdict is verdicts["C1"] is verdicts["C2"] is Verdict.VALID
    assert verdicts["O1"] is verdicts["O2"] is Verdict.INVALID
