"""CI of bounded Jang: Jang's entries, what was cut from them, and what covered ones teach.

Floors: F[d] says that messages to d were cut from CI, and that none of them is newer than F[d].
Whoever sends to d makes the message wait there until F[d] has expired; it then covers what was cut,
and F[d] is forgotten.
"""

from collections.abc import Iterable, Mapping

from orderwire.kernel import Destinations, ProcessId, members_of
from orderwire.ordering.bounded_jang_codec import BoundedJangPdu, Listed
from orderwire.ordering.jang_delta_codec import Entries, Entry
from orderwire.ordering.jang_delta_entries import KnownUndelivered


class BoundedUndelivered(KnownUndelivered):
    """Which messages of its past a process cannot know to be delivered, as far as it keeps them."""

    def __init__(self, me: ProcessId, *, cap: int | None) -> None:
        super().__init__(me, send_empty=False)
        self._cap = cap
        """How many messages may name one destination; None: any number."""
        self.floors: dict[int, int] = {}
        """F, by destination."""

    def listed(self) -> tuple[Listed, ...]:
        """Return the entries that have destinations, newest first."""
        listed = [
            (stamp, sender, mask)
            for sender, group in self._entries.items()
            for stamp, mask in group
            if mask
        ]
        listed.sort(reverse=True)
        return tuple(listed)

    def record_sent(self, stamp: int, remote: int) -> None:
        """Record a message that this process has just sent."""
        self.record_own(stamp, remote)
        if self._cap is not None:
            self._cut(self._cap)

    def take_floors(self, remote: int, dead: int) -> dict[int, int]:
        """Return the floors of these destinations and forget them, and all that have expired."""
        floors = self.floors
        for process in [process for process, floor in floors.items() if floor < dead]:
            del floors[process]
        return {process: floors.pop(process) for process in list(floors) if remote >> process & 1}

    def merge_tag(self, source: ProcessId, pdu: BoundedJangPdu) -> None:
        """Take over what the sender knew, and m itself.

        A message that this copy waited for and that is not listed was covered by m everywhere: its
        entry at the sender was empty.  The copy teaches that, too.
        """
        theirs = grouped(pdu.listed) if pdu.listed else {}
        for sender, stamp in pdu.others:
            group = theirs.get(sender)
            if group is None:
                theirs[sender] = ((stamp, 0),)
            else:
                theirs[sender] = tuple(sorted((*group, (stamp, 0)), reverse=True))
        self.merge(source, pdu.stamp, pdu.destinations, theirs)
        for mask, floor in pdu.floors:
            self._raise_floors(mask & self._not_me & ~(1 << source), floor)
        if self._cap is not None:
            self._cut(self._cap)

    def _raise_floors(self, mask: int, floor: int) -> None:
        floors = self.floors
        for process in members_of(Destinations(mask)):
            if floor > floors.get(process, -1):
                floors[process] = floor

    def _cut(self, cap: int) -> None:
        """Keep for each destination the newest messages only, and remember where the rest ends."""
        entries = self._entries
        named_by = [0] * cap
        """Destinations that more than 0, 1, … of the messages seen so far name."""
        masks: dict[int, list[Entry]] = {}
        for stamp, sender, mask in self.listed():
            over = mask & named_by[-1] if cap else mask
            if over:
                self._raise_floors(over, stamp)
                masks.setdefault(sender, []).append((stamp, over))
            for level in range(cap - 1, 0, -1):
                named_by[level] |= named_by[level - 1] & mask
            if cap:
                named_by[0] |= mask
        for sender, gone in masks.items():
            left = dict(entries[sender])
            for stamp, over in gone:
                left[stamp] &= ~over
            group = self._without_empty(sender, list(left.items()))
            if group:
                entries[sender] = group
            else:
                del entries[sender]


def grouped(listed: Iterable[Listed]) -> dict[int, Entries]:
    """Return entries by their sender."""
    groups: dict[int, Entries] = {}
    for stamp, sender, mask in listed:
        group = groups.get(sender)
        groups[sender] = ((stamp, mask),) if group is None else (*group, (stamp, mask))
    return groups


def floors_with(floors: Mapping[int, int], cut: Iterable[Listed]) -> dict[int, int]:
    """Return the floors when these entries, newest first, are cut as well."""
    raised = dict(floors)
    seen = 0
    for stamp, _, mask in cut:
        for process in members_of(Destinations(mask & ~seen)):
            if stamp > raised.get(process, -1):
                raised[process] = stamp
        seen |= mask
    return raised
