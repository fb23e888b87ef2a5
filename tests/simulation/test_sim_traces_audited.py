"""The engine-free audit, which shares nothing with the judge, says the same of simulated traces."""

from dataclasses import replace as changed

import pytest
from broken_twins import TWINS
from msgspec.structs import replace

from orderwire.sim.run import Run, simulate
from orderwire.sim.scenarios import SCENARIOS
from orderwire.trace import table_from_events
from orderwire.verify.audit import AuditOptions, audit
from orderwire.verify.report import Report
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

ALL_CHECKS = AuditOptions(clocks=True)
STEADY = SCENARIOS["swarm-steady"]


def audited(run: Run, **options: object) -> Report:
    table = table_from_events(run.events)
    return audit(TableSource(table), replace(ALL_CHECKS, **options))[0]


@pytest.mark.parametrize("algorithm", ["unordered", "fifo", "jang-delta", "rodrigues-deadline"])
def test_every_copy_of_a_good_run_is_accounted_for(algorithm: str) -> None:
    for seed in range(1, 16):
        run = simulate(replace(STEADY, algorithm=algorithm), seed)
        report = audited(run)
        assert report.verdict is Verdict.VALID, (run.replay_line, report.checks)
        assert report.runs[0].accounting["unaccounted"] == 0, run.replay_line


def test_audit_and_judge_count_the_same_violations() -> None:
    """Deliveries that break causal order, of an algorithm that promises none and of a twin."""
    twin = next(twin for twin in TWINS if twin.name == "jang-printed-literal+stamp-rule")
    exact = changed(twin.algorithm, name="jang-delta", expectation="exact")
    broken = 0
    for seed in range(1, 16):
        for run in (
            simulate(replace(STEADY, algorithm="unordered"), seed),
            simulate(STEADY, seed, algorithm=exact),
        ):
            judged = {
                check.id: len(check.violations)
                for check in (*run.judgement.checks, *run.judgement.control)
            }
            counted = {
                check.id: check.violations
                for check in audited(run, expect="jang-delta").runs[0].checks
            }
            assert counted["O1"] == judged["causal-order"], run.replay_line
            assert counted["O2"] == judged["fifo-order"], run.replay_line
            broken += judged["causal-order"]
    assert broken > 100
