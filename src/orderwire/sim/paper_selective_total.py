"""The paper's ST, read literally: a twin that must fail.  [S003:sec.3.2] [S003:sec.4.1]

Indices are repaired where the print contradicts itself, and nothing else.  It exists to show what
the corrected protocol closes, in the simulator only, and shares nothing with it.  Entities count
from 1, as in the paper; numbers of PDUs from 0.
"""

from collections import deque
from enum import Enum
from typing import TypeAlias

import msgspec


class Step4(Enum):
    """How step (4) of the recovery, which sets numbers before PDUs are sent again, is read."""

    PRINTED = "printed"
    """The sender goes back to A and the receiver ahead to D: what is sent again is refused."""
    MEANT = "meant"
    """The receiver keeps places for what it misses, and they are filled."""


class Data(msgspec.Struct, frozen=True):
    """p: a message and its numbers.  [S003:sec.3.1]"""

    name: str
    source: int
    destinations: frozenset[int]
    tseq: int
    pseq: tuple[int, ...]
    ack: tuple[int, ...]
    again: bool = False
    """Sent for the second time."""


class Rst(msgspec.Struct, frozen=True):
    """Somebody has found a failure."""


class Pak(msgspec.Struct, frozen=True):
    """RST_PAK: A, what is expected from each; D, what each is to expect from me."""

    a: tuple[int, ...]
    d: tuple[int, ...]


class Ack(msgspec.Struct, frozen=True):
    """RST_ACK: as RST_PAK, when all of those are there."""

    a: tuple[int, ...]
    d: tuple[int, ...]


Pdu: TypeAlias = Data | Rst | Pak | Ack
HOLE = "?"


