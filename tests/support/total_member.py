"""One member of a fixed group, as a process: RELAY ME MEMBERS COUNT; it prints its log."""

import asyncio
import json
import sys
from random import Random

from total_groups import Told, write_to_subsets

from orderwire import TotalGroup

END = b"end"


async def main(relay: str, me: int, members: int, count: int) -> None:
    """Write to subsets, and read until everybody has written all."""
    told = Told(members)
    async with await TotalGroup.join(relay, me=me, members=members) as group:

        async def write() -> None:
            await write_to_subsets(group, told, count, Random(f"processes/{me}"), pause_s=0.001)
            told.wrote(me, await group.write(END), range(members))

        writing = asyncio.create_task(write())
        ends = 0
        async for message in group:
            told.received[me].append((int(message.source), message.number))
            ends += message.payload == END
            if ends == members:
                break
        await writing
    sent = [(number, sorted(told.destinations[me, number])) for _, number in told.sent[me]]
    print(json.dumps({"sent": sent, "received": told.received[me]}))


if __name__ == "__main__":
    _, where, own, size, messages = sys.argv
    asyncio.run(main(where, int(own), int(size), int(messages)))
