"""One participant with topics in one total order, as a process: ZOOKEEPER NAME LOG READS TRACE.

It finds the others through ZooKeeper, reads the topics that match the pattern READS, and writes to
all.  What it does it writes to LOG, line by line, until it is told `stop` or `quit` on its standard
input: at `stop` it writes no more, at `quit` it leaves.
"""

import asyncio
import json
import sys
from pathlib import Path

from words import words_heard

from orderwire import (
    LocalProtocolError,
    MemberChange,
    Participant,
    Reader,
    SelectiveTotal,
    Topic,
    Trace,
)

TOPICS = ("book/left/none", "book/left/right", "book/none/right")
ORDER = SelectiveTotal(group="books", least=3)


async def main(zookeeper: str, name: str, log: Path, reads: str, folder: str) -> None:
    """Write to topics and note everything."""
    words = words_heard()
    with log.open("w", buffering=1) as out:

        def note(**what: object) -> None:
            out.write(json.dumps(what) + "\n")

        async def read(reader: Reader) -> None:
            try:
                async for event in reader.events():
                    if isinstance(event, MemberChange):
                        note(kind="change", member=event.member, entered=event.entered)
                    else:
                        message = f"{event.topic} {event.source} {event.data.decode()}"
                        note(kind="delivered", message=message)
            except LocalProtocolError as error:
                note(kind="reader lost", why=str(error))

        async def write(participant: Participant) -> None:
            writers = [participant.writer(Topic(topic, ORDER)) for topic in TOPICS]
            number = 0
            try:
                while True:
                    for writer in writers:
                        written = writer.write(f"{number}".encode())
                        if written is not None:
                            message = f"{writer.topic.name} {name} {number}"
                            note(kind="written", message=message, members=written.members)
                        await writer.drain()
                    number += 1
                    await asyncio.sleep(0.005)
            except LocalProtocolError as error:
                note(kind="writer lost", why=str(error))

        trace = Trace(run="r", path=folder)
        async with Participant(
            name, domain="books", zookeeper=zookeeper, trace=trace
        ) as participant:
            reading = asyncio.create_task(read(participant.reader(reads, order=ORDER)))
            writing = asyncio.create_task(write(participant))
            word = await words.get()
            writing.cancel()
            if word == "stop":
                await participant.flush(60)
                note(kind="settled")
                await words.get()
        await reading
        note(kind="left")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], sys.argv[5]))
