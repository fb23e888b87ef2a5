"""Writers: one topic each; a write is sent to whoever reads the topic now."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orderwire.kernel import LocalProtocolError
from orderwire.participant.lifetimes import delivered_within_ns
from orderwire.participant.samples import Written
from orderwire.participant.topics import Topic

if TYPE_CHECKING:
    from orderwire.participant.topic_domain import TopicDomain

DATA_BYTES_MAX = 983_040
"""Largest data of one message: a PDU holds 1 MiB, 64 KiB of which are kept for control data."""


class Writer:
    """Writes to one topic.  Make one with `participant.writer(topic)`."""

    def __init__(self, domain: "TopicDomain", topic: Topic) -> None:
        self.topic = topic
        self.closed = False
        self._lost = ""
        self._domain = domain
        self._encode = topic.encode
        self._outlet = domain.matching.declare(topic.name, domain.key)
        domain.writers.append(self)

    @property
    def matched(self) -> int:
        """How many readers the topic has now, at all members."""
        return self._outlet.matched

    def write(self, data: Any, *, lifetime_ms: float | None = None) -> Written | None:
        """Send data to all members that read the topic; returns at once.

        With `SelectiveTotal` what was written has its place in the order when it comes back to a
        reader of this participant, and no message may have more than MESSAGE_BYTES_MAX.
        With `lifetime_ms` the message has a lifetime of its own, in milliseconds, instead of its
        order's: `Published(algorithm="rodrigues-deadline", lifetime_ms=…)` only.
        Returns None when nobody reads it: nothing was sent, which is no fault and is counted.
        Raises LocalProtocolError when closed, when the data are no bytes or too large, when the
        lifetime is longer than the order's or would have no effect, and, in a domain without
        lifetime, when too much waits to be sent: then await `drain()`; and when the participant is
        in its group with one order no more.
        """
        self._require_open()
        if self._encode is not None:
            data = self._encode(data)
        if not isinstance(data, bytes):
            if not isinstance(data, bytearray | memoryview):
                raise LocalProtocolError(
                    f"topic {self.topic.name!r} takes bytes, got {type(data).__name__}: encode it,"
                    " or give the topic encode=… and decode=…"
                )
            data = bytes(data)
        if len(data) > DATA_BYTES_MAX:
            raise LocalProtocolError(
                f"data of {len(data)} bytes are too large for one message, at most"
                f" {DATA_BYTES_MAX} (DATA_BYTES_MAX): cut them up"
            )
        return self._domain.write(self._outlet, data, self._own_lifetime_ns(lifetime_ms))

    def write_many(self, data: Sequence[Any], *, lifetime_ms: float | None = None) -> list[Written]:
        """Send several data to all members that read the topic; returns at once.

        They are packed into as few messages as datagrams allow: that costs a small part of so many
        writes.  Data in one message share its number, stamp and lifetime, and are handed over one
        by one, in this order.  Returns the messages; none when nobody reads it.
        Raises LocalProtocolError as `write` does, before anything is sent; all data together may
        have DATA_BYTES_MAX bytes.
        """
        self._require_open()
        if self._encode is not None:
            data = [self._encode(each) for each in data]
        for kind in set(map(type, data)) - {bytes, bytearray, memoryview}:
            raise LocalProtocolError(
                f"topic {self.topic.name!r} takes bytes, got {kind.__name__} among the data:"
                " encode it, or give the topic encode=… and decode=…"
            )
        data = [bytes(each) if type(each) is memoryview else each for each in data]
        lengths = list(map(len, data))
        if sum(lengths) > DATA_BYTES_MAX:
            raise LocalProtocolError(
                f"data of {sum(lengths)} bytes are too large to be written at once, at most"
                f" {DATA_BYTES_MAX} (DATA_BYTES_MAX)"
            )
        lifetime_ns = self._own_lifetime_ns(lifetime_ms)
        return self._domain.write_many(self._outlet, data, lengths, lifetime_ns) if data else []

    def _own_lifetime_ns(self, lifetime_ms: float | None) -> int | None:
        """Return how long the order may deliver a message, where that is not as usual."""
        if lifetime_ms is None:
            return None
        lifetime_ns = self.topic.order.own_lifetime_ns(lifetime_ms)
        return None if lifetime_ns is None else delivered_within_ns(lifetime_ns)

    def _require_open(self) -> None:
        if self._lost:
            raise LocalProtocolError(self._lost)
        if self.closed:
            raise LocalProtocolError(
                f"the writer of {self.topic.name!r} is closed: make another one with"
                " participant.writer(topic), inside of `async with`"
            )

    async def wait_matched(self, readers: int = 1, timeout_s: float | None = None) -> None:
        """Wait until the topic has at least so many readers.

        Raises TimeoutError, and LocalProtocolError when `readers` is no positive whole number, or
        nothing can be written any more.
        """
        self._require_open()
        if not isinstance(readers, int) or readers < 1:
            raise LocalProtocolError(
                f"wait_matched({readers!r}): give a number of readers, at least 1"
            )
        try:
            async with asyncio.timeout(timeout_s):
                await self._outlet.wait(readers)
        except TimeoutError:
            hint = self._domain.hint
            if self._outlet.held:
                hint = (
                    "this participant may have been restarted and keeps quiet for Δ + ε; if it was"
                    " not, Participant(restarted=False) says so"
                )
            raise TimeoutError(
                f"{self.topic.name!r} has {self.matched} readers after {timeout_s} s, waited for"
                f" {readers}: {hint}"
            ) from None

    async def drain(self) -> None:
        """Wait until there is room to write more.

        Raises LocalProtocolError when a group with one order was left or lost meanwhile.
        """
        await self._domain.drain()

    async def flush(self, timeout_s: float | None = None) -> None:
        """Wait until every copy written so far has come to its member, or can no longer.

        Raises TimeoutError.
        """
        await self._domain.flush(timeout_s)

    def lose(self, why: str) -> None:
        """Refuse to write from now on, for this reason."""
        self._lost = why
        self._outlet.fail(why)

    def close(self) -> None:
        """Write no more.  What was written is still sent."""
        if not self.closed:
            self.closed = True
            self._domain.matching.withdraw(self._outlet)
            self._domain.writers.remove(self)
