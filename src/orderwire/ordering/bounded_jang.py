"""Δ-causal multicast with bounded control information: Jang's elimination and floors.

Source: [S000:sec.4] as corrected, for the elimination; [S001:sec.3] for the bound.  Symbols:
CI → entries, DC_m[j] → marks and others (what copy j must wait for), F[d] → floors, MAX_CB →
`floor_cap`, Δ → lifetime.

What is cut is always the oldest, which expires first.  In its place stands a floor: the stamp of
the newest message cut for a destination.  A message to it waits there until F + Δ < now: then all
that was cut has been delivered or has expired.  As F is older than the message, it still meets its
own deadline.  "What one side lacks although it knows newer ones of that sender, it has removed for
a reason" stays true: delivered, covered, or at or below a floor that comes along.  [S001:dec.2]

Two bounds.  `floor_cap`: messages named per destination, after each change of CI.
`tag_bytes_max`: the encoded tag, everything between head and payload, at most this long in every
copy; what does not fit is cut from the tag alone, the sender keeps it.  Without either, and
whenever everything fits, deliveries are those of `jang_delta`, at the same instants.

`floor_held_target_permille` steers the budget within `tag_bytes_max`.  Of every `STEER_MESSAGES`
messages received, those are counted that a floor holds on arrival: when they are more than the
target, the budget doubles; when there are none, it falls by an eighth.  What a member receives is
what others cut; all members are in the same traffic and steer alike.

In a group where everyone sends to everyone, the tag is the causal barrier, without any switch: CI
on the wire is empty, since m covers all, and DC are the direct predecessors, since a dependency
that is listed nowhere else tells its reader that m covers it everywhere.  [decision 0011]

A loss notice (`loss_notice` of a copy) waits as the copy would have; then it counts the copy as
settled, without delivery and without merge.  [decision 0011]  The link makes them and decides when
to believe them.  [decision 0013]
"""

import heapq
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from orderwire.kernel import Destinations, Effects, Instant, ProcessId, Send, probe
from orderwire.ordering.bounded_jang_codec import (
    NO_FLOOR,
    BoundedJangPdu,
    Floor,
    Grid,
    Listed,
    encode_copy,
    encode_floors,
    encode_listed,
    loss_notice,
)
from orderwire.ordering.bounded_jang_entries import BoundedUndelivered, floors_with
from orderwire.ordering.causal_node import CausalNode, Wait
from orderwire.ordering.pdu import DiscardReason
from orderwire.ordering.settings import TAG_BYTES_LEAST, OrderingSettings
from orderwire.ordering.wire import encode_head, encode_varint

STEER_MESSAGES = 64
"""How many received messages decide on the budget, once."""

Taken = tuple[int, int, int]
"""(sender, stamp, destinations of m that must wait for this message)."""


class _Message(NamedTuple):
    """What all copies of a message have in common, before anything is cut."""

    number: int
    stamp: int
    destinations: Destinations
    remote: int
    payload: bytes
    head: bytes
    listed: tuple[Listed, ...]
    encoded: list[bytes]
    """Each entry on the wire."""
    taken: Sequence[Taken]
    own_floors: dict[int, int]
    """Floors of the destinations."""
    floors: dict[int, int]
    """Floors of the others."""


