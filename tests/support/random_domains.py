"""Random traces of discovery: nearly right, quite wrong, or nonsense, for those who judge them."""

from random import Random

import msgspec

from orderwire.trace.discovery_events import (
    LEFT,
    REPLACED,
    SILENT,
    SUSPECTED,
    DiscoveryTimeline,
)
from orderwire.trace.events import NO_ORDER, DiscoveryRun, Event, RunSettings

BIG = 2**64 - 1
PROMISE = DiscoveryRun(fail_ns=6, settle_ns=5, margin_ns=2)
S = 1_000_000_000
SECONDS = DiscoveryRun(fail_ns=6 * S, settle_ns=10 * S, margin_ns=S)
"""What `trio` promises."""
IDS = (1, 2, BIG)
INCARNATIONS = (1, 2, 2**63)
MESSAGES = ("JOIN", "JOIN_ACK", "UPDATE")


def nonsense(
    chance: Random, run_id: str = "run", *, torn: bool = False
) -> tuple[list[Event], RunSettings]:
    """Return a trace in which anything may follow anything, with many ties in time.

    `torn`: some timelines have no end, some processes begin another one, counting from 0 again, and
    some runs are open.
    """
    members = chance.randint(1, 4)
    settings = RunSettings(
        algorithm=NO_ORDER,
        members=members,
        discovery=PROMISE,
        epsilon_ns=chance.choice((0, 0, 1)),
        open=True if torn and chance.random() < 0.5 else msgspec.UNSET,
    )
    events: list[Event] = []
    for process in range(members):
        now = chance.randint(0, 3)
        for _ in range(chance.choice((1, 1, 2, 3)) if torn else 1):
            line = DiscoveryTimeline(run_id, process, events.append)
            line.start(settings, now)
            for _ in range(chance.randint(0, 14)):
                now += chance.choice((0, 1, 1, 2, 3, 9))
                _anything(chance, line, now, members)
            if not torn or chance.random() < 0.5:
                now += chance.randint(0, 12)
                line.end(now)
            now += chance.randint(1, 12)
    return events, settings


def _anything(chance: Random, line: DiscoveryTimeline, now: int, members: int) -> None:
    peer_id, incarnation = chance.choice(IDS), chance.choice(INCARNATIONS)
    version = chance.choice((1, 1, 2, 3))
    age_ns = chance.choice((0, 0, 1, 3, 7, 20))
    clock = now + chance.choice((0, 0, 100))
    match chance.choice(("boot", "adopt", "adopt", "update", "end", "expire", *("learn",) * 6)):
        case "boot":
            line.boot(now)
        case "adopt":
            line.adopt(now, peer_id=peer_id, incarnation=incarnation, version=version)
        case "update":
            line.update(now, version=version)
        case "end":
            if chance.random() < 0.4:
                line.leave(now)
            else:
                line.gone(now, process=chance.randrange(members))
        case "expire":
            line.expire(
                now,
                peer_id=peer_id,
                incarnation=incarnation,
                reason=chance.choice((SILENT, LEFT, REPLACED, SUSPECTED)),
                age_ns=age_ns,
                clock=clock,
            )
        case _:
            line.learn(
                now,
                peer_id=peer_id,
                incarnation=incarnation,
                version=chance.choice((0, version, version)),
                age_ns=age_ns,
                clock=clock,
            )
    if chance.random() < 0.2:
        tell = chance.choice((line.post, line.hear))
        tell(now, chance.choice(MESSAGES), chance.randint(1, 99), hop=chance.randint(0, 3))


def trio() -> tuple[list[Event], list[DiscoveryTimeline]]:
    """Three participants that know each other; the third crashes and is forgotten."""
    events: list[Event] = []
    run = RunSettings(algorithm=NO_ORDER, members=3, discovery=SECONDS)
    lines = [DiscoveryTimeline("run", process, events.append) for process in range(3)]
    for line in lines:
        line.start(run, 0)
        line.boot(1)
        line.adopt(2, peer_id=10 + line.process, incarnation=1 + line.process, version=1)
        for other in range(3):
            if other != line.process:
                line.learn(3, peer_id=10 + other, incarnation=1 + other, version=1, age_ns=0)
    lines[2].gone(20 * S)
    for line in lines[:2]:
        line.expire(26 * S, peer_id=12, incarnation=3, reason=SILENT, age_ns=6 * S)
    for line in lines:
        line.end(40 * S)
    return events, lines
