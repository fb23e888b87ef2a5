"""Made traces of groups are right but for their faults, and the audit finds just these."""

import pytest

from orderwire.verify.audit import audit
from orderwire.verify.group_synthetic import GroupTraceSettings, synthetic_group
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict


def test_a_made_group_is_valid() -> None:
    report, violations = audit(TableSource(synthetic_group(GroupTraceSettings(messages=500))))
    assert report.verdict is Verdict.VALID
    assert violations.num_rows == 0
    assert {"T1", "T2", "T3", "T4", "T5"} <= {check.id for check in report.checks}


def test_what_is_planted_is_found() -> None:
    table = synthetic_group(GroupTraceSettings(messages=3_000, view_every=500, dropped=7))
    _, violations = audit(TableSource(table))
    found = [row["kind"] for row in violations.to_pylist() if row["check"] == "T3"]
    assert found == ["missing"] * 7
    table = synthetic_group(GroupTraceSettings(messages=3_000, swapped=9))
    report, _ = audit(TableSource(table))
    checks = {check.id: check for check in report.checks}
    assert checks["T1"].violations > 0
    assert 0 < checks["T2"].violations <= 9
    assert checks["T5"].violations == 0


def test_impossible_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="destinations=9 of members=8"):
        GroupTraceSettings(messages=1, destinations=9)
