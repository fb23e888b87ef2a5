"""Causal multicast with minimal control information, a tag for every destination.

Source: [K96] (Kshemkalyani, Singhal 1996/98), with stamps instead of counters and, with a lifetime,
without the entries that have expired.  Symbols: LOG → log, entries (k, τ, S): "message τ of k may
still be undelivered at the destinations S"; the newest entry of a sender stays when S is empty.

The same facts as Jang's algorithm carries; but each copy of a message has its own log, in which
only its own destination still stands, so a message to many costs its sender more.

`KshemkalyaniSinghal` keeps the log by sender and shares between copies what they have in common.
`KshemkalyaniSinghalFlat` is the printed form: one list, scanned entry against entry.  Their tags
are the same.  Assumes clocks within ε.
"""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from orderwire.kernel import Destinations, Effects, ProcessId, Send, members_of
from orderwire.ordering.causal_node import CausalNode, Wait
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.tags_codec import (
    Entries,
    EntriesPdu,
    encode_entries,
    encode_group,
    join_parts,
    waits_for,
)
from orderwire.ordering.wire import INTEGER_BYTES, encode_head


class KshemkalyaniSinghal(CausalNode[EntriesPdu]):
    """Deliver m at i when all entries of its log that name i are settled."""

    NAME = "kshemkalyani-singhal"

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._log: dict[int, Entries] = {}

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """Send each destination d the log with S \\ D, and d where it was in S."""
        before = self._forget(self._dead_before())
        common = {sender: _without(group, remote) for sender, group in before.items()}
        parts = [encode_group(sender, stamp, group) for sender, group in common.items()]
        named = [
            (index, sender, group, hit)
            for index, (sender, group) in enumerate(before.items())
            if (hit := _named(group) & remote)
        ]
        head = encode_head(stamp, number, destinations)
        shared: EntriesPdu | None = None
        control_bytes = 0
        for process in members_of(Destinations(remote)):
            bit = 1 << process
            others = remote ^ bit
            own = [each for each in named if each[3] & bit]
            if own or shared is None:
                entries = common.copy()
                own_parts = parts.copy()
                for index, sender, group, _ in own:
                    entries[sender] = _without(group, others)
                    own_parts[index] = encode_group(sender, stamp, entries[sender])
                control = head + join_parts(own_parts)
                pdu = EntriesPdu(number, stamp, destinations, control, payload, entries)
                if not own:
                    shared = pdu
            else:
                pdu = shared
            control_bytes += len(pdu.control)
            effects.append(Send(process, pdu))
        if remote:
            common[self._me] = _purged([(stamp, remote), *common.get(self._me, ())])
        self._log = common
        return control_bytes

    def _forget(self, dead: int) -> dict[int, Entries]:
        """Return the log without entries stamped before `dead`."""
        log: dict[int, Entries] = {}
        for sender, group in self._log.items():
            if group[-1][0] < dead:
                group = tuple([entry for entry in group if entry[0] >= dead])
            if group:
                log[sender] = group
        return log

    def _waits(self, pdu: EntriesPdu) -> Iterable[Wait]:
        return waits_for(pdu.entries, self._me_bit)

    def _merge(self, source: ProcessId, pdu: EntriesPdu) -> None:
        """Keep of each side what the other knows too, or what is newer than all it knows."""
        log = self._log
        not_me = ~self._me_bit
        theirs = dict(pdu.entries)
        own = (pdu.stamp, pdu.destinations & ~(1 << source))
        theirs[source] = (own, *theirs.get(source, ()))
        for sender, group in theirs.items():
            mine = log.get(sender)
            if mine != group:
                log[sender] = _merged(mine or (), group, not_me)


def _named(group: Entries) -> int:
    """Return the destinations that any of these entries names."""
    named = 0
    for _, mask in group:
        named |= mask
    return named


def _without(group: Entries, gone: int) -> Entries:
    """Take these destinations out of the entries."""
    return _purged([(stamp, mask & ~gone) for stamp, mask in group])


