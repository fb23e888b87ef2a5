"""A traced member of a domain in a process of its own, for tests that kill and restart it.

`python traced_member.py SETTINGS`: name, domain, bootstrap, listen, wish, folder in JSON.  It reads
`chat`, writes `answers` to what it reads, and prints {"listens", "id"} when it is there and
{"heard"} for each sample.  It leaves when its standard input ends.
"""

import asyncio
import json
import sys
from typing import Any

from orderwire import DeltaCausal, Participant, Sample, Topic, Trace

ORDER = DeltaCausal(lifetime_ms=1_000)
CHAT, ANSWERS = Topic("chat", ORDER), Topic("answers", ORDER)
RUN = "test"
SLACK_MS = 2_000
"""How late a busy machine may run a member: what it reads then looks younger by as much."""


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


async def _live(settings: dict[str, Any]) -> None:
    async with Participant(
        settings["name"],
        domain=settings["domain"],
        bootstrap=settings["bootstrap"],
        listen=settings["listen"],
        wish=settings["wish"],
        trace=Trace(
            run=RUN, path=settings["folder"], flush_interval_ms=50, timer_slack_ms=SLACK_MS
        ),
    ) as member:
        answers = member.writer(ANSWERS)

        def answer(sample: Sample) -> None:
            answers.write(sample.data)
            say(heard=sample.data.decode())

        member.reader(CHAT, callback=answer)
        say(listens=member.listens, id=int(member.id))
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_live(json.loads(sys.argv[1])))