class BoundedJang(CausalNode[BoundedJangPdu]):
    """Deliver in Δ-causal order, with tags that stay within a bound."""

    NAME = "bounded-jang"
    HOLDS = True

    def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
        super().__init__(me, settings)
        if settings.floor_cap is not None or settings.tag_bytes_max is not None:
            settings.require_lifetime(f"{self.NAME} with a bound")
        self._known = BoundedUndelivered(me, cap=settings.floor_cap)
        """CI and F."""
        self._grid = Grid(settings)
        self._everyone = (1 << settings.members) - 1
        self._budget = settings.tag_bytes_max
        """Longest tag, in bytes; None: no bound."""
        self._is_steered = settings.floor_held_target_permille is not None
        self._received = 0
        self._held_by_floor = 0

    # Sending

    def _send_copies(
        self,
        effects: Effects,
        number: int,
        stamp: int,
        destinations: Destinations,
        remote: int,
        payload: bytes,
    ) -> int:
        """Extract DC, then eliminate, then piggyback CI and F, then record m."""
        known = self._known
        dead = self._dead_before()
        taken = known.extract(remote, dead)
        own_floors = known.take_floors(remote, dead) if known.floors else {}
        listed = known.listed()
        head = encode_head(stamp, number, destinations)
        message = _Message(
            number,
            stamp,
            destinations,
            remote,
            payload,
            head,
            listed,
            encode_listed(stamp, listed),
            taken,
            own_floors,
            known.floors,
        )
        copies, longest = self._copies(message, NO_FLOOR)
        if self._budget is not None and longest - len(head) > self._budget:
            copies = self._within(message, self._budget)
        control_bytes = 0
        for process, pdu in copies:
            control_bytes += len(pdu.control)
            effects.append(Send(process, pdu))
        known.record_sent(stamp, remote)
        return control_bytes

    def _within(self, message: _Message, budget: int) -> list[tuple[ProcessId, BoundedJangPdu]]:
        """Return the copies, with as little cut as makes every tag fit.

        With everything cut a tag takes at most TAG_BYTES_LEAST bytes, and no budget is smaller.
        """
        probe("bounded-jang: cut")
        stamps = {stamp for stamp, _, _ in message.listed}
        stamps.update(stamp for _, stamp, _ in message.taken)
        # NO_FLOOR: the floors alone were too long.
        cuts = sorted({NO_FLOOR, *stamps})
        low, high = 0, len(cuts) - 1
        fitting, longest = self._copies(message, cuts[high])
        assert longest - len(message.head) <= budget, f"{longest} bytes with everything cut"
        while low < high:
            middle = (low + high) // 2
            copies, longest = self._copies(message, cuts[middle])
            if longest - len(message.head) <= budget:
                high, fitting = middle, copies
            else:
                low = middle + 1
        return fitting

    def _copies(
        self, message: _Message, cut: int
    ) -> tuple[list[tuple[ProcessId, BoundedJangPdu]], int]:
        """Return the copies when all up to stamp `cut` is cut, and the longest control, in bytes.

        Copies with the same dependencies share one PDU.
        """
        stamp = message.stamp
        listed, encoded, taken = message.listed, message.encoded, message.taken
        floors, own_floors = message.floors, message.own_floors
        if cut > NO_FLOOR:
            kept = len([entry for entry in listed if entry[0] > cut])
            floors = floors_with(floors, listed[kept:])
            gone = sorted([(wait, k, hit) for k, wait, hit in taken if wait <= cut], reverse=True)
            own_floors = floors_with(own_floors, gone)
            listed, encoded = listed[:kept], encoded[:kept]
            taken = [each for each in taken if each[1] > cut]
        room = None if self._budget is None else self._budget // 4
        tail, read = encode_floors(
            stamp, floors, self._everyone & ~message.destinations, room, self._grid
        )
        front = message.head + encode_varint(len(listed) << 1) + b"".join(encoded)
        common = (message.number, stamp, message.destinations)
        # Destination's bit → its marks; bit → bit set of the other dependencies that it lacks.
        marks: dict[int, int] = {}
        lacking: dict[int, int] = {}
        others: list[Wait] = []
        index_of = (
            {(k, entry): index for index, (entry, k, _) in enumerate(listed)} if taken else {}
        )
        remote = message.remote
        last = -1
        for sender, wait, hit in taken:
            index = index_of.get((sender, wait))
            which = marks
            if index is None:
                index = len(others)
                others.append((sender, wait))
                which = lacking
                hit = remote & ~hit
                if sender != last:
                    # Its own sender waits for nothing, but learns that m covers all up to it.
                    hit &= ~(1 << sender)
                last = sender
            flag = 1 << index
            while hit:
                bit = hit & -hit
                hit ^= bit
                which[bit] = which.get(bit, 0) | flag
        parts = [encode_varint(sender) + encode_varint(stamp - wait) for sender, wait in others]
        shared: dict[tuple[int, int, int], BoundedJangPdu] = {}
        copies: list[tuple[ProcessId, BoundedJangPdu]] = []
        longest = 0
        while remote:
            bit = remote & -remote
            remote ^= bit
            process = ProcessId(bit.bit_length() - 1)
            floor = own_floors.get(process, NO_FLOOR) if own_floors else NO_FLOOR
            pattern = (marks.get(bit, 0), lacking.get(bit, 0), floor)
            pdu = shared.get(pattern)
            if pdu is None:
                pdu = shared[pattern] = self._copy(
                    common, message.payload, front, listed, pattern, others, parts, (tail, read)
                )
                if len(pdu.control) > longest:
                    longest = len(pdu.control)
            copies.append((process, pdu))
        return copies, longest

    def _copy(
        self,
        common: tuple[int, int, Destinations],
        payload: bytes,
        front: bytes,
        listed: tuple[Listed, ...],
        pattern: tuple[int, int, int],
        others: list[Wait],
        parts: list[bytes],
        floors: tuple[tuple[int, bytes], tuple[Floor, ...]],
    ) -> BoundedJangPdu:
        """Return one copy."""
        marks, lacking, floor = pattern
        if lacking:
            kept = [index for index in range(len(others)) if not lacking >> index & 1]
            others = [others[index] for index in kept]
            parts = [parts[index] for index in kept]
        own = b""
        if floor != NO_FLOOR:
            distance = self._grid.distance(common[1], floor)
            own = bytes((distance,))
            floor = self._grid.floor(common[1], distance)
        control = front + encode_copy(len(listed), marks, parts, own, floors[0])
        return BoundedJangPdu(
            *common, control, payload, listed, marks, tuple(others), floor, floors[1]
        )

    # Receiving

    @staticmethod
    def loss_notice(pdu: BoundedJangPdu) -> BoundedJangPdu:
        """Return the notice that this copy will not come.  [decision 0013]"""
        return loss_notice(pdu)

    def _waits(self, pdu: BoundedJangPdu) -> Iterable[Wait]:
        marks = pdu.marks
        if not marks:
            return pdu.others
        listed = pdu.listed
        waits = list(pdu.others)
        while marks:
            bit = marks & -marks
            marks ^= bit
            stamp, sender, _ = listed[bit.bit_length() - 1]
            waits.append((sender, stamp))
        return waits

    def _held_until(self, pdu: BoundedJangPdu) -> int:
        """Return the first instant at which all that was cut has expired: F + Δ < now."""
        until = 0
        if pdu.floor != NO_FLOOR:
            until = (pdu.floor + self._lifetime) * self._tick_ns + 1
        if self._is_steered:
            self._steer(until > self._now)
        return until

    def _steer(self, is_held: bool) -> None:
        """Count a received message; every so often, change the budget."""
        longest = self._settings.tag_bytes_max
        target = self._settings.floor_held_target_permille
        assert self._budget is not None
        assert longest is not None
        assert target is not None
        self._received += 1
        self._held_by_floor += is_held
        if self._received < STEER_MESSAGES:
            return
        if self._held_by_floor * 1_000 > target * STEER_MESSAGES:
            self._budget = min(longest, self._budget * 2)
        elif not self._held_by_floor:
            self._budget = max(TAG_BYTES_LEAST, self._budget - -(-self._budget // 8))
        self._received = self._held_by_floor = 0

    def _merge(self, source: ProcessId, pdu: BoundedJangPdu) -> None:
        self._known.merge_tag(source, pdu)

    def _deliver(
        self, source: ProcessId, pdu: BoundedJangPdu, arrived: Instant, effects: Effects
    ) -> None:
        if pdu.is_notice:
            probe("bounded-jang: settled by a notice")
            self._delivered[source] = max(self._delivered[source], pdu.stamp)
            blocked = self._blocked[source]
            while blocked and blocked[0][0] <= pdu.stamp:
                self._settle(source, heapq.heappop(blocked)[3])
        else:
            super()._deliver(source, pdu, arrived, effects)

    def _discard(self, source: ProcessId, pdu: BoundedJangPdu, reason: DiscardReason) -> Effects:
        if pdu.is_notice:
            return []  # There was no message.
        return super()._discard(source, pdu, reason)
