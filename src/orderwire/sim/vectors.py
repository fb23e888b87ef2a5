"""Worked scenarios: read a file, replay it, compare with what it expects.

Their formats are in `causal_vectors`, `discovery_vectors` and `selective_total_vectors`.
"""

import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from orderwire.kernel import parsed
from orderwire.ordering.catalog import ALGORITHMS, Algorithm
from orderwire.ordering.total.tachikawa_st import TachikawaST
from orderwire.sim.causal_vectors import EXACT, Scenario, check_scenario, read_scenario
from orderwire.sim.discovery_vectors import check_discovery, is_discovery
from orderwire.sim.selective_total_vectors import check_selective_total, is_selective_total
from orderwire.sim.vector_format import VectorError

FILE_BYTES_MAX = 16 * 1024 * 1024
NOTHING = "the scenario says nothing to check"


class Failure(msgspec.Struct, frozen=True):
    """One check that failed."""

    file: str
    algorithm: str
    why: str


class NotCovered(msgspec.Struct, frozen=True):
    """Part of a file that nothing in the catalog can check yet."""

    file: str
    expectation: str
    why: str


class Report(msgspec.Struct):
    """Outcome of all files."""

    files: int = 0
    checks: int = 0
    passed: int = 0
    failed: list[Failure] = []
    not_covered: list[NotCovered] = []
    verdicts: dict[str, str] = {}
    """File → "passed", "failed", or "not covered" when nothing in the catalog could check it."""

    def count(self, file: str, algorithm: str, why: str | None) -> None:
        """Count one check; `why` says what is wrong, None that it passed."""
        self.checks += 1
        if why is None:
            self.passed += 1
        else:
            self.failed.append(Failure(file, algorithm, why))


def find_files(path: Path) -> list[Path]:
    """Return the JSON files of a folder and the folders in it, or the file itself."""
    return sorted(path.rglob("*.json")) if path.is_dir() else [path]


def check_file(path: Path, report: Report, algorithms: Mapping[str, Algorithm]) -> None:
    """Replay one file, count its checks and give it a verdict."""
    report.files += 1
    file = str(path)
    checks, failures = report.checks, len(report.failed)
    try:
        _check_file(path, file, report, algorithms)
    except VectorError as error:
        report.count(file, "-", str(error))
    except Exception as error:  # A fault of ours ends one file, and the others are still read.
        report.count(file, "-", f"the check broke off: {_told(error)}")
    if len(report.failed) > failures:
        report.verdicts[file] = "failed"
    else:
        report.verdicts[file] = "passed" if report.checks > checks else "not covered"


def _check_file(path: Path, file: str, report: Report, algorithms: Mapping[str, Algorithm]) -> None:
    raw = _read_object(path)
    if is_discovery(raw):
        outcomes = check_discovery(raw)
        for why in outcomes:
            report.count(file, "fdp", why)
        if not outcomes:
            report.not_covered.append(NotCovered(file, "expect", NOTHING))
        return
    if "sends" not in raw and is_selective_total(raw):
        outcomes = check_selective_total(raw)
        for why in outcomes:
            report.count(file, TachikawaST.NAME, why)
        if not outcomes:
            report.not_covered.append(NotCovered(file, "expect", NOTHING))
        return
    scenario = read_scenario(raw)
    unknown = sorted(set(raw) - set(Scenario.__struct_encode_fields__))
    for key in unknown:
        report.not_covered.append(NotCovered(file, key, "not a field of the documented format"))
    families = list(scenario.expect)
    if EXACT not in families and (scenario.stamps or scenario.causal_past or scenario.jang_tags):
        families.append(EXACT)  # these are about the correct run, whatever else is expected
    if not families:
        report.not_covered.append(NotCovered(file, "expect", NOTHING))
    for family in families:
        name = family.partition(":")[0]
        covering = [entry for entry in algorithms.values() if entry.expectation == name]
        if not covering:
            report.not_covered.append(
                NotCovered(file, family, "no algorithm of this family in the catalog")
            )
        for entry in covering:
            for why in check_scenario(scenario, entry, family):
                report.count(file, entry.name, why)
    for variant in scenario.violated_by:
        report.not_covered.append(
            NotCovered(file, variant, "deliberately wrong, not in the catalog; see tests/vectors")
        )


def _told(error: Exception) -> str:
    """Say what went wrong and where."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} (in {place.name}, line {place.lineno})"


def _read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in this file.  Raises VectorError."""
    try:
        if not path.is_file():
            raise VectorError("no regular file")
        size = path.stat().st_size
        if size > FILE_BYTES_MAX:
            raise VectorError(f"{size} bytes, at most {FILE_BYTES_MAX} are read")
        data = path.read_bytes()
    except OSError as error:
        raise VectorError(f"cannot be read: {error.strerror}") from error
    raw = parsed(msgspec.json.Decoder().decode, data, "not JSON", VectorError)
    if not isinstance(raw, dict):
        raise VectorError(f"expected a JSON object, got {type(raw).__name__}")
    return raw


def check_paths(paths: list[Path], algorithms: Mapping[str, Algorithm] = ALGORITHMS) -> Report:
    """Replay every scenario at these paths."""
    report = Report()
    for path in paths:
        files = find_files(path)
        if not files:
            report.count(str(path), "-", "a folder without any .json file")
        for file in files:
            check_file(file, report, algorithms)
    return report
