"""Every schedule of a small scope, for exhaustive tests."""

from collections.abc import Iterator
from itertools import product

from orderwire.sim.schedule import Schedule, ScheduledSend

SMALL_SCOPE_SCHEDULES = 30_375
WIDE_SCOPE_SCHEDULES = 124_416
LONG_SCOPE_SCHEDULES = 110_592


def small_scope() -> Iterator[Schedule]:
    """Three messages, every delay of 1 and Δ = 5, and loss: 30,375 schedules."""
    return scope(messages=3, lifetime=5, fates=(1, 5, None))


def wide_scope() -> Iterator[Schedule]:
    """Three messages, also late ones, Δ = 5: 124,416 schedules."""
    return scope(messages=3, lifetime=5, fates=(1, 4, 6, None))


def long_scope() -> Iterator[Schedule]:
    """Four messages, no loss, Δ = 8: 110,592 schedules."""
    return scope(messages=4, lifetime=8, fates=(1, 7))


def scope(*, messages: int, lifetime: int, fates: tuple[int | None, ...]) -> Iterator[Schedule]:
    """Three processes, a message every two ticks, every sender, destination set and fate.

    The first sender is process 0, the others follow by symmetry.
    """

    def choices(at: int, senders: range) -> list[ScheduledSend]:
        found = []
        for sender in senders:
            others = [process for process in range(3) if process != sender]
            for to in ([others[0]], [others[1]], others):
                for delays in product(fates, repeat=len(to)):
                    arrive = {
                        process: None if delay is None else at + delay
                        for process, delay in zip(to, delays, strict=True)
                    }
                    found.append(
                        ScheduledSend(
                            id=f"m{at}", at=at, sender=sender, to=tuple(to), arrive=arrive
                        )
                    )
        return found

    first = choices(0, range(1))
    later = [choices(2 * index, range(3)) for index in range(1, messages)]
    for sends in product(first, *later):
        yield Schedule(processes=3, lifetime=lifetime, sends=sends)
