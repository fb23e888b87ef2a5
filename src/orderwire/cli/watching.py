"""`orderwire participant --watch`: who is in the domain, what they offer, and what matches."""

import asyncio
import time
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from orderwire.cli.output import emit_json
from orderwire.discovery.maps import EndpointKind
from orderwire.participant import Participant

LOOK_S = 0.2
"""How often the table is drawn anew; what has not changed is not printed again."""
TOPICS_SHOWN = 6


def seen(participant: Participant) -> list[dict[str, Any]]:
    """Return the other participants as JSON objects, by id."""
    connected = set(participant.connected)
    rows = []
    for peer in participant.peers():
        by_kind: dict[EndpointKind, list[str]] = {kind: [] for kind in EndpointKind}
        for endpoint in peer.map.endpoints:
            by_kind[endpoint.kind].append(endpoint.topic)
        rows.append(
            {
                "id": peer.id,
                "name": peer.name,
                "incarnation": peer.inc,
                "listens": peer.listens,
                "connected": peer.name in connected,
                "writes": sorted(by_kind[EndpointKind.WRITER]),
                "reads": sorted(by_kind[EndpointKind.READER]),
            }
        )
    return rows


async def watch(participant: Participant, stop: asyncio.Event, *, as_json: bool) -> None:
    """Show who is there until `stop`: a live table, or a JSON line whenever it changes."""
    own = {"id": participant.id, "name": participant.name}
    if as_json:
        told: list[dict[str, Any]] | None = None
        while not stop.is_set():
            rows = seen(participant)
            if rows != told:
                told = rows
                emit_json({"time": time.time(), "me": own, "participants": rows})
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
    title = f"{participant.name} is {participant.id}; {len(rows)} others"
    table = Table("id", "name", "listens", "data", "writes", "reads", title=title)
    for row in rows:
        table.add_row(
            str(row["id"]),
            row["name"],
            row["listens"],
            "connected" if row["connected"] else "",
            _shortened(row["writes"]),
            _shortened(row["reads"]),
        )
    return table


def _shortened(topics: list[str]) -> str:
    shown = ", ".join(topics[:TOPICS_SHOWN])
    more = len(topics) - TOPICS_SHOWN
    return f"{shown} and {more} more" if more > 0 else shown
