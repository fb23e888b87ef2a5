"""A relay of the demo's order book, which stands in the row of its group's relays."""

import asyncio

import msgspec

from orderwire.aio.addresses import join_address
from orderwire.aio.total_relay import ChannelRelay
from orderwire.aio.total_views import RelayPlace
from orderwire.aio.zookeeper_client import ClientSettings
from orderwire.cli.demo.children import Leader
from orderwire.cli.demo.settings import BOOK, RELAY_SESSION_MS, RelayChildSettings
from orderwire.kernel import ms


async def _run(leader: Leader) -> None:
    settings = msgspec.json.decode(await leader.settings(), type=RelayChildSettings)
    relay = await ChannelRelay.open(("127.0.0.1", 0))
    relay.reuses_ids = True
    place = RelayPlace(
        settings.zookeeper,
        BOOK,
        join_address(*relay.address),
        renewed=relay.renew,
        client=ClientSettings(session_ns=ms(RELAY_SESSION_MS)),
    )
    try:
        await place.enter()
        leader.say("standing")
        await leader.order()
        leader.say("left", pdus=relay.next_csn - 1)
    finally:
        await place.close()
        await relay.close()


if __name__ == "__main__":
    asyncio.run(_run(Leader()))
