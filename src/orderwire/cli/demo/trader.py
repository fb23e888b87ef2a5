"""A trader: writes updates of all instruments to the order book, and keeps those that it reads."""

import asyncio
from hashlib import blake2b
from random import Random
from typing import Any

import msgspec

from orderwire.cli.demo.children import Leader
from orderwire.cli.demo.settings import (
    BOOK,
    BOOK_INTERVAL_MS,
    BOOK_UPDATES,
    FLOOR,
    INSTRUMENTS,
    TRADER_SESSION_MS,
    TraderSettings,
    Update,
)
from orderwire.kernel import NS_PER_MS
from orderwire.participant import Participant, Sample, SelectiveTotal, Topic, Trace, Writer


class _Book:
    """Whose price stands for each instrument, and a digest of how it came to that.

    The last update counts, so books are equal only if updates came in one order.
    """

    def __init__(self) -> None:
        self.updates: list[Update] = []
        self.longest_pause_ns = 0
        self._digests: dict[str, bytes] = {}
        self._stands: dict[str, str] = {}

    def update(self, sample: Sample) -> None:
        if self.updates:
            pause_ns = sample.delivered - self.updates[-1].time_ns
            self.longest_pause_ns = max(self.longest_pause_ns, pause_ns)
        self.updates.append(Update(sample.delivered, sample.topic, sample.source, sample.number))
        said = f"{sample.source} {sample.data.decode()}"
        self._stands[sample.topic] = said
        before = self._digests.get(sample.topic, b"")
        self._digests[sample.topic] = blake2b(before + said.encode(), digest_size=8).digest()

    def told(self) -> dict[str, Any]:
        """Return it as the leader is told."""
        return {
            "updates": self.updates,
            "longest_pause_ms": round(self.longest_pause_ns / NS_PER_MS, 1),
            "stands": self._stands,
            "digests": {topic: digest.hex() for topic, digest in self._digests.items()},
        }


async def _trade(writers: list[Writer], chance: Random) -> int:
    """Write updates of every instrument in turn; return how many."""
    written = 0
    for _ in range(BOOK_UPDATES):
        for writer in writers:
            await writer.drain()
            written += writer.write(b"%d" % chance.randrange(9_000, 11_000)) is not None
        await asyncio.sleep(BOOK_INTERVAL_MS / 1_000)
    return written


async def _run(leader: Leader) -> None:
    settings = msgspec.json.decode(await leader.settings(), type=TraderSettings)
    order = SelectiveTotal(group=BOOK, least=settings.traders, session_ms=TRADER_SESSION_MS)
    book = _Book()
    async with Participant(
        settings.name,
        domain=FLOOR,
        zookeeper=settings.zookeeper,
        trace=Trace(run=settings.run, path=settings.trace),
    ) as trader:
        trader.reader(settings.reads, order=order, callback=book.update)
        writers = [trader.writer(Topic(name, order)) for name in INSTRUMENTS]
        for writer in writers:
            await writer.wait_matched(settings.readers[writer.topic.name])
        leader.say("ready")
        if await leader.order() is None:
            return
        written = await _trade(writers, Random(settings.name))
        await trader.flush()
        leader.say("traded", written=written)
        if await leader.order() is None:
            return
        await trader.drain()
    leader.say("left", **book.told())


if __name__ == "__main__":
    asyncio.run(_run(Leader()))
