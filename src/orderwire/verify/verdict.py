"""What a check says: valid, invalid with evidence, or nothing to say."""

from collections.abc import Iterable
from enum import Enum

import msgspec


class Verdict(Enum):
    """Outcome of a check."""

    VALID = "VALID"
    INVALID = "INVALID"
    UNKNOWN = "UNKNOWN"
    """Nothing to check, or the trace is not complete enough to tell."""


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A promise that was not kept: which message, where, and the evidence."""

    check: str
    process: int
    position: int
    """Of the event that broke the promise, in the process's own timeline."""
    source: int
    number: int
    """The message that was treated wrongly."""
    other_source: int = -1
    other_number: int = -1
    """The message it should have been ordered with, if two are concerned."""
    other_position: int = -1
    why: str

    def sort_key(self) -> tuple[str, int, int, int, int, int, int]:
        """Order in which violations are listed."""
        return (
            self.check,
            self.process,
            self.position,
            self.source,
            self.number,
            self.other_source,
            self.other_number,
        )


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one check over one run."""

    id: str
    verdict: Verdict
    examined: int
    """How many events or pairs could have broken it."""
    violations: list[Violation]
    note: str = ""
    """Why the verdict is UNKNOWN, or what was left out."""


def conclude(
    check_id: str,
    examined: int,
    violations: Iterable[Violation],
    incomplete: str = "",
) -> Check:
    """Return the result of a check: a violation counts even in an incomplete trace."""
    found = sorted(violations, key=Violation.sort_key)
    note = incomplete
    if found:
        verdict = Verdict.INVALID
    elif incomplete:
        verdict = Verdict.UNKNOWN
    elif examined == 0:
        verdict = Verdict.UNKNOWN
        note = "nothing to check"
    else:
        verdict = Verdict.VALID
    return Check(id=check_id, verdict=verdict, examined=examined, violations=found, note=note)
