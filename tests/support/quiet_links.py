"""The listener between brokers, without a broker behind it."""

from orderwire.aio.cluster_frames import Codec
from orderwire.aio.cluster_links import ClusterLinks
from orderwire.aio.discovery_tls import Credentials
from orderwire.broker.replication.view import BrokerId


async def quiet_links(tls: Credentials | None = None) -> ClusterLinks:
    """Listen on a free port, as broker 0; nothing that comes is told to anybody."""
    links = ClusterLinks(
        BrokerId(0),
        lambda: "cluster",
        "first",
        Codec({}),
        tls=tls,
        connected=lambda broker: None,
        disconnected=lambda broker: None,
        process_ended=lambda broker: None,
        received=lambda *what: None,
        requested=lambda *what: None,
        settled=lambda: None,
        status=lambda: b"",
    )
    await links.listen("127.0.0.1", 0)
    return links
