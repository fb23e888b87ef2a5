"""How long an id that was drawn is not yet ours.  Decision 0018."""

import asyncio

from orderwire.discovery.fdp import FdpNode

SEED_SETTLE_S = 0.5
"""Without a server an id counts as ours when for so long it was, and nobody new was heard of …"""
SEED_SETTLE_MAX_S = 5.0
"""… or when so much time has passed.  Who claims it, too, is news until both have been heard of."""
SEED_LOOK_S = 0.05


async def settle_id(core: FdpNode) -> None:
    """Wait until nobody may claim our id any more; whoever loses it meanwhile takes another."""
    loop = asyncio.get_running_loop()
    known: tuple[int | None, int] = (None, 0)
    now = quiet_since = loop.time()
    latest = now + SEED_SETTLE_MAX_S
    while core.id is None or now < min(quiet_since + SEED_SETTLE_S, latest):
        await asyncio.sleep(SEED_LOOK_S)
        now = loop.time()
        heard = (core.id, max(known[1], len(core.roster.entries)))
        if heard != known:
            known, quiet_since = heard, now
