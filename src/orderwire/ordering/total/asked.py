"""Who was asked for a PDU and has sent none since: what T_fail measures.  [S003:dec.1]"""

from collections.abc import Container, Iterable

from orderwire.kernel import Effects, Indicate, Instant, ProcessId
from orderwire.ordering.total.pdu import Suspected


class Asked:
    """Since when each of the others owes a PDU.  Without `fail_ns` nobody ever does."""

    def __init__(self, me: ProcessId, fail_ns: int | None) -> None:
        self._me = me
        self._fail_ns = fail_ns
        self._since: dict[int, Instant] = {}

    def ask(self, processes: Iterable[int], now: Instant) -> None:
        """Note that these owe one, from now on unless they do already."""
        if self._fail_ns is not None:
            for process in processes:
                if process != self._me:
                    self._since.setdefault(process, now)

    def excuse_all_but(self, processes: Container[int]) -> None:
        """Note that nobody else owes one any more."""
        for process in [process for process in self._since if process not in processes]:
            del self._since[process]

    def heard(self, process: int) -> None:
        """Note that this one has sent something."""
        if self._since:
            self._since.pop(process, None)

    def clear(self) -> None:
        """Note that nobody owes one any more."""
        self._since.clear()

    def due_at(self) -> Instant | None:
        """Return when somebody will have owed one for `fail_ns`; None: nobody does."""
        if self._fail_ns is None or not self._since:
            return None
        return Instant(min(self._since.values()) + self._fail_ns)

    def suspect(self, effects: Effects, now: Instant) -> None:
        """Indicate who has owed one for `fail_ns`, and begin to count anew."""
        fail_ns = self._fail_ns
        if fail_ns is not None:
            for process, since in self._since.items():
                if now - since >= fail_ns:
                    self._since[process] = now
                    effects.append(Indicate(Suspected(ProcessId(process))))
