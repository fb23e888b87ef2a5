"""One participant of `discovery_restart.py`: tells whom it knows and how many read what it writes.

    restart_node.py NAME BOOTSTRAP LISTEN write|read

It prints a JSON line with the monotonic time whenever something changes, and leaves at the end of
its input.
"""

import asyncio
import json
import sys
import time
from typing import Any

from orderwire import DeltaCausal, Participant, Topic

DOMAIN = "restart"
TOPIC = Topic("state", DeltaCausal(lifetime_ms=250))
LOOK_S = 0.005
PAUSE_S = 0.1
"""Between two messages of a writer."""


def tell(**what: Any) -> None:
    """Print one line."""
    print(json.dumps({"at_ns": time.monotonic_ns()} | what), flush=True)


async def main() -> None:
    name, bootstrap, listen, role = sys.argv[1:5]
    tell(opening=True)
    async with Participant(name, domain=DOMAIN, bootstrap=bootstrap, listen=listen) as me:
        tell(listens=me.listens)
        writer = me.writer(TOPIC) if role == "write" else None
        if writer is None:
            me.reader(TOPIC, callback=lambda sample: None)
        over = asyncio.get_running_loop().run_in_executor(None, sys.stdin.buffer.read)
        told: Any = None
        next_write = 0.0
        while not over.done():
            now = {peer.name: peer.inc for peer in me.peers()}, writer and writer.matched
            if now != told:
                told = now
                tell(known=now[0], matched=now[1])
            if writer is not None and time.monotonic() >= next_write:
                next_write = time.monotonic() + PAUSE_S
                writer.write(b"state")
            await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    asyncio.run(main())
