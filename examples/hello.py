"""From import to the first message: one participant writes, another one reads."""

import asyncio

from orderwire import DeltaCausal, Participant, Topic

MEMBERS = {"ana": "127.0.0.1:7401", "ben": "127.0.0.1:7402"}
ROOM = Topic("chat/room", order=DeltaCausal(lifetime_ms=250))


async def main() -> None:
    async with (
        Participant("ana", members=MEMBERS) as ana,
        Participant("ben", members=MEMBERS) as ben,
    ):
        writer, reader = ana.writer(ROOM), ben.reader("chat/*", order=ROOM.order)
        await writer.wait_matched(1)
        writer.write(b"Hello, Ben!")
        async for sample in reader:
            print(f"{sample.source} wrote to {sample.topic}: {sample.data.decode()}")
            break


asyncio.run(main())
