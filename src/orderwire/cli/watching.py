"""`orderwire participant --watch`: who is in the domain, what they offer, and what matches."""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterable
from typing import Any

import msgspec
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from orderwire.aio.addresses import join_address
from orderwire.cli.output import emit_json
from orderwire.discovery.maps import EndpointData, EndpointKind
from orderwire.kernel import NS_PER_MS
from orderwire.participant import ForeignPeer, Participant
from orderwire.participant.samples import DiscoveryCounters
from orderwire.participant.topics import Pattern

LOOK_S = 0.2
"""How often is looked; what has not changed is neither printed nor drawn again."""
TOPICS_SHOWN = 6
NAMES_SHOWN = 6
ROWS_SHOWN = 40
_REACHABLE = {None: "", True: "reachable", False: "not reachable"}
"""What is said of the data address of another domain's participant."""


def seen(participant: Participant) -> list[dict[str, Any]]:
    """Return the other participants as JSON objects, by id, those of other domains last."""
    rows = []
    for peer in participant.peers():
        is_connected = not isinstance(peer, ForeignPeer) and participant.is_connected(peer.id)
        reachable = peer.reachable if isinstance(peer, ForeignPeer) else is_connected or None
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
                "writes": _topics(peer.map.endpoints, EndpointKind.WRITER),
                "reads": _topics(peer.map.endpoints, EndpointKind.READER),
                "shared": participant.shared_topics(peer),
            }
        )
        if isinstance(peer, ForeignPeer):
            rows[-1]["entrance"] = peer.entrance
    return rows


def _topics(endpoints: Iterable[EndpointData], kind: EndpointKind) -> list[str]:
    return sorted({each.topic for each in endpoints if each.kind is kind})


def matched(participant: Participant) -> list[dict[str, Any]]:
    """Return every topic that somebody in our domain writes: who reads it, and who would.

    `other_order` names those whose pattern fits but who ask for another order than is written.
    """
    offers = [(participant.name, participant.endpoints)]
    for peer in participant.peers():
        if not isinstance(peer, ForeignPeer):
            offers.append((peer.name, peer.map.endpoints))
    writers: dict[tuple[str, str], list[str]] = {}
    readers: list[tuple[str, str, Pattern]] = []
    for name, endpoints in offers:
        for each in endpoints:
            order = dict(each.qos).get("order", "")
            if each.kind is EndpointKind.WRITER:
                writers.setdefault((each.topic, order), []).append(name)
            else:
                readers.append((name, order, Pattern(each.topic)))
    rows = []
    for (topic, order), names in sorted(writers.items()):
        fits = [(name, asked) for name, asked, pattern in readers if pattern.matches(topic)]
        others = [f"{name} ({asked})" for name, asked in fits if asked != order]
        rows.append(
            {
                "topic": topic,
                "order": order,
                "writers": sorted(names),
                "readers": sorted(name for name, asked in fits if asked == order),
                "other_order": sorted(others),
            }
        )
    return rows


async def watch(participant: Participant, stop: asyncio.Event, *, as_json: bool) -> None:
    """Show who is there until `stop`: a live table, or a JSON line whenever it changes."""
    if as_json:
        async for told in _changes(participant, stop):
            emit_json({"time": time.time(), **told})
        return
    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        async for told in _changes(participant, stop):
            shown = Group(
                _participants(participant, told["participants"]),
                _matches(told["topics"]),
                Text(_faults(participant.discovery_counters)),
            )
            live.update(shown, refresh=True)


async def _changes(participant: Participant, stop: asyncio.Event) -> AsyncIterator[dict[str, Any]]:
    """Yield what is known, whenever something of it has changed."""
    told: Any = None
    while not stop.is_set():
        found: dict[str, Any] = {
            "me": {"id": participant.id, "name": participant.name},
            "participants": seen(participant),
            "topics": matched(participant),
        }
        if participant.gateway is not None:
            found["gateway"] = msgspec.to_builtins(participant.gateway)
        now = found, _faults(participant.discovery_counters)
        if now != told:
            told = now
            yield found
        try:
            async with asyncio.timeout(LOOK_S):
                await stop.wait()
        except TimeoutError:
            pass


def _participants(participant: Participant, rows: list[dict[str, Any]]) -> Table:
    domains = {row["domain"] for row in rows}
    several = len(domains) > 1
    columns = ("id", "name", "discovery", "data", "", "writes", "reads", "shared")
    table = _table(
        f"{participant.name} is {participant.id}; {len(rows)} others{_role(participant)}",
        ("domain", *columns) if several else columns,
    )
    for row in rows[:ROWS_SHOWN]:
        cells = (
            str(row["id"]),
            row["name"],
            row["listens"],
            row["data"] or "",
            "connected" if row["connected"] else _REACHABLE[row["reachable"]],
            *(_shortened(row[which], TOPICS_SHOWN) for which in ("writes", "reads", "shared")),
        )
        table.add_row(*((row["domain"], *cells) if several else cells))
    return _and_more(table, len(rows))


def _role(participant: Participant) -> str:
    gateway = participant.gateway
    if gateway is None:
        return ""
    return f"; a gateway to {', '.join(gateway.ids)}" if gateway.acting else "; no gateway now"


def _matches(topics: list[dict[str, Any]]) -> Table:
    table = _table(
        "topics that are written", ("topic", "order", "written by", "read by", "not read by")
    )
    for row in topics[:ROWS_SHOWN]:
        others = [_order(each) for each in row["other_order"]]
        people = (row["writers"], row["readers"], others)
        shown = [_shortened(each, NAMES_SHOWN) for each in people]
        table.add_row(row["topic"], _order(row["order"]), *shown)
    return _and_more(table, len(topics))


def _order(text: str) -> str:
    """Shorten what an order is called by: its lifetime in milliseconds, and no defaults."""
    text = re.sub(r"lifetime_ns=(\d+)", lambda found: f"{int(found[1]) / NS_PER_MS:g} ms", text)
    return re.sub(r"\(\)", "", re.sub(r",?(lifetime_ns=None|epsilon_ns=\d+)", "", text))


def _table(title: str, columns: tuple[str, ...]) -> Table:
    return Table(*columns, title=title, title_justify="left", expand=False)


def _and_more(table: Table, rows: int) -> Table:
    if rows > ROWS_SHOWN:
        table.caption = f"and {rows - ROWS_SHOWN} more: --json shows all"
    return table


def _faults(counters: DiscoveryCounters) -> str:
    """Say what peers and strangers did wrong so far."""
    refused = ", ".join(f"{count} {fault}" for fault, count in sorted(counters.refused.items()))
    parts = [f"connections refused: {refused}" if refused else ""]
    parts += [f"malformed: {counters.malformed}" if counters.malformed else ""]
    return "; ".join(part for part in parts if part)


def _shortened(names: list[str], most: int) -> str:
    shown = ", ".join(names[:most])
    more = len(names) - most
    return f"{shown} and {more} more" if more > 0 else shown
