"""Whether what a benchmark received is what was sent: in order, whole, once.

A figure of a transport that swaps or drops is no figure.  Each receiver feeds every number it got,
per sender; the benchmark refuses to report what `problems` names.  It costs a comparison a message.
"""

from collections.abc import Iterable


class Stream:
    """What one receiver got of one sender, whose messages are numbered from 0."""

    __slots__ = ("ahead", "next", "received", "repeated", "swapped")

    def __init__(self) -> None:
        self.next = 0
        """Every number from here on is new and in its turn."""
        self.received = 0
        """Different ones."""
        self.swapped = 0
        """Came behind a later one."""
        self.repeated = 0
        """Had come before."""
        self.ahead: set[int] = set()
        """Numbers below `next` that have not come."""

    def got(self, number: int) -> None:
        """Take note of a message."""
        if number == self.next:
            self.next = number + 1
            self.received += 1
        elif number > self.next:
            self.ahead.update(range(self.next, number))
            self.next = number + 1
            self.received += 1
        elif number in self.ahead:
            self.ahead.discard(number)
            self.received += 1
            self.swapped += 1
        else:
            self.repeated += 1

    def told(self) -> dict[str, int]:
        """Return the counts, for the process that compares them with what was sent."""
        return {name: getattr(self, name) for name in ("received", "swapped", "repeated", "next")}


def problems(told: dict[str, int], sent: int, *, ordered: bool, dropped: int = 0) -> list[str]:
    """Say what is wrong with a stream of `sent` messages, of which `dropped` are accounted for."""
    found = []
    missing = sent - dropped - told["received"]
    if missing > 0:
        found.append(f"{missing} of {sent} messages are missing")
    if missing < 0 or told["next"] > sent:
        found.append(f"{told['received']} messages up to number {told['next'] - 1}, {sent} sent")
    if told["repeated"]:
        found.append(f"{told['repeated']} messages came twice")
    if ordered and told["swapped"]:
        found.append(f"{told['swapped']} messages came behind later ones")
    return found


def refuse(where: str, found: Iterable[str]) -> None:
    """End the benchmark when something is wrong."""
    sentences = "; ".join(found)
    if sentences:
        raise SystemExit(f"{where}: {sentences}. No figures of that")
