"""Produce requests in a replica's lane that wait for their order, or for the commit of it."""

from collections import deque
from itertools import takewhile

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, Refused
from orderwire.broker.replication.effects import Answer, Effects, Tell
from orderwire.broker.replication.lane_messages import LaneForwarded, LaneSlice
from orderwire.broker.replication.view import BrokerId


class Waiting(msgspec.Struct, gc=False):
    """One request."""

    position: int
    end: int
    """Where the next one begins."""
    asker: BrokerId | None
    """Who forwarded it; None: it is ours."""
    token: int
    """Of the runtime, or the forwarder's number; −1: nobody waits any more."""
    at_commit: bool
    """Whether the order is not enough."""
    count: int
    """Records."""
    offset: int = -1
    """−1: no order yet."""
    duplicate: bool = False


class WaitingRequests:
    """In the order of the lane."""

    def __init__(self) -> None:
        self._requests: deque[Waiting] = deque()
        self._unordered = 0
        """How many at the end have no order yet."""
        self._by_token: dict[int, Waiting] = {}

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Waiting) -> None:
        """Take a request that was just appended to the lane."""
        self._requests.append(request)
        self._unordered += 1
        if request.asker is None:
            self._by_token[request.token] = request

    def forget(self, token: int) -> None:
        """Nobody waits any more; the batch stays."""
        request = self._by_token.pop(token, None)
        if request is not None:
            request.token = -1

    def forget_asker(self, asker: BrokerId) -> None:
        """The connection to a forwarder is gone."""
        for request in self._requests:
            if request.asker == asker:
                request.token = -1

    def boundary(self, start: int, limit: int) -> int:
        """The end of the last request that ends at or before `limit`; `start` when none does."""
        found = start
        for request in takewhile(lambda each: each.end <= limit, self._requests):
            if request.position >= start:
                found = request.end
        return found

    def ordered(self, piece: LaneSlice, places: dict[int, int]) -> Effects:
        """Note the offsets that a cut gives to our lane; answer whom the order is enough."""
        effects: Effects = []
        left_out = {position: (code, offset) for position, code, offset in piece.left_out}
        kept: deque[Waiting] = deque()
        while self._unordered:
            request = self._requests[-self._unordered]
            if request.end > piece.end:
                break
            place = places.get(request.position)
            if place is not None:
                request.offset = place
            else:
                code, offset = left_out.get(
                    request.position, (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, -1)
                )
                if code:
                    request.token = self._answer(
                        request,
                        Refused(ErrorCode(code), "not stored: send it again"),
                        effects,
                    )
                    request.at_commit = False
                else:
                    request.offset = offset
                    request.duplicate = True
            if not request.at_commit:
                self._answer_offset(request, effects)
            self._unordered -= 1
        while self._requests and len(self._requests) > self._unordered:
            request = self._requests.popleft()
            if request.token != -1:
                kept.append(request)
        self._requests.extendleft(reversed(kept))
        return effects

    def passed(self, end: int) -> Effects:
        """What lies before this position is ordered, we did not see where: ask to send again."""
        effects: Effects = []
        while self._unordered and self._requests[-self._unordered].end <= end:
            request = self._requests[-self._unordered]
            self._answer(
                request,
                Refused(
                    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
                    "it is stored, but this replica does not know at which offset",
                ),
                effects,
            )
            request.token = -1
            self._unordered -= 1
        return effects

    def committed(self, high_watermark: int) -> Effects:
        """Answer what waited for this commit."""
        effects: Effects = []
        requests = self._requests
        while len(requests) > self._unordered:
            request = requests[0]
            if request.token != -1 and request.offset + request.count > high_watermark:
                break
            requests.popleft()
            self._answer_offset(request, effects)
        return effects

    def reverted(self, end: int) -> None:
        """The cut is undone: what lies behind this position has no order again."""
        number = len(self._requests)
        for request in self._requests:
            if request.position >= end:
                break
            number -= 1
        self._unordered = number
        for index in range(len(self._requests) - number, len(self._requests)):
            self._requests[index].offset = -1
            self._requests[index].duplicate = False

    def refuse_all(self, error: ErrorCode, message: str) -> Effects:
        """Nobody waits any more; the batches stay in the lane."""
        effects: Effects = []
        refused = Refused(error, message)
        for request in self._requests:
            self._answer(request, refused, effects)
        self._requests.clear()
        self._by_token.clear()
        self._unordered = 0
        return effects

    def _answer_offset(self, request: Waiting, effects: Effects) -> None:
        if request.token == -1:
            return
        last = request.offset + request.count - 1
        result = Appended(request.offset, last, duplicate=request.duplicate)
        request.token = self._answer(request, result, effects)

    def _answer(self, request: Waiting, result: Appended | Refused, effects: Effects) -> int:
        """Answer, should somebody wait; returns the token of nobody."""
        if request.token != -1:
            if request.asker is None:
                self._by_token.pop(request.token, None)
                effects.append(Answer(request.token, result))
            else:
                effects.append(Tell(request.asker, LaneForwarded(request.token, result)))
        return -1
