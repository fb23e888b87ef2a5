"""The bootstrap server: issues ids and incarnations, keeps leases, and says who is there.

[S002:sec.3.1, FDP/1 R1 R2]
"""

import msgspec

from orderwire.discovery.effects import Address, DiscoveryEffects, Post
from orderwire.discovery.messages import (
    Contact,
    Full,
    IdReply,
    Message,
    Release,
    Renew,
    RenewNo,
    RenewOk,
    RequestId,
    fitting,
    nominal_bytes,
)
from orderwire.discovery.ring import successor_rows
from orderwire.discovery.settings import (
    ID_SPACE_MAX,
    LISTED_BYTES_MAX,
    MEMBERS_MAX,
    BootstrapSettings,
)
from orderwire.kernel import (
    NS_PER_MS,
    NS_PER_S,
    Instant,
    LocalProtocolError,
    RemoteProtocolError,
    probe,
)

EPOCH_SHIFT = 32
"""An incarnation is epoch · 2³² + counter."""
EPOCH_MAX = (1 << 31) - 2
"""Largest epoch taken from a peer: the next one's incarnations must fit 63 bits."""


ANSWERS_BYTES_PER_S = 12_500_000
"""Rate at which a server's answers leave, at least: 100 Mbit/s."""
ON_ITS_WAY_NS = 100 * NS_PER_MS
"""An answer that needs so long still is not given again.

To 2,000 participants that ask at once the lists take four seconds at that rate.  Who asked again
after one of them had another list queued behind all others: that doubled the time of a boot.
"""


class Holder(msgspec.Struct):
    """Who has an id."""

    guid: str
    inc: int
    addr: Address
    until_ns: int
    answered_ns: int = 0
    """When the last answer to its request has left."""


