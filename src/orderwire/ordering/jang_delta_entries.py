"""CI of Jang's algorithm, in its fast form: what may still be undelivered where.

Per sender an immutable tuple of (stamp, bit mask), newest first; a destination is in at most one
entry of a sender, the newest that names it.  Nothing is ever changed in place, so a snapshot is a
shallow copy that all copies of a message share.
"""

from collections.abc import Mapping

from orderwire.kernel import ProcessId
from orderwire.ordering.jang_delta_codec import Entries, Entry


class KnownUndelivered:
    """Which messages of its causal past a process cannot know to be delivered.  [S000:sec.4]"""

    def __init__(self, me: ProcessId, *, send_empty: bool) -> None:
        self._me = me
        self._not_me = ~(1 << me)
        self._send_empty = send_empty
        self._entries: dict[int, Entries] = {}
        self._own_is_empty = False
        """The newest own entry has no destinations (a message to myself alone)."""

    def record_own(self, stamp: int, remote: int) -> None:
        """Record a message that this process has just sent."""
        own = self._entries.get(self._me)
        self._entries[self._me] = ((stamp, remote),) if own is None else ((stamp, remote), *own)
        self._own_is_empty = not remote

    def extract(self, remote: int, dead: int) -> list[tuple[int, int, int]]:
        """Forget entries stamped before `dead`; take the destinations of m out of the others.

        Returns what was taken out: (sender, stamp, destinations that must wait for it).
        """
        waits: list[tuple[int, int, int]] = []
        entries = self._entries
        empty: list[int] = []
        for sender, group in entries.items():
            if group[-1][0] < dead:
                group = tuple([entry for entry in group if entry[0] >= dead])
                if not group:
                    empty.append(sender)
                    continue
                entries[sender] = group
            if len(group) == 1:
                ((stamp, mask),) = group
                hit = mask & remote
                if hit:
                    waits.append((sender, stamp, hit))
                    entries[sender] = ((stamp, mask ^ hit),)
                if mask == hit and sender == self._me:
                    empty.append(sender)
                continue
            if not (sender == self._me and self._own_is_empty):
                for _, mask in group:
                    if mask & remote:
                        break
                else:
                    continue
            kept: list[Entry] = []
            for stamp, mask in group:
                hit = mask & remote
                if hit:
                    waits.append((sender, stamp, hit))
                kept.append((stamp, mask ^ hit))
            group = self._without_empty(sender, kept)
            if group:
                entries[sender] = group
            else:
                empty.append(sender)
        for sender in empty:
            del entries[sender]
        return waits

    def snapshot(self) -> dict[int, Entries]:
        """Return CI as it goes on the wire.  [S000:dec.5]"""
        if self._send_empty:
            return self._entries.copy()
        snapshot = {}
        for sender, group in self._entries.items():
            if group[0][1]:
                snapshot[sender] = group
            elif len(group) > 1:
                snapshot[sender] = group[1:]
        return snapshot

    def merge(
        self, source: ProcessId, stamp: int, destinations: int, theirs: Mapping[int, Entries]
    ) -> None:
        """[S000:sec.4.5] Take over what the sender knew, and m itself.  [S000:dec.1]

        Dead entries need no test here: they only ever eliminate older ones, dead as well, and the
        next send forgets them.
        """
        entries = self._entries
        not_me = self._not_me
        others = destinations & not_me & ~(1 << source)
        mine = entries.get(source)
        earlier = theirs.get(source, ())
        if (mine is None or mine[0][0] < stamp) and not (earlier and any(map(_mask_of, earlier))):
            # As `_merge_group` would: what I know of the source is older, and it has dropped it.
            entries[source] = ((stamp, others),)
        else:
            group = ((stamp, others), *earlier)
            self._merge_group(source, () if mine is None else mine, group)
        for sender, group in theirs.items():
            if sender == source:
                continue
            mine = entries.get(sender)
            if mine is None:
                if len(group) == 1 and sender != self._me:
                    ((theirs_stamp, theirs_mask),) = group
                    entries[sender] = ((theirs_stamp, theirs_mask & not_me),)
                else:
                    self._merge_group(sender, (), group)
            elif len(group) == 1 and len(mine) == 1 and sender != self._me:
                ((theirs_stamp, theirs_mask),) = group
                ((mine_stamp, mine_mask),) = mine
                if theirs_stamp > mine_stamp:
                    entries[sender] = ((theirs_stamp, theirs_mask & not_me),)
                elif theirs_stamp == mine_stamp and mine_mask & ~theirs_mask:
                    entries[sender] = ((mine_stamp, mine_mask & theirs_mask),)
            elif mine != group:
                self._merge_group(sender, mine, group)
        if self._own_is_empty:
            self._own_is_empty = False
            own = self._without_empty(self._me, list(entries.pop(self._me, ())))
            if own:
                entries[self._me] = own

    def _merge_group(self, sender: int, mine: Entries, theirs: Entries) -> None:
        """Keep of each side what the other knows too, or what is newer than all it knows.

        What one side lacks although it knows newer ones of that sender, it has removed for a
        reason: delivered, or covered by a later message.
        """
        not_me = self._not_me
        newest_mine = mine[0][0] if mine else -1
        newest_theirs = theirs[0][0]
        masks = dict(theirs)
        both: list[Entry] = []
        for stamp, mask in mine:
            other = masks.pop(stamp, None)
            if other is not None:
                both.append((stamp, mask & other & not_me))
            elif stamp > newest_theirs:
                both.append((stamp, mask))
        for stamp, mask in masks.items():
            if stamp > newest_mine:
                both.append((stamp, mask & not_me))
        both.sort(reverse=True)
        seen = 0
        for index, (stamp, mask) in enumerate(both):
            both[index] = (stamp, mask & ~seen)
            seen |= mask
        group = self._without_empty(sender, both)
        if group:
            self._entries[sender] = group
        else:
            self._entries.pop(sender, None)

    def _without_empty(self, sender: int, group: list[Entry]) -> Entries:
        """Drop entries without destinations, except the newest of another sender."""
        if sender == self._me:
            return tuple([entry for entry in group if entry[1]])
        return (group[0], *[entry for entry in group[1:] if entry[1]])


def _mask_of(entry: Entry) -> int:
    return entry[1]
