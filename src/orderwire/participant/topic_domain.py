"""What all ordering domains of a participant have in common, whatever carries their messages."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING

from orderwire.aio.clock import GroupClock
from orderwire.kernel import ProcessId
from orderwire.participant.matching import Matching, Outlet
from orderwire.participant.qos import Order
from orderwire.participant.reader import Reader
from orderwire.participant.samples import Counters, Written
from orderwire.participant.writer import Writer

if TYPE_CHECKING:
    from orderwire.trace.sinks import Sink


class TopicDomain(ABC):
    """The part of a participant that one order's topics share."""

    tells_changes = False
    """Whether members enter and leave at a place in the order."""

    def __init__(
        self,
        order: Order,
        me: ProcessId,
        members: Sequence[str],
        clock: GroupClock,
        matching: Matching,
    ) -> None:
        """`members` are the names by id."""
        self.order = order
        self.key = order.key
        self.members = members
        self.clock = clock
        self.matching = matching
        self.readers: list[Reader] = []
        self.writers: list[Writer] = []
        self.lost = ""
        """Why nothing can be written or read here any more."""
        self._me = me
        self._counters = Counters()

    @property
    def counters(self) -> Counters:
        """What was counted so far."""
        return self._counters

    @property
    def hint(self) -> str:
        """Why a topic may have no readers."""
        return f"do they ask for the same order, {self.key}?"

    @abstractmethod
    def write(self, outlet: Outlet, data: bytes, lifetime_ns: int | None = None) -> Written | None:
        """Multicast to the readers of this outlet.  Raises LocalProtocolError.

        `lifetime_ns`: for so long the order may deliver it, where that is not as usual.
        """

    @abstractmethod
    def write_many(
        self,
        outlet: Outlet,
        data: Sequence[bytes],
        lengths: Sequence[int],
        lifetime_ns: int | None = None,
    ) -> list[Written]:
        """Multicast data of these lengths in as few messages as hold them, as `write` does."""

    @abstractmethod
    async def drain(self) -> None:
        """Wait until there is room to write more."""

    @abstractmethod
    async def sent(self) -> None:
        """Wait until nothing written is under way."""

    async def flush(self, timeout_s: float | None) -> None:
        """`sent`.  Raises TimeoutError."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.sent()
        except TimeoutError:
            raise TimeoutError(
                f"not all that was written in {self.order.label} was confirmed after {timeout_s} s"
            ) from None

    def add_reader(self, reader: Reader) -> None:
        """Let this reader take part."""
        self.readers.append(reader)
        self.matching.add_reader(reader)

    def forget_reader(self, reader: Reader) -> None:
        """This reader was closed."""
        with contextlib.suppress(ValueError):
            self.readers.remove(reader)

    @abstractmethod
    def trace(
        self, run: str, sink: "Sink", *, one_clock: bool, timer_slack_ns: int, found: bool
    ) -> None:
        """Record what happens from now on, as the run `run/domain`.

        `found`: members find each other, so that not every id is somebody's.
        """

    @abstractmethod
    def trace_gone(self, member: ProcessId) -> None:
        """Record that this member was killed: it cannot say so itself."""

    @abstractmethod
    def flush_trace(self) -> None:
        """Hand the events that wait to the sink."""

    @abstractmethod
    async def close(self, linger_s: float) -> None:
        """Take part no more, after so long at most, and end the trace."""
