"""Two publishers of one topic: what is ordered with what, in each order.

Ana publishes two readings; Ben, who reads them, publishes two remarks on them.  Carl reads both.
The way from Ana to Carl is slow.  Each sample says who wrote it and which of its author's it is.
"""

import asyncio

from orderwire import DeltaCausal, Fifo, Order, Participant, Sample, Topic

MEMBERS = {"ana": "127.0.0.1:7431", "ben": "127.0.0.1:7432", "carl": "127.0.0.1:7433"}
CARL = 2


class SlowToCarl:
    """An impairment: what is sent to Carl takes 60 ms, everything else no time."""

    def fate(self, to: int, data: bytes) -> list[int]:
        return [60_000_000] if to == CARL else [0]


async def publish(order: Order) -> list[Sample]:
    topic = Topic("plant/boiler", order)
    async with (
        Participant("ana", members=MEMBERS, impairment=SlowToCarl()) as ana,
        Participant("ben", members=MEMBERS) as ben,
        Participant("carl", members=MEMBERS) as carl,
    ):
        readings, remarks = ana.writer(topic), ben.writer(topic)

        def remark(sample: Sample) -> None:
            remarks.write(b"seen: " + sample.data)

        ben.reader(topic, callback=remark, own=False)
        reader = carl.reader(topic)
        await readings.wait_matched(2)
        await remarks.wait_matched(1)
        readings.write(b"81 degrees")
        readings.write(b"99 degrees")
        return [await reader.read() for _ in range(4)]


async def main() -> None:
    for order, promise in (
        (Fifo(), "each author's in turn, nothing between the two"),
        (DeltaCausal(lifetime_ms=1_000), "and nothing before what its author had read"),
    ):
        print(f"{type(order).__name__}: {promise}")
        for sample in await publish(order):
            print(f"  {sample.source} #{sample.number}: {sample.data.decode()}")


asyncio.run(main())
