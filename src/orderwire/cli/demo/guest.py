"""A guest of the demo's domain: is there, is killed, comes back and listens to everyone's voice."""

import asyncio

import msgspec

from orderwire.cli.demo.children import Leader
from orderwire.cli.demo.settings import (
    CONTROL,
    DOMAIN,
    LIFETIME_MS,
    ORDERED,
    GuestSettings,
    trace_of,
)
from orderwire.participant import DeltaCausal, Participant, Sample, Unordered


async def _run(leader: Leader) -> None:
    settings = msgspec.json.decode(await leader.settings(), type=GuestSettings)
    guest = Participant(
        settings.name,
        domain=DOMAIN,
        bootstrap=settings.bootstrap,
        wish=settings.me,
        listen=settings.listen,
        trace=trace_of(settings.run, settings.brokers),
        impairment=settings.impairment,
    )
    heard = 0

    def hear(_sample: Sample) -> None:
        nonlocal heard
        heard += 1

    async with guest:
        leader.say("there", listens=guest.listens, id=int(guest.id))
        if settings.listens:
            for order in (
                DeltaCausal(lifetime_ms=LIFETIME_MS, domain=ORDERED),
                Unordered(lifetime_ms=LIFETIME_MS, domain=CONTROL),
            ):
                guest.reader("voice/*", order=order, callback=hear)
        while (told := await leader.order()) is not None and told["do"] != "leave":
            pass
    leader.say("left", heard=heard)


if __name__ == "__main__":
    asyncio.run(_run(Leader()))
