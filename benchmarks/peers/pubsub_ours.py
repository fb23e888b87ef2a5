"""Ours for the harness of publish/subscribe speed, through the public API.

The harness loads it as `ours.py` beside its other transports: `ALL` names the classes,
`Cls(subscribers, size)` is the publisher with `drive(load, end)`, `Cls.sub(k, sink)` subscriber k.
The group has a place for so many subscribers as ORDERWIRE_SUBSCRIBERS says (8): all members of a
group must name the same members, and the harness does not tell a subscriber how many there are.
"""

import asyncio
import contextlib
import os
from collections.abc import Iterable
from typing import Any, ClassVar

from orderwire import DeltaCausal, Fifo, Order, Participant, Topic, Unordered, Writer

PORT = 7_650
SUBSCRIBERS = int(os.environ.get("ORDERWIRE_SUBSCRIBERS", "8"))
LIFETIME_MS = 10_000
"""Of Δ-causal messages: longer than a flood may wait for room."""
WRITE_BYTES = 192 << 10
"""In a flood so much is written at once."""
CONNECT_S = 10.0
ENDS = 3
END_PAUSE_S = 0.05
STOP_PAUSE_S = 0.02


class Unorderedly:
    """Orderwire, no order, reliable: the publisher waits for room when a subscriber is slow"""

    order: ClassVar[Order] = Unordered()

    def __init__(self, subscribers: int, size: int) -> None:
        self.subscribers = subscribers

    @classmethod
    def participant(cls, me: int) -> Participant:
        """Return member `me`; the publisher is 0."""
        members = {at: f"127.0.0.1:{PORT + at}" for at in range(SUBSCRIBERS + 1)}
        return Participant(me, members=members, restarted=False)

    def drive(self, load: Iterable[Any], end: bytes) -> None:
        """Publish the load, then the end."""
        asyncio.run(self._drive(load, end))

    async def _drive(self, load: Iterable[Any], end: bytes) -> None:
        async with self.participant(0) as participant:
            writer = participant.writer(Topic("t", order=self.order))
            await writer.wait_matched(self.subscribers, timeout_s=CONNECT_S)
            await self._write(writer, load)
            await writer.flush()
            for _ in range(ENDS):
                writer.write(end)
                await asyncio.sleep(END_PAUSE_S)
            with contextlib.suppress(TimeoutError):
                await writer.flush(timeout_s=1)

    async def _write(self, writer: Writer, load: Iterable[Any]) -> None:
        """Write several messages at once, or one when there is time for it."""
        waiting: list[bytes] = []
        wait = waiting.append
        for message in load:
            if type(message) is bytes:
                wait(message)
                continue
            if message is None:
                if len(waiting) * len(waiting[0]) < WRITE_BYTES:
                    continue
                pause_s = 0.0
            else:
                pause_s = message / 1e9
            if waiting:
                writer.write_many(waiting)
                waiting.clear()
            await asyncio.sleep(pause_s)
            await writer.drain()
        writer.write_many(waiting)

    @classmethod
    def sub(cls, k: int, sink: Any) -> None:
        """Read into the sink until it has had enough."""
        asyncio.run(cls._sub(k, sink))

    @classmethod
    async def _sub(cls, k: int, sink: Any) -> None:
        async with cls.participant(k + 1) as participant:
            participant.reader(
                Topic("t", order=cls.order), callback=lambda sample: sink(sample.data)
            )
            sink.ready()
            while not sink.stop:
                await asyncio.sleep(STOP_PAUSE_S)


class UnorderedSingly(Unorderedly):
    """Orderwire, no order, reliable, a `write` for each message"""

    async def _write(self, writer: Writer, load: Iterable[Any]) -> None:
        write = writer.write
        for message in load:
            if type(message) is bytes:
                write(message)
            else:
                await asyncio.sleep(message / 1e9 if message else 0)
                await writer.drain()


class FifoOrder(Unorderedly):
    """Orderwire, FIFO, reliable"""

    order = Fifo()


class FifoSingly(UnorderedSingly):
    """Orderwire, FIFO, reliable, a `write` for each message"""

    order = FifoOrder.order


class DeltaCausalOrder(Unorderedly):
    """Orderwire, Δ-causal; the publisher waits for room"""

    order = DeltaCausal(lifetime_ms=LIFETIME_MS)


class DeltaCausalSingly(UnorderedSingly):
    """Orderwire, Δ-causal, a `write` for each message"""

    order = DeltaCausalOrder.order


ALL = {
    "ours-unordered": Unorderedly,
    "ours-fifo": FifoOrder,
    "ours-delta-causal": DeltaCausalOrder,
    "ours-unordered-singly": UnorderedSingly,
    "ours-fifo-singly": FifoSingly,
    "ours-delta-causal-singly": DeltaCausalSingly,
}
