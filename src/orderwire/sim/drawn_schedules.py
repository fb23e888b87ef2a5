"""Schedules drawn by chance: small groups, unkind networks, everything around the deadline."""

from random import Random

from orderwire.sim.schedule import Schedule, ScheduledSend

LATENCIES = ("tiny", "short", "reordering", "bimodal", "around")
"""Around: at, one tick before and one after the lifetime."""
TRAFFICS = ("unicast", "multicast", "broadcast", "overlapping", "mixed", "funnel")


def draw_schedule(
    chance: Random,
    *,
    processes_max: int = 8,
    messages_max: int = 40,
    lifetime: bool = True,
    skew_max: int = 0,
    granularities: tuple[int, ...] = (1,),
    duplicates: bool = False,
    fifo_channels: bool = False,
    loss_max: float = 0.5,
    traffics: tuple[str, ...] = TRAFFICS,
    own_lifetimes: bool = False,
) -> Schedule:
    """Draw processes, Δ, traffic, delays and losses; without a lifetime nothing is lost.

    With `skew_max`, clocks differ by at most that many ticks, and ε says so.  With `own_lifetimes`,
    half of the messages have one of their own, shorter than Δ.
    """
    members = chance.randint(2, processes_max)
    count = chance.randint(3, messages_max)
    delta = chance.randint(3, 100)
    latency = chance.choice(LATENCIES)
    traffic = chance.choice(traffics)
    loss = chance.choice((0.0, 0.05, 0.2, loss_max)) if lifetime else 0.0
    gap_max = chance.choice((0, 1, 3, max(1, delta // 4)))
    to_self = chance.choice((0.0, 0.3))
    skew = chance.randint(0, skew_max) if skew_max else 0
    groups = [
        chance.sample(range(members), chance.randint(1, members))
        for _ in range(chance.randint(2, 4))
    ]
    sends: list[ScheduledSend] = []
    last_arrival: dict[tuple[int, int], int] = {}
    at = chance.randint(0, 5)
    for index in range(count):
        at += chance.randint(0, gap_max)
        sender = chance.randrange(members)
        to = _destinations(chance, traffic, sender, members, groups, to_self)
        arrive: dict[int, int | None] = {}
        again: dict[int, tuple[int, ...]] = {}
        early = chance.random() < 0.3
        for process in to:
            if process == sender:
                continue
            shortest = 0 if early else 1
            arrival = at + max(shortest, _latency(chance, latency, delta))
            if fifo_channels:
                arrival = max(arrival, last_arrival.get((sender, process), 0))
                last_arrival[sender, process] = arrival
            arrive[process] = None if chance.random() < loss else arrival
            if duplicates and chance.random() < 0.2:
                again[process] = (arrival + chance.randint(0, delta),)
        sends.append(
            ScheduledSend(
                id=f"m{index}",
                at=at,
                sender=sender,
                to=to,
                arrive=arrive,
                again=again,
                before_arrivals=early,
                lifetime=_own_lifetime(chance, delta) if own_lifetimes else None,
            )
        )
    return Schedule(
        processes=members,
        lifetime=delta if lifetime else None,
        epsilon=skew,
        clock_offsets=tuple(chance.randint(0, skew) for _ in range(members)),
        timer_granularity=chance.choice(granularities),
        sends=tuple(sends),
    )


def _own_lifetime(chance: Random, delta: int) -> int | None:
    return chance.randint(1, delta) if chance.random() < 0.5 else None


def _latency(chance: Random, mode: str, delta: int) -> int:
    if mode == "tiny":
        return chance.randint(0, 2)
    if mode == "short":
        return chance.randint(0, max(1, delta // 3))
    if mode == "bimodal":
        return chance.choice((chance.randint(0, 2), chance.randint(delta * 2 // 3, delta)))
    if mode == "around":
        return chance.choice((1, delta - 1, delta, delta + 1))
    return chance.randint(0, delta + delta // 4)


def _destinations(
    chance: Random,
    traffic: str,
    sender: int,
    members: int,
    groups: list[list[int]],
    to_self: float,
) -> tuple[int, ...]:
    others = [process for process in range(members) if process != sender]
    if traffic == "mixed":
        traffic = chance.choice(TRAFFICS)
    if traffic == "unicast":
        chosen = {chance.choice(others)}
    elif traffic == "broadcast":
        chosen = set(others)
    elif traffic == "overlapping":
        chosen = set(chance.choice(groups)) - {sender} or {chance.choice(others)}
    elif traffic == "funnel":
        chosen = {0} if sender and chance.random() < 0.5 else {chance.choice(others)}
    else:
        chosen = set(chance.sample(others, chance.randint(1, len(others))))
    if chance.random() < to_self:
        chosen.add(sender)
    return tuple(sorted(chosen))
