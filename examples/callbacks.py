"""Samples by callback, typed data, and counters that return to zero."""

import asyncio
import json
import time

from orderwire import Fifo, Participant, Sample, Topic

MEMBERS = {"sensor": "127.0.0.1:7421", "display": "127.0.0.1:7422"}
HEAT = Topic(
    "plant/boiler/heat",
    order=Fifo(),
    encode=lambda value: json.dumps(value).encode(),
    decode=json.loads,
)


def show(sample: Sample) -> None:
    print(f"{sample.source} #{sample.number}: {sample.data['celsius']} °C")


def store(sample: Sample) -> None:
    time.sleep(0.005)  # a function that blocks belongs into a thread


def failing(sample: Sample) -> None:
    raise ValueError(sample.data["celsius"])


async def main() -> None:
    async with (
        Participant("sensor", members=MEMBERS) as sensor,
        Participant("display", members=MEMBERS) as display,
    ):
        readers = [
            display.reader(HEAT, callback=show),
            display.reader(HEAT, callback=store, in_thread=True),
            display.reader(HEAT, callback=failing, on_error=lambda error, sample: None),
        ]
        writer = sensor.writer(HEAT)
        await writer.wait_matched(3)
        for celsius in (81.5, 82.0, 84.5):
            writer.write({"celsius": celsius})
        await sensor.flush()
        await display.drain()
        for reader in readers:
            counted = reader.counters
            print(f"handed over {counted.handed_over}, failed {counted.failed}", end=", ")
            print(f"pending {reader.pending}")


asyncio.run(main())
