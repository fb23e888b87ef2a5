"""What total order costs on a shared channel: transmissions and slots, by protocol and load.

A slot is the time of one PDU.  Messages come one by one from drawn sources to d drawn destinations,
every `gap` slots on average, or all at once (saturating).  A unicast takes a slot like a broadcast.
"""

from collections.abc import Mapping
from functools import partial
from statistics import fmean

import msgspec

from orderwire.kernel import Destinations, ProcessId, destinations
from orderwire.kernel.chance import stream
from orderwire.ordering.total.catalog import TotalAlgorithm
from orderwire.ordering.total.csn_pdu import Blank, Named
from orderwire.ordering.total.pdu import Nak, Rst, RstAck, RstPak, Rtx
from orderwire.ordering.total.settings import Delivery, TotalSettings
from orderwire.sim.selective_total_run import SLOT_NS, Plan, run
from orderwire.sim.serial_channel import ChannelSettings

SPARED: tuple[type, ...] = (Rst, RstPak, RstAck, Rtx, Nak, Blank, Named)
"""ST's control PDUs: the specification's losses hit DATA and NULL only."""
LAG_NS = SLOT_NS
"""A receiver takes a PDU at most this much after it was on the channel, half of it on average."""


class Load(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked of a group, and on which channel."""

    members: int = 10
    destinations: int = 5
    messages: int = 200
    gap_slots: float | None = None
    """Mean time between two messages, exponential; None: all are asked for at once."""
    loss: float = 0.0
    """f."""
    spares_control: bool = True
    """Whether f is of messages and NULLs only, and control PDUs of ST are spared."""
    control_slots: int = 200
    """After how long a control PDU is repeated, and asked again for what is missing."""
    ack_slots: int = 10
    """T_ack."""
    delivery: Delivery = Delivery.PREACK
    window: int = 8
    seed: int = 1


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One point of a figure."""

    protocol: str
    load: Load
    transmissions: float
    """PDUs on the channel for a message, all of them."""
    latency_slots: float
    """Mean time from the request to a delivery."""
    recoveries: int
    repeated: float
    """PDUs that carry a message once more, for a message."""
    behind: float
    """Messages behind a failure line at a member, for a message: ST sorts them, go-back drops
    them."""
    control: float
    """RST, RST_PAK and RST_ACK for a recovery; 0 without one."""
    mending: float
    """What mends losses and carries no message, for a message: those, NAK, and ST-CSN's own."""
    pause_slots: float
    """How long a recovery's control PDUs take, the first to the last."""
    slots: float
    """Duration until the last delivery, for a message."""


def measure(entry: TotalAlgorithm, load: Load) -> Row:
    """Run one protocol under one load.  Raises ValueError when it breaks what it promises."""
    # Where nothing is lost, polls would only blur what a message costs.
    heartbeat_ns = SLOT_NS * (8 * load.ack_slots if load.loss else 10_000)
    settings = TotalSettings(
        members=load.members,
        delivery=load.delivery,
        window=load.window,
        ack_delay_ns=load.ack_slots * SLOT_NS,
        heartbeat_ns=heartbeat_ns,
        heartbeat_max_ns=10 * heartbeat_ns,
        control_ns=load.control_slots * SLOT_NS,
        nak_ns=load.control_slots * SLOT_NS,
        guard_ns=20 * SLOT_NS,
    )
    plan = Plan(
        settings=settings,
        channel=ChannelSettings(
            slot_ns=SLOT_NS,
            loss=load.loss,
            spared=SPARED if load.spares_control else (),
            lag_ns=LAG_NS,
        ),
        messages=_messages(load),
    )
    create = entry.create
    if entry.name.startswith("totem"):
        create = partial(create, hold_ns=0)
    outcome = run(plan, load.seed, create, promises=entry.promises)
    if outcome.violations:
        raise ValueError(f"{entry.name} under {load}: {outcome.violations[0]}")
    return Row(
        protocol=entry.name,
        load=load,
        transmissions=outcome.put_by_last / load.messages,
        latency_slots=fmean(outcome.latencies_ns) / SLOT_NS,
        recoveries=outcome.recoveries,
        repeated=outcome.again / load.messages,
        behind=outcome.behind / load.messages / load.members,
        control=outcome.control / max(1, outcome.recoveries),
        mending=(outcome.control + outcome.asked) / load.messages,
        pause_slots=outcome.paused_ns / SLOT_NS / max(1, outcome.recoveries),
        slots=outcome.last_ns / SLOT_NS / load.messages,
    )


def table(entries: Mapping[str, TotalAlgorithm], loads: tuple[Load, ...]) -> list[Row]:
    """Return one row for every protocol and load."""
    return [measure(entry, load) for entry in entries.values() for load in loads]


def _messages(load: Load) -> tuple[tuple[int, ProcessId, Destinations], ...]:
    chance = stream(load.seed, "load")
    when = 0.0
    found = []
    for _ in range(load.messages):
        if load.gap_slots is not None:
            when += chance.expovariate(1.0) * load.gap_slots * SLOT_NS
        source = ProcessId(chance.randrange(load.members))
        mask = destinations(chance.sample(range(load.members), load.destinations))
        found.append((int(when), source, mask))
    return tuple(found)
