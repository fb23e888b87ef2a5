"""A member in a process of its own, for tests that stop, kill and restart it.

`python live_member.py SETTINGS` with SETTINGS in JSON: me, members, order, lifetime_ms, readers,
writes, silence_s, reads.  It reads the topics `reads` of the others (all, if not given), writes
`writes` messages to the topic of its own name once so many `readers` match, one every two
milliseconds, and then answers a line of standard input with its counters.  One JSON object a line
on standard output.
"""

import asyncio
import json
import sys
from typing import Any

import msgspec

from orderwire import DeltaCausal, Fifo, Order, Participant, Topic
from orderwire.aio.endpoint import EndpointSettings


def order_of(settings: dict[str, Any]) -> Order:
    if settings["order"] == "fifo":
        return Fifo()
    return DeltaCausal(lifetime_ms=settings["lifetime_ms"])


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def live(settings: dict[str, Any]) -> None:
    me, order = settings["me"], order_of(settings)
    endpoint = EndpointSettings(silence_s=settings["silence_s"])
    async with Participant(me, members=settings["members"], settings=endpoint) as participant:
        heard: dict[str, int] = {}

        def on_sample(sample: Any) -> None:
            heard[sample.source] = heard.get(sample.source, 0) + 1

        for pattern in settings.get("reads", ["*"]):
            participant.reader(pattern, order=order, callback=on_sample, own=False)
        started_ns = participant._opened().started
        writer = participant.writer(Topic(me, order=order))
        await writer.wait_matched(settings["readers"])
        for index in range(settings["writes"]):
            written = writer.write(b"%d %d" % (started_ns, index))
            assert written is not None
            await asyncio.sleep(0.002)  # it is on its way
            say(written=index + 1, members=written.members, after_ns=written.stamp - started_ns)
        await participant.flush()
        say(done=True)
        loop = asyncio.get_running_loop()
        while await loop.run_in_executor(None, sys.stdin.readline):
            await participant.flush()
            say(counters=msgspec.structs.asdict(participant.counters), heard=heard)


asyncio.run(live(json.loads(sys.argv[1])))
