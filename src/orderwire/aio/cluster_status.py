"""What the brokers of a cluster say of themselves, asked over their internal listeners."""

import asyncio
import contextlib
from typing import Any

import msgspec

from orderwire.aio.addresses import split_address
from orderwire.aio.cluster_frames import ADMINISTRATOR, VERSION, FrameKind, Hello, plain_frame
from orderwire.aio.cluster_link import Link
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.zookeeper_client import ZookeeperClient
from orderwire.aio.zookeeper_errors import NoZnode
from orderwire.broker.coordination.layout import (
    BROKERS,
    BrokerData,
    broker_path,
    decode,
    decode_broker_id,
)

STATUS_WAIT_S = 5.0
"""How long a broker may take to answer."""


async def ask_status(address: str, tls: Credentials | None = None) -> dict[str, Any]:
    """Return a broker's status.  Raises OSError, TimeoutError, LocalProtocolError."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[dict[str, Any]] = loop.create_future()

    def received(link: Link, kind: int, content: memoryview) -> None:
        if kind == FrameKind.STATUS and not answer.done():
            answer.set_result(msgspec.json.decode(content, type=dict[str, Any]))

    def greeted(link: Link, hello: Hello) -> None:
        link.send(plain_frame(FrameKind.STATUS))
        link.flush()

    def ended(link: Link, why: str) -> None:
        if not answer.done():
            answer.set_exception(ConnectionError(f"{address}: {why}"))

    host, port = split_address(address)
    hello = Hello(VERSION, "", ADMINISTRATOR, "", 1, ADMINISTRATOR)
    async with asyncio.timeout(STATUS_WAIT_S):
        _, link = await loop.create_connection(
            lambda: Link(
                hello=hello,
                greeted=greeted,
                received=received,
                settled=lambda: None,
                ended=ended,
            ),
            host,
            port,
            ssl=None if tls is None else tls.client,
        )
        try:
            return await answer
        finally:
            link.close("asked")


async def find_brokers(client: ZookeeperClient) -> dict[int, BrokerData]:
    """Return the brokers that live, ascending.  Raises Malformed, ZookeeperUnavailable."""
    found: dict[int, BrokerData] = {}
    try:
        names = await client.children(BROKERS)
    except NoZnode:
        return found
    for name in names:
        broker = decode_broker_id(f"{BROKERS}/{name}", name)
        with contextlib.suppress(NoZnode):
            znode = await client.get(broker_path(broker))
            found[broker] = decode(BrokerData, broker_path(broker), znode.data)
    return dict(sorted(found.items()))
