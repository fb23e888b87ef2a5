"""Leading the traders: one order book, whose relay is killed in the middle."""

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from matplotlib.figure import Figure

from orderwire.cli.demo.audits import audit_told, checks_table
from orderwire.cli.demo.children import Child
from orderwire.cli.demo.settings import (
    BOOK,
    INSTRUMENTS,
    RELAY_SESSION_MS,
    TRADERS,
    TraderSettings,
    Update,
)
from orderwire.kernel import NS_PER_S
from orderwire.participant.topics import Pattern
from orderwire.report.html import Section, Table
from orderwire.report.order_figure import Handed, order_figure
from orderwire.report.style import save
from orderwire.verify.report import RunReport
from orderwire.verify.verdict import Verdict

READY_SECONDS_MAX = 120.0
"""Spark starts meanwhile."""
TRADE_SECONDS_MAX = 60.0
LEAVE_SECONDS_MAX = 30.0
KILL_AFTER_S = 1.0
"""After the trade has begun."""


class FoundTrader(msgspec.Struct, frozen=True, kw_only=True):
    """One trader, as it was in the end."""

    name: str
    reads: str
    written: int
    updates: int
    """How many it was handed."""
    longest_pause_ms: float
    """Between two updates that it was handed: while the relay was dead."""
    stands: dict[str, str]
    """Whose price stands for each instrument that it reads."""
    digests: dict[str, str]
    """Of the updates of each, in the order in which it was handed them."""


