"""Topics and the patterns that readers choose them by."""

from collections.abc import Callable
from typing import Any

import msgspec

from orderwire.kernel import LocalProtocolError
from orderwire.participant.qos import Order

NAME_BYTES_MAX = 255
LEVELS_MAX = 32

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]


class Topic(msgspec.Struct, frozen=True):
    """A name that writers write to and readers read, with the order its readers are promised.

    The name is levels between slashes: `chat/room`.  `encode` turns what is written into bytes and
    `decode` turns it back for readers of this topic; without them data are bytes.
    Raises LocalProtocolError on a bad name or order.
    """

    name: str
    order: Order
    encode: Encode | None = None
    decode: Decode | None = None

    def __post_init__(self) -> None:
        for level in _levels(self.name, "topic name"):
            if "*" in level:
                raise LocalProtocolError(
                    f"topic name {self.name!r} has a wildcard: only readers may use '*' and '**'"
                )
        if not isinstance(self.order, Order):
            raise LocalProtocolError(
                f"order={self.order!r} of topic {self.name!r} must be Unordered(), Fifo(),"
                " DeltaCausal(lifetime_ms=…), Published(algorithm=…) or SelectiveTotal()"
            )
        for what, function in (("encode", self.encode), ("decode", self.decode)):
            if function is not None and not callable(function):
                raise LocalProtocolError(
                    f"{what}={function!r} of topic {self.name!r} must be a function of the data"
                )


class Pattern:
    """Which topics a reader wants: `*` stands for one level, `**` for any number, none included."""

    def __init__(self, text: str) -> None:
        """Refuse what is no pattern, with a LocalProtocolError."""
        self.text = text
        self._levels = _levels(text, "pattern")
        for level in self._levels:
            if "*" in level and level not in ("*", "**"):
                raise LocalProtocolError(
                    f"pattern {text!r}: '*' and '**' stand for whole levels, got {level!r}"
                )
        if any(
            mine == next_one == "**"
            for mine, next_one in zip(self._levels, self._levels[1:], strict=False)
        ):
            raise LocalProtocolError(f"pattern {text!r}: one '**' does what several in a row do")

    def matches(self, name: str) -> bool:
        """Whether this topic name is meant.  Linear in practice, never exponential."""
        pattern, levels = self._levels, name.split("/")
        at = seen = 0
        star, retry = -1, 0
        while seen < len(levels):
            if at < len(pattern) and pattern[at] == "**":
                star, retry = at, seen
                at += 1
            elif at < len(pattern) and pattern[at] in ("*", levels[seen]):
                at += 1
                seen += 1
            elif star >= 0:
                retry += 1
                at, seen = star + 1, retry
            else:
                return False
        return all(level == "**" for level in pattern[at:])

    def __repr__(self) -> str:
        return f"Pattern({self.text!r})"


def _levels(text: str, what: str) -> list[str]:
    if not isinstance(text, str):
        raise LocalProtocolError(f"{what} must be text, got {text!r}")
    levels = text.split("/")
    if not text or not all(levels):
        raise LocalProtocolError(
            f"{what} {text!r} has an empty level: write levels between single slashes, such as"
            " 'chat/room'"
        )
    if len(text.encode()) > NAME_BYTES_MAX or len(levels) > LEVELS_MAX:
        raise LocalProtocolError(
            f"{what} {text[:40]!r}… is too long: at most {NAME_BYTES_MAX} bytes in"
            f" {LEVELS_MAX} levels"
        )
    if not text.isprintable() or any(character.isspace() for character in text):
        raise LocalProtocolError(f"{what} {text!r} must have no spaces or control characters")
    return levels
