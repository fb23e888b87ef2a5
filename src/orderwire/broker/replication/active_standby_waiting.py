"""Produce requests that wait until enough replicas have their batches."""

from heapq import heappop, heappush

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.log import Appended, Refused
from orderwire.broker.replication.effects import Answer, Effects


class Waiting:
    """Requests by the offset that they wait for."""

    def __init__(self) -> None:
        self._results: dict[int, Appended] = {}
        """By token: the answer, once the offset is reached."""
        self._for_all: list[tuple[int, int]] = []
        """(last offset, token) of acks=all."""
        self._for_disk: list[tuple[int, int]] = []
        """The same of acks=1."""

    def __len__(self) -> int:
        return len(self._results)

    def add(self, token: int, acks: int, result: Appended) -> None:
        """Wait for this result's last offset."""
        self._results[token] = result
        heappush(self._for_disk if acks == 1 else self._for_all, (result.last_offset, token))

    def forget(self, token: int) -> None:
        """Nobody waits any more."""
        self._results.pop(token, None)

    def due(self, high_watermark: int, on_disk: int) -> Effects:
        """Answers to all whose offset is below."""
        effects: Effects = []
        for heap, limit in ((self._for_all, high_watermark), (self._for_disk, on_disk)):
            while heap and heap[0][0] < limit:
                _, token = heappop(heap)
                result = self._results.pop(token, None)
                if result is not None:
                    effects.append(Answer(token, result))
        return effects

    def fail(self, error: ErrorCode, reason: str) -> Effects:
        """Answer everybody that what becomes of their batches is unknown."""
        effects: Effects = [Answer(token, Refused(error, reason)) for token in self._results]
        self._results.clear()
        self._for_all.clear()
        self._for_disk.clear()
        return effects
