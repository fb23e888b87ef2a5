"""What a member of a group knows of everybody's streams: who has accepted what.  [S003:sec.3.1]"""

from orderwire.kernel import members_of
from orderwire.ordering.total.pdu import Numbers
from orderwire.ordering.total.settings import Stability

_TRIM = 64
"""Witnesses of one pair above which those that no place needs are dropped."""


class Streams:
    """AL, HDR, ST and WIT.

    `al[j][k]` is the TSEQ of j that k expects next, as far as it has told; `header[j]` the
    destinations of the PDUs of j that were heard, also of those for others; `stable[j]` the level
    below which every PDU of j has been accepted by all its destinations.
    """

    def __init__(self, size: int, stability: Stability, *, witnesses: bool) -> None:
        self.size = 0
        self.members = 0
        self.ids: tuple[int, ...] = ()
        self.al: list[list[int]] = []
        self.header: list[dict[int, int]] = []
        self.stable: list[int] = []
        self._wit: list[list[list[tuple[int, int]]]] = []
        """`[j][k]`: (AL[j][k] then, level of k's stream from which on it has been told)."""
        self._to_all = stability is Stability.ALL
        self._witnesses = witnesses
        self._groups: dict[int, tuple[int, ...]] = {}
        self.grow(size)

    def grow(self, size: int) -> None:
        """Make room for process ids below `size`."""
        more = size - self.size
        if more <= 0:
            return
        for row in self.al:
            row += [0] * more
        for lists in self._wit:
            lists += [[] for _ in range(more)]
        self.al += [[0] * size for _ in range(more)]
        self._wit += [[[] for _ in range(size)] for _ in range(more)]
        self.header += [{} for _ in range(more)]
        self.stable += [0] * more
        self.size = size

    def set_members(self, members: int) -> None:
        """Count these processes as destinations and informants, and no others."""
        self.members = members
        self.ids = tuple(members_of(members))
        self._groups.clear()

    def forget(self, process: int) -> None:
        """Drop everything of and from a process that has departed."""
        self.al[process] = [0] * self.size
        self._wit[process] = [[] for _ in range(self.size)]
        self.header[process] = {}
        self.stable[process] = 0
        for row, lists in zip(self.al, self._wit, strict=True):
            row[process] = 0
            lists[process] = []
        others = ~(1 << process)
        for headers in self.header:
            for tseq, mask in headers.items():
                headers[tseq] = mask & others

    def group(self, mask: int) -> tuple[int, ...]:
        """Return which of these destinations are members, ascending."""
        ids = self._groups.get(mask)
        if ids is None:
            if len(self._groups) > 4096:
                self._groups.clear()
            ids = self._groups[mask] = tuple(members_of(mask & self.members))
        return ids

    def raise_levels(self, informant: int, ack: Numbers, told_at: int) -> int:
        """Take what `informant` tells in its PDU `told_at`; return whose levels rose, as a mask."""
        raised = 0
        for source, (row, level) in enumerate(zip(self.al, ack, strict=False)):
            if level > row[informant]:
                row[informant] = level
                raised |= 1 << source
                if self._witnesses:
                    self._wit[source][informant].append((level, told_at + 1))
        return raised

    def advance(self, source: int) -> bool:
        """Move the stable level of a stream as far as it goes; say whether it moved."""
        row = self.al[source]
        headers = self.header[source]
        start = at = self.stable[source]
        low = min([row[k] for k in self.ids], default=0)
        if low > at:
            for tseq in range(at, low):
                headers.pop(tseq, None)
            at = low
        if not self._to_all:
            # Below `low` all have it; above, only a PDU whose destinations are known can be stable.
            while (mask := headers.get(at)) is not None:
                for k in self.group(mask):
                    if row[k] <= at:
                        break
                else:
                    del headers[at]
                    at += 1
                    continue
                break
        self.stable[source] = at
        return at > start

    def settle(self, source: int, line: int) -> None:
        """Take it as known that everything of `source` below `line` is accepted."""
        if line > self.stable[source]:
            headers = self.header[source]
            for tseq in range(self.stable[source], line):
                headers.pop(tseq, None)
            self.stable[source] = line

    def rewind(self, source: int, line: int) -> None:
        """Forget what was told of `source` from `line` on: it will be sent again."""
        self.al[source] = [min(level, line) for level in self.al[source]]
        self._wit[source] = [[] for _ in range(self.size)]
        for tseq in [tseq for tseq in self.header[source] if tseq >= line]:
            del self.header[source][tseq]

    def witness(self, source: int, process: int, tseq: int) -> int:
        """Return w: who has that much of `process` has heard that it accepted `tseq`."""
        told = self._wit[source][process]
        for index, (level, heard) in enumerate(told):
            if level > tseq:
                if index > _TRIM:
                    del told[:index]
                return heard
        raise AssertionError(f"{process} never told that it has {tseq} of {source}")

    def trim(self, source: int, needed: int) -> None:
        """Drop witnesses of levels that no place from `needed` on asks for."""
        for told in self._wit[source]:
            if len(told) > _TRIM:
                kept = next((i for i, (level, _) in enumerate(told) if level > needed), len(told))
                del told[:kept]