def _purged(group: Sequence[tuple[int, int]]) -> Entries:
    """Drop empty entries older than the newest one of their sender."""
    return (group[0], *[entry for entry in group[1:] if entry[1]])


def _merged(mine: Entries, theirs: Entries, not_me: int) -> Entries:
    """Merge what two processes know of one sender.

    What one side lacks although it knows newer ones, it has removed for a reason: delivered, or
    covered by a later message.
    """
    newest_mine = mine[0][0] if mine else -1
    newest_theirs = theirs[0][0]
    masks = dict(theirs)
    both: list[tuple[int, int]] = []
    for stamp, mask in mine:
        other = masks.pop(stamp, None)
        if other is not None:
            both.append((stamp, mask & other & not_me))
        elif stamp > newest_theirs:
            both.append((stamp, mask))
    both += [(stamp, mask & not_me) for stamp, mask in masks.items() if stamp > newest_mine]
    both.sort(reverse=True)
    return _purged(both)


LogEntry: TypeAlias = tuple[int, int, int]
"""(sender, stamp, destinations)."""


class KshemkalyaniSinghalFlat(CausalNode[EntriesPdu]):
    """The same with the log as one list, entry against entry, as it is printed."""

    NAME = "kshemkalyani-singhal-flat"

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        self._log: list[LogEntry] = []

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """Build a log for each destination, from the start."""
        dead = self._dead_before()
        log = [entry for entry in self._log if entry[1] >= dead]
        head = encode_head(stamp, number, destinations)
        control_bytes = 0
        for process in members_of(Destinations(remote)):
            others = remote ^ 1 << process
            entries: dict[int, Entries] = {}
            for sender, entry, mask in _purged_list([(k, t, mask & ~others) for k, t, mask in log]):
                entries[sender] = (*entries.get(sender, ()), (entry, mask))
            for sender, group in entries.items():
                entries[sender] = tuple(sorted(group, reverse=True))
            control = head + encode_entries(stamp, entries)
            pdu = EntriesPdu(number, stamp, destinations, control, payload, entries)
            control_bytes += len(control)
            effects.append(Send(process, pdu))
        log = [(sender, entry, mask & ~remote) for sender, entry, mask in log]
        if remote:
            log.append((self._me, stamp, remote))
        self._log = log
        return control_bytes

    def _waits(self, pdu: EntriesPdu) -> Iterable[Wait]:
        return waits_for(pdu.entries, self._me_bit)

    def _merge(self, source: ProcessId, pdu: EntriesPdu) -> None:
        """Compare every entry of one side with every entry of the other."""
        mine = self._log
        theirs = [
            (sender, stamp, mask) for sender, group in pdu.entries.items() for stamp, mask in group
        ]
        theirs.append((source, pdu.stamp, pdu.destinations & ~(1 << source)))
        kept: list[LogEntry] = []
        for sender, stamp, mask in mine:
            is_removed = False
            for their_sender, their_stamp, their_mask in theirs:
                if their_sender == sender:
                    if their_stamp == stamp:
                        kept.append((sender, stamp, mask & their_mask & ~self._me_bit))
                        is_removed = True  # Replaced by what both know.
                        break
                    is_removed |= their_stamp > stamp
            if not is_removed:
                kept.append((sender, stamp, mask))
        for sender, stamp, mask in theirs:
            if all(k != sender or known < stamp for k, known, _ in mine):
                kept.append((sender, stamp, mask & ~self._me_bit))
        self._log = _purged_list(kept)


def _purged_list(log: list[LogEntry]) -> list[LogEntry]:
    """Drop empty entries older than another one of their sender."""
    return [
        (sender, stamp, mask)
        for sender, stamp, mask in log
        if mask or all(k != sender or other <= stamp for k, other, _ in log)
    ]


def printed_bytes(pdu: EntriesPdu, settings: OrderingSettings) -> int:
    """Size of the log in the papers' layout of 4-byte integers, in bytes: 4 + Σ (12 + 4·|S|)."""
    return INTEGER_BYTES + sum(
        3 * INTEGER_BYTES + INTEGER_BYTES * mask.bit_count()
        for group in pdu.entries.values()
        for _, mask in group
    )
