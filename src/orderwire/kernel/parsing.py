"""Reading what others wrote: whatever bytes come, one kind of error goes.

msgspec raises its own errors for most of what it cannot read, UnicodeDecodeError for text that is
not UTF-8, and RecursionError for nesting, also inside of fields that it skips.
"""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from orderwire.kernel.errors import RemoteProtocolError

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""All that a decoder of msgspec raises for bytes that it cannot read."""

_Data = TypeVar("_Data")
_Read = TypeVar("_Read")


def parsed(
    decode: Callable[[_Data], _Read],
    data: _Data,
    what: str,
    fault: type[Exception] = RemoteProtocolError,
) -> _Read:
    """Return what these bytes say.  Raises `fault("what: why")` when they cannot be read."""
    try:
        return decode(data)
    except UNREADABLE as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else error
        raise fault(f"{what}: {why}") from None
