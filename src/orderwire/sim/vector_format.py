"""What the formats of all worked scenarios share: their error, remarks, reading of objects."""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

REMARKS = frozenset(("note", "comment", "why", "about", "source"))
"""Keys whose text is for people, wherever they stand."""

T = TypeVar("T")


class VectorError(ValueError):
    """The file is no scenario of a documented format."""


def without_remarks(raw: Any) -> Any:
    """Return the value without the remarks in its objects: a `source` that is an id stays."""
    if isinstance(raw, Mapping):
        return {
            key: without_remarks(value)
            for key, value in raw.items()
            if not (key in REMARKS and isinstance(value, str))
        }
    return [without_remarks(each) for each in raw] if isinstance(raw, list) else raw


def _is_text(value: Any) -> bool:
    lines = value if isinstance(value, list) else [value]
    return all(isinstance(each, str) for each in lines)


def read(raw: Any, form: type[T], what: str) -> T:
    """Return the value in this form; `what` says what it is.  Raises VectorError."""
    try:
        return msgspec.convert(raw, form)
    except msgspec.ValidationError as error:
        raise VectorError(f"malformed {what}: {error}") from error


def check_keys(raw: Mapping[str, Any], known: frozenset[str]) -> None:
    """Refuse keys of a whole scenario that are neither known nor texts.  Raises VectorError."""
    odd = sorted(key for key in set(raw) - known if not _is_text(raw[key]))
    if odd:
        raise VectorError(f"unknown keys: {', '.join(odd)}")
