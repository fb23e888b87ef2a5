"""What ST and its rivals promise, checked while a simulated group runs.  [S003:sec.2]"""

from itertools import combinations

from orderwire.kernel import Instant, ProcessId, members_of
from orderwire.ordering.pdu import Delivered
from orderwire.ordering.total.catalog import Promises, TotalOrder
from orderwire.verify.selective_total import Logs

Message = tuple[int, int]
"""(source, number)."""


class SelectiveTotalJudge:
    """O1 … O6 as definitions, as far as they are promised; a violation is a sentence."""

    def __init__(
        self, cores: dict[ProcessId, TotalOrder], buffers_max: int, promises: Promises
    ) -> None:
        self._cores = cores
        self._promises = promises
        self._buffers_max = buffers_max
        self.violations: list[str] = []
        self.sent: dict[int, list[Message]] = {}
        self.destinations: dict[Message, int] = {}
        self.delivered: dict[int, list[Message]] = {}
        self._have: dict[int, set[Message]] = {}
        self._sent_in: dict[Message, int] = {}
        """The view in which a message was first put."""
        self._views: dict[int, int] = {}
        """The view that each process was told last."""
        self.joined_at: dict[int, int] = {}
        """Process → how many views were told when it joined."""
        self.crashed: set[int] = set()
        self.latencies: list[int] = []

    def note_sent(self, source: ProcessId, number: int, destinations: int) -> None:
        """Note a message when its sender is asked to send it."""
        message = (int(source), number)
        self.sent.setdefault(source, []).append(message)
        self.destinations[message] = destinations

    def note_put(self, source: ProcessId, number: int, view: int) -> None:
        """Note in which view a message is put."""
        self._sent_in.setdefault((int(source), number), view)

    def note_installed(self, process: ProcessId, view: int) -> None:
        """Note that a process was told a view."""
        self._views[process] = view

    def note_delivered(self, process: ProcessId, indication: Delivered, now: Instant) -> None:
        """Check what can be checked at once: O1, O3, O6."""
        message = (int(indication.source), indication.number)
        here = self._have.setdefault(process, set())
        log = self.delivered.setdefault(process, [])
        what = f"{message} at {process}"
        asked = self.destinations.get(message)
        if asked is None:
            self.violations.append(f"O1: {what} was never sent")
        elif not asked >> process & 1:
            self.violations.append(f"O1: {what} is not for it")
        if message in here:
            self.violations.append(f"O1: {what} comes twice")
        before = [number for source, number in log[-64:] if source == message[0]]
        if before and before[-1] > message[1]:
            self.violations.append(f"O1: {what} comes after {before[-1]} of its source")
        view = self._views.get(process, 0)
        if self._promises.in_its_view and self._sent_in.get(message, view) != view:
            self.violations.append(
                f"O7: {what} was sent in view {self._sent_in[message]} and comes in {view}"
            )
        here.add(message)
        log.append(message)
        self.latencies.append(now - indication.stamp)
        if self._promises.atomic:
            self._check_atomic(process, message, indication.destinations)

    def _check_atomic(self, process: ProcessId, message: Message, asked: int) -> None:
        members = {m.process for m in self._cores[process].view.members}
        for other in members_of(asked):
            core = self._cores.get(other)
            if core is None or other not in members or other in self.crashed:
                continue
            if message not in self._have.get(other, ()) and message not in set(core.waiting()):
                self.violations.append(f"O3: {message} is at {process}, and not at {other}")

    def check_buffers(self, process: ProcessId) -> None:
        """O6."""
        used = self._cores[process].buffers_used if self._promises.bounded else 0
        if used > self._buffers_max:
            self.violations.append(f"O6: {process} uses {used} buffers of {self._buffers_max}")

    def check_rest(self, survivors: set[int], *, at_rest: bool) -> None:
        """O2, O2', O4 and O5, when nothing is asked for any more."""
        if self._promises.one_order:
            self._check_order(survivors)
        if not at_rest:
            self.violations.append("O4: the group does not come to rest")
            return
        for message, mask in self.destinations.items():
            live = {k for k in members_of(mask) if k in survivors}
            have = {k for k in live if message in self._have.get(k, ())}
            everywhere = have == live
            if message[0] in survivors:
                if not everywhere:
                    self.violations.append(f"O4: {message} is missing at {sorted(live - have)}")
                continue
            count = members_of(mask) if self._promises.uniform else live
            anywhere = any(message in self._have.get(k, ()) for k in count)
            if anywhere and not everywhere:
                self.violations.append(f"O5: {message} is missing at {sorted(live - have)}")

    def _check_order(self, survivors: set[int]) -> None:
        """O2 and O2', among the survivors when crashed members are not promised for."""
        everybody = self._promises.uniform
        logs = Logs(
            sent=self.sent,
            received={k: v for k, v in self.delivered.items() if everybody or k in survivors},
            destinations={m: set(members_of(mask)) for m, mask in self.destinations.items()},
        )
        for one, other in combinations(sorted(logs.received), 2):
            if not logs.are_order_equivalent(one, other):
                self.violations.append(f"O2: {one} and {other} disagree")
        if not logs.is_acyclic():
            self.violations.append("O2': the orders fit into no one order")
