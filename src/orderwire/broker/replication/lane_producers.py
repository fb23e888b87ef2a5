"""Which lane an idempotent producer belongs to, and requests that wait for the answer.

A producer belongs to the lane that first took a batch of it, as long as its owner is in sync.  A
replica that gets a batch of another lane's forwards it there; one that does not know asks the
original.  That keeps a producer's batches in one lane, in order; should they come through several
all the same (the owner died, an answer was lost), the cut puts them right: see `SequenceJudge`.
"""

import msgspec

from orderwire.broker.log import Admitted
from orderwire.broker.replication.view import BrokerId


class Request(msgspec.Struct, gc=False):
    """A produce request that is not in any lane yet."""

    asker: BrokerId | None
    """Who forwarded it; None: it is ours."""
    token: int
    acks: int
    admitted: Admitted
    records: bytes
    """A copy, when it has to wait; else empty."""


class LaneProducers:
    """One replica's knowledge of them."""

    def __init__(self, producers_max: int) -> None:
        self._producers_max = producers_max
        self.bound: dict[int, int] = {}
        """Producer id → broker; the longest silent first."""
        self.asked: dict[int, list[Request]] = {}
        """Producer id → what waits for the original's answer."""
        self.forwarded: dict[int, tuple[int, BrokerId]] = {}
        """Number → token and whom it went to."""
        self._number = 0

    @property
    def waiting(self) -> int:
        """Requests that wait here."""
        waiting = len(self.forwarded)
        return waiting + sum(map(len, self.asked.values())) if self.asked else waiting

    def bind(self, producer_id: int, broker: int) -> None:
        """Note whose lane has the producer's newest batch."""
        bound = self.bound
        if bound.get(producer_id) == broker:
            return
        bound.pop(producer_id, None)
        bound[producer_id] = broker
        while len(bound) > self._producers_max:
            del bound[next(iter(bound))]

    def decide(self, producer_id: int, asker: BrokerId, isr: tuple[BrokerId, ...]) -> int:
        """As the original: whose lane the producer belongs to from now on."""
        owner = self.bound.get(producer_id)
        if owner is None or owner not in isr:
            owner = asker
            self.bind(producer_id, owner)
        return owner

    def forward(self, token: int, to: BrokerId) -> int:
        """Note a forwarded request; returns its number."""
        self._number += 1
        self.forwarded[self._number] = (token, to)
        return self._number

    def forget(self, token: int) -> None:
        """Nobody waits for this answer any more."""
        for number, (each, _) in self.forwarded.items():
            if each == token:
                del self.forwarded[number]
                return
        for producer_id, requests in self.asked.items():
            for request in requests:
                if request.asker is None and request.token == token:
                    request.token = -1
                    if all(each.token == -1 for each in requests):
                        del self.asked[producer_id]  # the next one asks again
                    return
