"""How a listener ends: whoever was accepted has its protocol before the owner ends connections."""

import asyncio

from orderwire.aio.tls_listener import TlsListener

_TURNS = 4
"""In so many turns of the loop a connection that was accepted has been given to its protocol."""


async def accept_no_more(server: asyncio.Server | TlsListener) -> None:
    """Close a listener of the running loop.

    The loop accepts in one turn, makes a transport in the next and calls `connection_made` in a
    third.  A server of Python 3.11 that closes between these loses the connection, and its socket
    with it; or its owner, who ends every connection that it knows, hears of one more afterwards,
    which stays open.  So the loop accepts no more first, and what was accepted arrives.
    """
    if isinstance(server, TlsListener):
        server.close()
        await server.wait_closed()
        return
    loop = asyncio.get_running_loop()
    for listener in server.sockets:
        loop.remove_reader(listener.fileno())
    await turns()
    server.close()
    await turns()  # uvloop has accepted until now, one in a turn


async def turns() -> None:
    """Let the loop turn until what was accepted is known, or what was aborted is closed."""
    for _ in range(_TURNS):
        await asyncio.sleep(0)