class FoundFloor(msgspec.Struct, frozen=True, kw_only=True):
    """What the traders told."""

    traders: list[FoundTrader]
    trace: str
    """Folder of their traces."""
    logs: dict[str, list[Update]]
    """By trader: what it was handed, in that order."""
    killed_ns: int
    """When the relay was killed, since the Unix epoch."""

    @property
    def equal(self) -> bool:
        """Whether all who read an instrument have had its updates in one order."""
        return all(
            len({each.digests.get(name) for each in self.traders if _reads(each.reads, name)}) == 1
            for name in INSTRUMENTS
        )

    @property
    def complete(self) -> bool:
        """Whether each was handed all that was written of what it reads."""
        each_writes = {each.name: each.written // len(INSTRUMENTS) for each in self.traders}
        written = sum(each_writes.values())
        return all(
            each.updates == written * sum(_reads(each.reads, name) for name in INSTRUMENTS)
            for each in self.traders
        )


async def trade(
    run: str, zookeeper: str, folder: Path, logs: Path, started: list[Child]
) -> FoundFloor:
    """Let the traders trade and leave; each process is added to `started` at once."""
    relays = []
    for number in (1, 2):
        relay = await _start_relay(f"relay-{number}", zookeeper, logs)
        started.append(relay)
        await relay.wait_until_running(READY_SECONDS_MAX)
        relays.append(relay)
    trace = folder / BOOK
    readers = {name: sum(_reads(reads, name) for reads in TRADERS.values()) for name in INSTRUMENTS}
    traders = []
    for name, reads in TRADERS.items():
        settings = TraderSettings(
            name=name,
            reads=reads,
            traders=len(TRADERS),
            readers=readers,
            run=run,
            trace=str(trace),
            zookeeper=zookeeper,
        )
        trader = await Child.start(name, "orderwire.cli.demo.trader", settings, logs)
        started.append(trader)
        traders.append(trader)
    await _all(traders, "ready", READY_SECONDS_MAX)
    await asyncio.gather(*(each.tell({"do": "trade"}) for each in traders))
    await asyncio.sleep(KILL_AFTER_S)
    relays[0].kill()
    killed_ns = time.time_ns()
    traded = await _all(traders, "traded", TRADE_SECONDS_MAX)
    await asyncio.gather(*(each.tell({"do": "leave"}) for each in traders))
    left = await _all(traders, "left", LEAVE_SECONDS_MAX)
    await relays[1].stop()
    return FoundFloor(
        traders=[
            FoundTrader(
                name=name,
                reads=reads,
                written=before["written"],
                updates=len(after["updates"]),
                longest_pause_ms=after["longest_pause_ms"],
                stands=after["stands"],
                digests=after["digests"],
            )
            for (name, reads), before, after in zip(TRADERS.items(), traded, left, strict=True)
        ],
        trace=str(trace),
        logs={
            name: msgspec.convert(after["updates"], list[Update])
            for name, after in zip(TRADERS, left, strict=True)
        },
        killed_ns=killed_ns,
    )


async def _start_relay(name: str, zookeeper: str, logs: Path) -> Child:
    """Start a relay that stands in the row of the book's relays."""
    where = ("--listen=127.0.0.1:0", f"--zookeeper={zookeeper}", f"--group={BOOK}")
    session = f"--session-ms={RELAY_SESSION_MS}"
    return await Child.command(name, "channel", *where, session, folder=logs)


async def _all(traders: list[Child], what: str, seconds: float) -> list[dict[str, Any]]:
    return await asyncio.gather(*(each.wait_for(what, seconds) for each in traders))


def _reads(pattern: str, topic: str) -> bool:
    return Pattern(pattern).matches(topic)


def floor_told(found: FoundFloor, audit: RunReport) -> dict[str, Any]:
    """Return what the demo's JSON tells of the book."""
    return {
        "traders": msgspec.to_builtins(found.traders),
        "trace": found.trace,
        "equal": found.equal,
        "complete": found.complete,
        "audit": audit_told(audit),
    }


def floor_holds(told: dict[str, Any]) -> bool:
    """Whether the book kept what `SelectiveTotal` promises."""
    valid: bool = told["audit"]["verdict"] == Verdict.VALID.value
    return valid and told["equal"] and told["complete"]


def floor_sections(told: dict[str, Any], found: FoundFloor, figures: Path) -> list[Section]:
    """The report's part on the book, from what the JSON tells; its figure is written there."""
    rows: list[list[object]] = []
    for each in told["traders"]:
        row: list[object] = [
            each["name"],
            each["reads"],
            each["written"],
            each["updates"],
            f"{each['longest_pause_ms']:.0f}",
        ]
        rows.append(row + [each["digests"].get(name, "–") for name in INSTRUMENTS])
    columns = ["trader", "reads", "written", "updates read", "longest pause ms", *INSTRUMENTS]
    return [
        Section(
            title="One order book",
            text="Four traders, each a process, write prices of four instruments; each message goes"
            " to those alone who read its topic, in one order for all (SelectiveTotal). The"
            " relay was killed in the middle, and another took over. In the figure's lower part a"
            " dot is an update that a trader was handed, from left to right in its order, and a"
            " line joins those who were handed the same one: where two traders disagree, lines"
            " cross."
            f" Spark, from the members' traces: {_verdicts(told['audit'])}. Below an instrument: a"
            " digest of all its updates in the order in which the trader was handed them.",
            svg=save(_figure(found), figures, "book")[0],
            table=Table(columns, rows),
        ),
        Section(
            title="What the book's audit checked",
            text="The members' traces: what each sent, received and was handed, and each view.",
            table=checks_table(told["audit"]),
        ),
    ]


def _figure(found: FoundFloor) -> Figure:
    first_ns = min((log[0].time_ns for log in found.logs.values() if log), default=found.killed_ns)
    logs = {
        name: [
            Handed(
                (each.time_ns - first_ns) / NS_PER_S, (each.source, each.number), each.instrument
            )
            for each in log
        ]
        for name, log in found.logs.items()
    }
    return order_figure(logs, (found.killed_ns - first_ns) / NS_PER_S, "the relay is killed")


def _verdicts(audit: Mapping[str, Any]) -> str:
    promised = [check for check in audit["checks"] if check["promised"]]
    return ", ".join(f"{check['id']} {check['verdict']}" for check in promised)
