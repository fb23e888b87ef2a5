"""One member of a group with views, as a process: ZOOKEEPER GROUP LEAST LOG SEED TRACE.

It writes what it does to LOG, line by line, and traces in the folder TRACE, until it is told `stop`
or `quit` on its standard input: at `stop` it writes no more, at `quit` it leaves.
"""

import asyncio
import json
import sys
from pathlib import Path
from random import Random

from words import words_heard

from orderwire import LocalProtocolError, TotalGroup, TotalMessage, Trace
from orderwire.kernel import members_of


async def main(zookeeper: str, name: str, least: int, log: Path, seed: str, folder: Path) -> None:
    """Write to subsets and note everything."""
    words = words_heard()
    chance = Random(seed)
    with log.open("w", buffering=1) as out:

        def note(**what: object) -> None:
            out.write(json.dumps(what) + "\n")

        trace = Trace(run=name, path=folder, flush_interval_ms=20)
        group = await TotalGroup.enter(
            zookeeper, name, least=least, session_ns=2_000_000_000, trace=trace
        )
        me = int(group.me)
        note(kind="entered", me=me)

        async def read() -> None:
            async for event in group.events():
                if isinstance(event, TotalMessage):
                    note(
                        kind="delivered",
                        message=f"{event.payload.decode()}",
                        to=[*map(int, members_of(event.destinations))],
                    )
                else:
                    note(
                        kind="view", number=event.number, members=[m.process for m in event.members]
                    )

        async def write() -> None:
            number = 0
            while True:
                members = [*map(int, group.members)]
                to = sorted(chance.sample(members, chance.randrange(1, len(members) + 1)))
                try:
                    await group.write(f"{seed}-{number}".encode(), to)
                except LocalProtocolError:
                    return
                note(kind="written", message=f"{seed}-{number}", to=to)
                number += 1
                await asyncio.sleep(0.002)

        reading = asyncio.create_task(read())
        writing = asyncio.create_task(write())
        word = await words.get()
        if word == "stop":
            writing.cancel()
            await group.settled()
            note(kind="settled")
            word = await words.get()
        writing.cancel()
        await group.close()
        await reading
        note(kind="left")


if __name__ == "__main__":
    where, group_name, fewest, log_file, own_seed, trace_folder = sys.argv[1:]
    asyncio.run(main(where, group_name, int(fewest), Path(log_file), own_seed, Path(trace_folder)))
