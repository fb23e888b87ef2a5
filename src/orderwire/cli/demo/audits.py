"""An audit, as the demo's JSON tells it and its report shows it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from orderwire.report.html import Table
from orderwire.verify.replication_audit import HistoryReport
from orderwire.verify.report import RunReport

_COLUMNS = {
    "id": "check",
    "title": "what",
    "promised": "promised",
    "verdict": "verdict",
    "examined": "examined",
    "violations": "violations",
}
"""What is told of a check, where it has that, and what stands above it."""


def audit_told(audit: RunReport | HistoryReport) -> dict[str, Any]:
    """Return what the demo's JSON tells."""
    checks: list[dict[str, Any]] = msgspec.to_builtins(audit.checks)
    return {
        "verdict": audit.verdict.value,
        "checks": [{name: check[name] for name in _COLUMNS if name in check} for check in checks],
    }


def checks_table(told: Mapping[str, Any]) -> Table:
    """The checks that `audit_told` tells."""
    checks = told["checks"]
    names = [name for name in _COLUMNS if name in checks[0]]
    rows: list[list[object]] = [[_shown(check[name]) for name in names] for check in checks]
    return Table([_COLUMNS[name] for name in names], rows)


def _shown(value: object) -> object:
    return value if not isinstance(value, bool) else "yes" if value else "no"
