"""An event loop whose time only passes when nothing is left to do: real sockets, virtual waits.

On loopback a datagram has arrived when `sendto` returns, so a run with delays injected at the
socket boundary takes no real time and does the same every time.
"""

import asyncio
import selectors

_SETTLE_S = 0.000_5
"""Real time for the kernel to finish what concerns TCP, before virtual time may pass."""


class _Selector(selectors.DefaultSelector):
    """Never waits for long: what the loop would wait is added to its time."""

    loop: "VirtualLoop"

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout == 0:
            return ready
        ready = super().select(_SETTLE_S if self.loop.settling else 0)
        if not ready and timeout is not None:
            self.loop.advance(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """`time()` starts at 0 and counts whole nanoseconds."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.settling = True
        """Whether connections are being made: then the kernel is given real time as well."""
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self.now_ns / 1e9

    def advance(self, seconds: float) -> None:
        self.now_ns += max(1, round(seconds * 1e9))
