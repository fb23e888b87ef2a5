"""One participant for the peers' harness `disc.py`: how long until it knows every endpoint.

    discovery_node.py I N ENDPOINTS TOTAL DEADLINE IP HUB

Its MAP says how many endpoints it has, so that no MAP is read while time is taken; afterwards all
are, and their endpoints counted: not before the others are likely to be done too, as they share the
processors.
"""

import asyncio
import json
import os
import resource
import sys
import time
from random import Random
from typing import Any

from orderwire.aio.discovery_host import DiscoveryHost
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.discovery.commands import Ended, Joined, Learnt, Start, Unreachable
from orderwire.discovery.entrance import ServerEntrance
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.map_codec import CompactMaps, decode, decode_participant, encode_map
from orderwire.discovery.maps import EndpointData, EndpointKind, Map, ParticipantData
from orderwire.kernel import NS_PER_S
from orderwire.participant.domain_settings import LIVE_SETTINGS

PORT = 7411
SERVER_PORT = 7400
DOMAIN = "bench"
READ_AFTER_S = 1.0
QOS = (("reliability", "reliable"), ("durability", "volatile"), ("order", "bounded-jang"))


def own_map(index: int, members: int, endpoints: int) -> bytes:
    """Return the harness's population: half writers, half readers of the next one's topics."""
    writers = (endpoints + 1) // 2
    rows = [
        EndpointData(
            at,
            EndpointKind.WRITER if at < writers else EndpointKind.READER,
            f"P{index}T{at}" if at < writers else f"P{(index + 1) % members}T{at - writers}",
            "P::Tiny",
            QOS,
        )
        for at in range(endpoints)
    ]
    data = ParticipantData(f"guid-{index}", f"P{index}", (), (("endpoints", str(endpoints)),))
    return encode_map(Map.of(data, rows))


async def main() -> None:
    index, members, endpoints, total = map(int, sys.argv[1:5])
    deadline_s, ip, hub = float(sys.argv[5]), sys.argv[6], sys.argv[7]
    print("ready", flush=True)
    start_ns = int(sys.stdin.readline())
    await asyncio.sleep(max(0.0, (start_ns - time.monotonic_ns()) / NS_PER_S))
    began = time.process_time()
    marks = {"created": 0.0, "parts": 0.0, "all": 0.0}
    known: dict[int, int] = {}
    records: dict[int, Any] = {}
    done = asyncio.Event()

    def since_start() -> float:
        return (time.monotonic_ns() - start_ns) / NS_PER_S

    def tell(indication: object) -> None:
        if isinstance(indication, Joined):
            marks["created"] = since_start()
        elif isinstance(indication, Learnt):
            data = decode_participant(indication.map.full)
            known[indication.id] = int(data.property("endpoints") or 0)
            records[indication.id] = indication.map
            if len(known) == members - 1 and not done.is_set():
                marks["parts"] = marks["all"] = since_start()
                done.set()
        elif isinstance(indication, Ended):
            known.pop(indication.id, None)

    transport = await DiscoveryTransport.open(f"{ip}:{PORT}", domain=DOMAIN, insecure=True)
    chance = Random(f"{index}/{start_ns}")
    guid = f"P{index}/{start_ns}"
    settings = LIVE_SETTINGS
    entrance = ServerEntrance(guid, transport.address, f"{hub}:{SERVER_PORT}", settings)
    core = FdpNode(transport.address, entrance, settings, chance, CompactMaps())
    host: DiscoveryHost[Any, Any] = DiscoveryHost(
        core, transport, tell, unreachable=lambda address: Unreachable(address=address)
    )
    host.submit(Start(map=own_map(index, members, endpoints)))
    try:
        async with asyncio.timeout(deadline_s):
            await done.wait()
    except TimeoutError:
        pass
    cpu_s = time.process_time() - began
    await asyncio.sleep(READ_AFTER_S)
    read = endpoints + sum(len(decode(record).endpoints) for record in records.values())
    if done.is_set() and read != total:
        marks["all"] = 0.0  # somebody's MAP is not what it says
    usage = resource.getrusage(resource.RUSAGE_SELF)
    found = {name: round(value, 4) for name, value in marks.items()}
    found |= {"i": index, "np": len(known) + 1, "ne": read, "cpu": round(cpu_s, 3)}
    print(json.dumps(found | {"rss_mb": usage.ru_maxrss // 1024}), flush=True)
    before, posted = time.monotonic(), sum(host.posted.values())
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
    rate = (sum(host.posted.values()) - posted) / max(1e-9, time.monotonic() - before)
    end = {"cpu_end": round(time.process_time() - began, 3), "posted_per_s": round(rate, 2)}
    print(json.dumps(end | {"posted": dict(host.posted)}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main())