class BootstrapServer:
    """One domain's ids.  A core: `submit` takes nothing."""

    def __init__(
        self,
        settings: BootstrapSettings,
        now: Instant,
        *,
        epoch: int,
        counter: int = 0,
        recovering: bool = False,
        successors_only: bool = False,
        both_ways: bool = False,
    ) -> None:
        """`(epoch, counter)` must grow with every start, as seconds and nanoseconds do.

        `recovering` says that an earlier server's table is lost; `successors_only` answers as
        printed, with the successor list alone, which the simulator shows to be too little, or, for
        BiFDP, with that of each direction.
        """
        self.settings = settings
        self._epoch = epoch
        self._counter = counter
        self._holders: dict[int, Holder] = {}
        """In the order of issue."""
        self._by_guid: dict[str, int] = {}
        self._by_addr: dict[Address, int] = {}
        self._leases: dict[int, None] = {}
        """Those who hold ids, the one whose lease ends first in front."""
        self._place = 0
        """Of the id that is issued next if it is free; goes round. [decision 0024]"""
        self._bits = (settings.id_space - 1).bit_length()
        self._successors_only = successors_only
        self._both_ways = both_ways
        self._busy_until = 0
        """When all answers have left, were the link no faster."""
        self._silent_until = 0
        if recovering:
            wait_ns = settings.lease_ns if settings.recovery_ns is None else settings.recovery_ns
            self._silent_until = now + wait_ns
        self.requests = 0
        self.renewals = 0

    @property
    def epoch(self) -> int:
        """The epoch of the incarnations issued now."""
        return self._epoch

    def is_recovering(self, now: Instant) -> bool:
        """Whether it still learns who is there."""
        return now < self._silent_until

    def holders(self) -> dict[int, Holder]:
        """Return who holds which id."""
        return dict(self._holders)

    def submit(self, command: object, now: Instant) -> DiscoveryEffects:
        """Refuse: a server takes no commands, except that peers cannot be reached."""
        if type(command).__name__ == "Unreachable":
            return []
        raise LocalProtocolError(f"a bootstrap server takes no {type(command).__name__}")

    def receive(self, source: Address, message: Message, now: Instant) -> DiscoveryEffects:
        """Take a request, a renewal or a release; answer to where it came from.

        Raises RemoteProtocolError for anything else, and for incarnations too large to go beyond.
        """
        self._free_overdue(now)
        if isinstance(message, RequestId):
            self._rise_above(message.lost_inc)
            self.requests += 1
            answer = self._request(message, now)
            return [] if answer is None else [Post(source, answer)]
        if isinstance(message, Renew):
            self._rise_above(message.inc)
            self.renewals += 1
            renewed = self._renew(message, now)
            self._count(renewed, now)
            return [Post(source, renewed)]
        if isinstance(message, Release):
            self._rise_above(message.inc)
            holder = self._holders.get(message.id)
            if holder is not None and (holder.guid, holder.inc) == (message.guid, message.inc):
                self._free(message.id)
            return []
        raise RemoteProtocolError(f"{type(message).__name__} is not for a bootstrap server")

    def wake(self, now: Instant) -> DiscoveryEffects:
        """Nothing is due by itself: leases are looked at when somebody asks."""
        return []

    def next_deadline(self) -> Instant | None:
        """Nothing is due by itself."""
        return None

    # -- ids --------------------------------------------------------------------------------

    def _count(self, answer: Message, now: Instant) -> None:
        wire_ns = nominal_bytes(answer) * NS_PER_S // ANSWERS_BYTES_PER_S
        self._busy_until = max(self._busy_until, now) + wire_ns

    def _request(self, message: RequestId, now: Instant) -> IdReply | Full | None:
        held = self._by_guid.get(message.guid)
        if held is not None and message.lost_inc and self._holders[held].inc <= message.lost_inc:
            self._free(held)
            held = None
        if held is not None:
            same = self._holders[held].addr == message.addr
            self._vacate(message.addr, held)
            self._move(held, message.addr, now)
            if same and now + ON_ITS_WAY_NS < self._holders[held].answered_ns:
                probe("bootstrap: answer on its way")
                return None
        else:
            if self.is_recovering(now):
                return Full(message.guid, self._ms_until(self._silent_until, now), True)
            self._vacate(message.addr)
            held = self._draw(message.wish)
            if held is None:
                retry_ms = self._ms_until(self._first_lease_end(now), now)
                return Full(message.guid, retry_ms, limit=self._limit)
            self._counter += 1
            inc = (self._epoch << EPOCH_SHIFT) + self._counter
            self._hold(held, Holder(message.guid, inc, message.addr, 0), now)
        holder = self._holders[held]
        id_space = self.settings.id_space % ID_SPACE_MAX
        answer = IdReply(message.guid, held, holder.inc, id_space, self._members(held))
        self._count(answer, now)
        holder.answered_ns = self._busy_until
        return answer

    def _members(self, held: int) -> tuple[Contact, ...]:
        listed = self._holders
        if self._successors_only:
            size = self.settings.id_space
            rows = successor_rows(sorted(self._holders), held, size)
            if self._both_ways:
                mirrored = sorted(-each % size for each in self._holders)
                rows += [-each % size for each in successor_rows(mirrored, -held % size, size)]
            listed = {each: self._holders[each] for each in rows}
        members = [
            Contact(identity, holder.addr, holder.inc)
            for identity, holder in listed.items()
            if identity != held
        ]
        return fitting(members, LISTED_BYTES_MAX)

    @property
    def _limit(self) -> int:
        return min(self.settings.id_space, MEMBERS_MAX)

    def _draw(self, wish: int | None) -> int | None:
        """Return a free id: the one wished for, or the next in bit-reversed order, round and round.

        An id that was freed is given again when all others have been, or are held.
        """
        size = self.settings.id_space
        if len(self._holders) >= self._limit:
            return None
        if wish is not None and wish < size and wish not in self._holders:
            return wish
        while True:  # One is free.
            identity = self._reversed(self._place)
            self._place = (self._place + 1) % (1 << self._bits)
            if identity < size and identity not in self._holders:
                return identity

    def _reversed(self, place: int) -> int:
        return int(format(place, f"0{self._bits}b")[::-1], 2) if self._bits else 0

    def _extend(self, identity: int, holder: Holder, now: Instant) -> None:
        """Begin a lease: all are as long, so this one ends last."""
        holder.until_ns = now + self.settings.lease_ns
        self._leases.pop(identity, None)
        self._leases[identity] = None

    def _hold(self, identity: int, holder: Holder, now: Instant) -> None:
        self._extend(identity, holder, now)
        self._holders[identity] = holder
        self._by_guid[holder.guid] = identity
        self._by_addr[holder.addr] = identity

    def _vacate(self, addr: Address, identity: int | None = None) -> None:
        """Free what others hold at this address: one is one participant, the earlier is gone."""
        past = self._by_addr.get(addr)
        if past is not None and past != identity:
            self._free(past)

    def _move(self, identity: int, addr: Address, now: Instant) -> None:
        holder = self._holders[identity]
        if self._by_addr.get(holder.addr) == identity:
            del self._by_addr[holder.addr]
        holder.addr = addr
        self._extend(identity, holder, now)
        self._by_addr[addr] = identity

    def _free(self, identity: int) -> None:
        holder = self._holders.pop(identity)
        del self._leases[identity]
        if self._by_guid.get(holder.guid) == identity:
            del self._by_guid[holder.guid]
        if self._by_addr.get(holder.addr) == identity:
            del self._by_addr[holder.addr]

    def _free_overdue(self, now: Instant) -> None:
        while self._leases and self._first_lease_end(now) < now:
            self._free(next(iter(self._leases)))

    def _first_lease_end(self, now: Instant) -> int:
        first = next(iter(self._leases), None)
        return now if first is None else self._holders[first].until_ns

    @staticmethod
    def _ms_until(due_ns: int, now: Instant) -> int:
        return max(1, -(-(due_ns - now) // NS_PER_MS))

    # -- leases -----------------------------------------------------------------------------

    def _renew(self, message: Renew, now: Instant) -> RenewOk | RenewNo:
        if message.id >= self.settings.id_space:
            return RenewNo(message.id, message.inc)
        holder = self._holders.get(message.id)
        if holder is not None and holder.inc > message.inc:
            return RenewNo(message.id, message.inc)
        there = self._by_addr.get(message.addr)
        if there is not None and there != message.id and self._holders[there].inc >= message.inc:
            return RenewNo(message.id, message.inc)
        self._vacate(message.addr, message.id)
        if holder is not None and holder.guid != message.guid:
            self._free(message.id)
            holder = None
        if holder is None:
            other = self._by_guid.get(message.guid)
            if other is not None:  # It has been given another id since.
                return RenewNo(message.id, message.inc)
            if len(self._holders) >= self._limit:
                return RenewNo(message.id, message.inc)
            self._hold(message.id, Holder(message.guid, message.inc, message.addr, 0), now)
        else:
            holder.inc = message.inc
            self._move(message.id, message.addr, now)
        return RenewOk(message.id, message.inc, self._members(message.id))

    def _rise_above(self, inc: int) -> None:
        """Issue nothing from now on that is not above this incarnation. [R1]"""
        epoch = inc >> EPOCH_SHIFT
        if epoch > EPOCH_MAX:
            raise RemoteProtocolError(
                f"incarnation {inc} of epoch {epoch}: epochs are at most {EPOCH_MAX}"
            )
        if inc > (self._epoch << EPOCH_SHIFT) + self._counter:
            self._epoch = epoch + 1
            self._counter = 0
