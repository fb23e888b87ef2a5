"""An order book that two engines match alike, since they have its updates in one order.

Three traders write bids and asks at the same time, lots without a price of their own: whoever comes
first is served first.  Both engines read all of the book, over both topics; Dora watches the bids
alone, and has of them the engines' order.  A relay puts the messages of the group in order.
"""

import asyncio
import json
import subprocess
import sys
from collections import deque

from orderwire import Participant, Reader, SelectiveTotal, Topic

NAMES = ("engine-1", "engine-2", "dora", "ana", "ben", "carl")
MEMBERS = {name: f"127.0.0.1:{7441 + at}" for at, name in enumerate(NAMES)}
LOTS = 40


async def trade(participant: Participant, order: SelectiveTotal) -> None:
    """Bid and ask in turn, as quickly as may be."""
    bids = participant.writer(Topic("book/bids", order))
    asks = participant.writer(Topic("book/asks", order))
    await bids.wait_matched(3)
    await asks.wait_matched(2)
    for number in range(LOTS):
        for writer in (bids, asks):
            writer.write(f"{participant.name} {number}".encode())
            await writer.drain()
        await asyncio.sleep(0)


async def match(reader: Reader) -> list[tuple[str, str]]:
    """Serve bids and asks in the order in which they come."""
    waiting: dict[str, deque[str]] = {"book/bids": deque(), "book/asks": deque()}
    trades = []
    for _ in range(3 * 2 * LOTS):
        sample = await reader.read()
        waiting[sample.topic].append(sample.data.decode())
        if all(waiting.values()):
            trades.append((waiting["book/bids"].popleft(), waiting["book/asks"].popleft()))
    return trades


async def main(relay: str) -> None:
    order = SelectiveTotal(relay=relay)
    people = {name: Participant(name, members=MEMBERS) for name in NAMES}
    async with asyncio.TaskGroup() as opening:
        for each in people.values():
            opening.create_task(each.__aenter__())
    engines = [people[name].reader("book/*", order=order) for name in ("engine-1", "engine-2")]
    bids = people["dora"].reader("book/bids", order=order)
    matching = [asyncio.create_task(match(engine)) for engine in engines]
    await asyncio.gather(*(trade(people[name], order) for name in ("ana", "ben", "carl")))
    one, other = [await each for each in matching]
    seen = [(await bids.read()).data.decode() for _ in range(3 * LOTS)]
    print(f"{len(one)} trades; both engines made the same: {one == other}")
    print(
        f"Dora saw the bids in the order in which they were served: {seen == [b for b, _ in one]}"
    )
    await asyncio.gather(*(each.close() for each in people.values()))


with subprocess.Popen(
    [sys.executable, "-m", "orderwire", "channel", "--listen", "127.0.0.1:0", "--json"],
    stdout=subprocess.PIPE,
    stderr=subprocess.DEVNULL,
) as channel:
    assert channel.stdout is not None
    try:
        asyncio.run(main(json.loads(channel.stdout.readline())["listen"]))
    finally:
        channel.terminate()
