"""Every schedule of a small scope, for exhaustive tests."""

from collections.abc import Iterator
from itertools import product

from orderwire.sim.schedule import Schedule, ScheduledSend

SMALL_SCOPE_SCHEDULES = 30_375


def small_scope() -> Iterator[Schedule]:
    """Three processes, three messages, every sender, destination set, delay and loss; Δ = 5.

    The first sender is process 0, the others follow by symmetry: 30,375 scenarios.
    """
    fates: tuple[int | None, ...] = (1, 5, None)

    def messages(at: int, senders: range) -> list[ScheduledSend]:
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

    choices = (messages(0, range(1)), messages(2, range(3)), messages(4, range(3)))
    for sends in product(*choices):
        yield Schedule(processes=3, lifetime=5, sends=sends)
