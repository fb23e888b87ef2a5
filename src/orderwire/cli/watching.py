"""`orderwire participant --watch`: who is in the domain, what they offer, and what matches."""

import asyncio
import time
from typing import Any

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table

from orderwire.aio.addresses import join_address
from orderwire.cli.output import emit_json
from orderwire.discovery.maps import EndpointKind
from orderwire.participant import ForeignPeer, Participant

LOOK_S = 0.2
"""How often the table is drawn anew; what has not changed is not printed again."""
TOPICS_SHOWN = 6
_REACHABLE = {None: "", True: "reachable", False: "not reachable"}
"""What is said of the data address of another domain's participant."""


def seen(participant: Participant) -> list[dict[str, Any]]:
    """Return the other participants as JSON objects, by id, those of other domains last."""
    connected = set(participant.connected)
    rows = []
    for peer in participant.peers():
        is_connected = not isinstance(peer, ForeignPeer) and peer.name in connected
        reachable = peer.reachable if isinstance(peer, ForeignPeer) else is_connected or None
        by_kind: dict[EndpointKind, list[str]] = {kind: [] for kind in EndpointKind}
        for endpoint in peer.map.endpoints:
            by_kind[endpoint.kind].append(endpoint.topic)
        rows.append(
            {
                "domain": peer.domain,
                "id": peer.id,
                "name": peer.name,
                "incarnation": peer.inc,
                "listens": peer.listens,
                "data": None if peer.address is None else join_address(*peer.address),
                "connected": is_connected,
                "reachable": reachable,
                "writes": sorted(by_kind[EndpointKind.WRITER]),
                "reads": sorted(by_kind[EndpointKind.READER]),
                "shared": participant.shared_topics(peer),
            }
        )
    return rows


async def watch(participant: Participant, stop: asyncio.Event, *, as_json: bool) -> None:
    """Show who is there until `stop`: a live table, or a JSON line whenever it changes."""
    own = {"id": participant.id, "name": participant.name}
    if as_json:
        told: dict[str, Any] | None = None
        while not stop.is_set():
            now = {"me": own, "participants": seen(participant)}
            if participant.gateway is not None:
                now["gateway"] = msgspec.to_builtins(participant.gateway)
            if now != told:
                told = now
                emit_json({"time": time.time(), **now})
            await _pause(stop)
        return
    console = Console(stderr=True)
    with Live(_table(participant, seen(participant)), console=console, auto_refresh=False) as live:
        while not stop.is_set():
            live.update(_table(participant, seen(participant)), refresh=True)
            await _pause(stop)


async def _pause(stop: asyncio.Event) -> None:
    try:
        async with asyncio.timeout(LOOK_S):
            await stop.wait()
    except TimeoutError:
        pass


def _table(participant: Participant, rows: list[dict[str, Any]]) -> Table:
    title = f"{participant.name} is {participant.id}; {len(rows)} others{_role(participant)}"
    table = Table("domain", "id", "name", "data", "", "writes", "reads", "shared", title=title)
    for row in rows:
        table.add_row(
            row["domain"],
            str(row["id"]),
            row["name"],
            row["data"] or "",
            "connected" if row["connected"] else _REACHABLE[row["reachable"]],
            _shortened(row["writes"]),
            _shortened(row["reads"]),
            _shortened(row["shared"]),
        )
    return table


def _role(participant: Participant) -> str:
    gateway = participant.gateway
    if gateway is None:
        return ""
    return f"; a gateway to {', '.join(gateway.ids)}" if gateway.acting else "; no gateway now"


def _shortened(topics: list[str]) -> str:
    shown = ", ".join(topics[:TOPICS_SHOWN])
    more = len(topics) - TOPICS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