class PaperST:
    """One entity.  It puts its PDUs into `queue`; the channel hands them to all, its own too."""

    def __init__(self, me: int, entities: int, *, window: int = 8, step4: Step4) -> None:
        self.me = me
        self._all = range(1, entities + 1)
        self._window = window
        self._step4 = step4
        self.queue: deque[Pdu] = deque()
        self.waiting: deque[tuple[str, frozenset[int]]] = deque()
        """What the window does not let go."""
        self.tseq = 0
        self.pseq = dict.fromkeys(self._all, 0)
        self.treq = dict.fromkeys(self._all, 0)
        self.preq = dict.fromkeys(self._all, 0)
        self.al = {stream: dict.fromkeys(self._all, 0) for stream in self._all}
        self.pal = {stream: dict.fromkeys(self._all, 0) for stream in self._all}
        self.sent: list[Data] = []
        """SL."""
        self.acknowledged: list[Data] = []
        """ARL: the application has it."""
        self.pre_acknowledged: deque[Data] = deque()
        """PRL."""
        self.accepted: deque[Data | tuple[int, int]] = deque()
        """RRL; a pair is a place that is kept for a source's PSEQ."""
        self.recovering = False
        self.recoveries = 0
        self._paks: dict[int, Pak] = {}
        self._acks: dict[int, Ack] = {}

    @property
    def log(self) -> list[str]:
        """RL: everything, in order."""
        names = [each.name for each in (*self.acknowledged, *self.pre_acknowledged)]
        return names + [each.name if isinstance(each, Data) else HOLE for each in self.accepted]

    # Sending.  [S003:sec.3.2]

    def compose(self, name: str, destinations: frozenset[int]) -> None:
        """The application wants to send."""
        self.waiting.append((name, destinations))
        self._send()

    def _send(self) -> None:
        least = min(self.al[self.me].values())
        while self.waiting and not self.recovering and self.tseq < least + self._window:
            name, destinations = self.waiting.popleft()
            data = Data(
                name,
                self.me,
                destinations,
                self.tseq,
                tuple(self.pseq[each] for each in self._all),
                tuple(self.treq[each] for each in self._all),
            )
            self.tseq += 1
            for each in destinations:
                self.pseq[each] += 1
            self.sent.append(data)
            self.queue.append(data)

    # Receiving.

    def receive(self, source: int, pdu: Pdu) -> None:
        """Take a PDU from the channel."""
        if isinstance(pdu, Data):
            self._data(pdu)
        elif isinstance(pdu, Rst):
            self._stop()
        elif isinstance(pdu, Pak):
            self._stop()
            self._paks[source] = pdu
            if len(self._paks) == len(self._all):
                self.queue.append(Ack(*self._numbers()))
        else:
            self._acks[source] = pdu
            if len(self._acks) == len(self._all):
                self._recover()
        self._send()

    def _numbers(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return tuple(self.preq[h] for h in self._all), tuple(self.pseq[h] for h in self._all)

    def _data(self, p: Data) -> None:
        j, mine = p.source, self.me in p.destinations
        number = p.pseq[self.me - 1]
        if p.again and self._step4 is Step4.MEANT:
            self._fill(p, number)
        elif p.tseq == self.treq[j] or (mine and number == self.preq[j]):
            if mine and number < self.preq[j]:
                return  # a number that was had before
            self.treq[j] = p.tseq + 1
            for k in self._all:
                self.al[k][j] = p.ack[k - 1]
            if mine:
                self.preq[j] = number + 1
                self.accepted.append(p)
        self._progress()
        missing = number > self.preq[j]
        missing = missing or any(p.ack[h - 1] > self.treq[h] for h in self._all if h != j)
        if missing and not self.recovering and not p.again:
            self.queue.append(Rst())
            self._stop()

    def _fill(self, p: Data, number: int) -> None:
        place = (p.source, number)
        self.accepted = deque(p if each == place else each for each in self.accepted)

    def _progress(self) -> None:
        """Pre-acknowledge, then acknowledge, from the top.  [S003:sec.3.3]"""
        while self.accepted and not self.recovering:
            top = self.accepted[0]
            if not isinstance(top, Data):
                return
            if top.tseq >= min(self.al[top.source][k] for k in top.destinations):
                break
            self.pre_acknowledged.append(top)
            self.accepted.popleft()
            for k in self._all:
                self.pal[k][top.source] = top.ack[k - 1]
        while self.pre_acknowledged and not self.recovering:
            top = self.pre_acknowledged[0]
            if top.tseq >= min(self.pal[top.source][k] for k in top.destinations):
                break
            self.acknowledged.append(top)
            self.pre_acknowledged.popleft()

    # Recovery.  [S003:sec.4.1] [S003:sec.4.3]

    def _stop(self) -> None:
        if not self.recovering:
            self.recovering = True
            self.recoveries += 1
            self._paks, self._acks = {}, {}
            self.repeat()

    def repeat(self) -> None:
        """Put RST_PAK: when stopped, and again by hand, as the print has nobody do."""
        self.queue.append(Pak(*self._numbers()))

    def _recover(self) -> None:
        log = [*self.pre_acknowledged, *self.accepted]
        least = {h: min(pak.a[h - 1] for pak in self._paks.values()) for h in self._all}
        point = next(
            (
                at
                for at, each in enumerate(log)
                if not isinstance(each, Data) or each.pseq[self.me - 1] >= least[each.source]
            ),
            len(log),
        )
        behind: list[Data | tuple[int, int]] = list(log[point:])
        self.acknowledged += [each for each in log[:point] if isinstance(each, Data)]
        again = [
            (h, p)
            for h, ack in self._acks.items()
            for p in self.sent
            if h in p.destinations and self._is_missed(p, h, ack)
        ]
        for h, ack in self._acks.items():
            ahead = ack.d[self.me - 1]
            if self._step4 is Step4.PRINTED:
                self.pseq[h] = ack.a[self.me - 1]
            else:
                behind += [(h, number) for number in range(self.preq[h], ahead)]
            self.preq[h] = ahead
        rank = {source: at for at, source in enumerate(self._paks)}

        def key(each: Data | tuple[int, int]) -> tuple[int, int]:
            if isinstance(each, Data):
                return rank[each.source], each.pseq[self.me - 1]
            return rank[each[0]], each[1]

        self.pre_acknowledged.clear()
        self.accepted = deque(sorted(behind, key=key))
        self.recovering = False
        for _, p in again:
            self.queue.append(msgspec.structs.replace(p, again=True))

    def _is_missed(self, p: Data, by: int, ack: Ack) -> bool:
        number, first = p.pseq[by - 1], ack.a[self.me - 1]
        return number > first if self._step4 is Step4.PRINTED else number >= first


class PaperGroup:
    """Entities on a 1C channel, step by step; no time passes."""

    def __init__(self, entities: int, *, window: int = 8, step4: Step4 = Step4.PRINTED) -> None:
        self.entities = {
            me: PaperST(me, entities, window=window, step4=step4) for me in range(1, entities + 1)
        }
        self.again: list[str] = []
        """Data that was put for the second time."""
        self.control = 0
        """RST, RST_PAK and RST_ACK that were put."""
        self.lose: dict[tuple[type, int], frozenset[int]] = {}
        """The next of this kind from this source is lost at these."""

    def compose(self, source: int, name: str, *destinations: int) -> None:
        """Ask an entity to send; its PDU waits for the channel."""
        self.entities[source].compose(name, frozenset(destinations))

    def put(self, source: int, *lost: int) -> None:
        """The channel carries the first PDU of a queue, and then all control PDUs."""
        self._put(source, frozenset(lost))
        while (at := self._with_control()) is not None:
            self._put(at, frozenset())

    def send(self, source: int, name: str, *destinations: int, lost: tuple[int, ...] = ()) -> None:
        """Compose, and put at once."""
        self.compose(source, name, *destinations)
        self.put(source, *lost)

    def drain(self) -> None:
        """Put whatever waits."""
        while waiting := [at for at, each in self.entities.items() if each.queue]:
            self.put(waiting[0])

    def _with_control(self) -> int | None:
        for at, each in self.entities.items():
            if any(not isinstance(pdu, Data) or pdu.again for pdu in each.queue):
                return at
        return None

    def _put(self, source: int, lost: frozenset[int]) -> None:
        pdu = self.entities[source].queue.popleft()
        if not isinstance(pdu, Data):
            self.control += 1
            lost |= self.lose.pop((type(pdu), source), frozenset())
        elif pdu.again:
            self.again.append(pdu.name)
        for at, each in self.entities.items():
            if at not in lost:
                each.receive(source, pdu)

    def log(self, entity: int) -> str:
        """An entity's log, names with spaces between."""
        return " ".join(self.entities[entity].log)
