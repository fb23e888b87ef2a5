"""Drawn runs of ST and its rivals: losses, outages, crashes, changes of views.  [S003:sec.4.1]"""

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

import msgspec

from orderwire.kernel import Destinations, Instant, ProcessId, destinations, ms, us
from orderwire.kernel.chance import stream
from orderwire.ordering.pdu import Delivered, Multicast
from orderwire.ordering.total.catalog import Promises, TotalOrder
from orderwire.ordering.total.csn_pdu import Blank, KeepPlace, Named, NumberedRtx, PutAgain
from orderwire.ordering.total.flushing import Flush
from orderwire.ordering.total.pdu import (
    ChangeView,
    Data,
    Installed,
    Member,
    Nak,
    Rst,
    RstAck,
    RstPak,
    Rtx,
    Turn,
)
from orderwire.ordering.total.settings import Delivery, Stability, TotalSettings
from orderwire.ordering.total.tachikawa_st import TachikawaST
from orderwire.sim.failure_lines import BehindLines
from orderwire.sim.selective_total_judge import SelectiveTotalJudge
from orderwire.sim.selective_total_trace import TACHIKAWA_ST, GroupTrace
from orderwire.sim.serial_channel import ChannelSettings, Outage, SerialChannel
from orderwire.trace import Sink

SLOT_NS = us(100)
REST_NS = ms(60_000)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change of views: who crashes first, who joins, and when each member is told."""

    at_ns: int
    crash: tuple[ProcessId, ...] = ()
    join: tuple[ProcessId, ...] = ()
    told_after_ns: tuple[tuple[ProcessId, int], ...]


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """One run: what is asked of the group and what is done to it."""

    settings: TotalSettings
    channel: ChannelSettings
    messages: tuple[tuple[int, ProcessId, Destinations], ...]
    """(time, source, destinations)."""
    changes: tuple[Change, ...] = ()


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came out."""

    violations: tuple[str, ...]
    delivered: int
    recoveries: int
    repeated: int
    nulls: int
    put: int
    lost: int
    rest_ns: int
    put_by_last: int
    """PDUs put when the last message was delivered."""
    last_ns: int
    """When that was."""
    latencies_ns: tuple[int, ...] = ()
    again: int = 0
    """Messages put once more: RTX, or DATA that go-back sends again."""
    control: int = 0
    """RST, RST_PAK and RST_ACK put."""
    asked: int = 0
    """NAK put, and ST-CSN's Blank and Named."""
    paused_ns: int = 0
    """From an epoch's first control PDU to the end of its last, all epochs together."""
    behind: int = 0
    """Messages that a failure line found at a destination and not delivered for certain."""


Maker = Callable[..., TotalOrder]
_EVERYTHING = Promises()
_CONTROL = (Rst, RstPak, RstAck)
_AS_ST: Mapping[type, type] = {NumberedRtx: Rtx, PutAgain: Data}
_ASKING = (Nak, Blank, Named)


def run(
    plan: Plan,
    seed: int | str,
    make: Maker = TachikawaST,
    *,
    promises: Promises = _EVERYTHING,
    rest_ns: int = REST_NS,
    sink: Sink | None = None,
    run_id: str = "st",
    algorithm: str = TACHIKAWA_ST,
) -> Outcome:
    """Run the group to rest; the same plan and seed give the same outcome.

    One that is not at rest after `rest_ns` is stuck.  What does not promise to rest is over when
    everything is delivered and settled.  Its trace goes to `sink`, as run `run_id` of `algorithm`.
    """
    trace = None
    if sink is not None:
        joins = [process + 1 for change in plan.changes for process in change.join]
        members = max([plan.settings.members, *joins])
        trace = GroupTrace(run_id, sink, members, algorithm=algorithm)
    return _Run(plan, seed, make, promises, trace).run(rest_ns)


class _Run:
    def __init__(
        self,
        plan: Plan,
        seed: int | str,
        make: Maker,
        promises: Promises,
        trace: GroupTrace | None = None,
    ) -> None:
        self._plan = plan
        self._trace = trace
        self._make = make
        self._promises = promises
        self._cores: dict[ProcessId, TotalOrder] = {}
        settings = plan.settings
        physical = settings.buffers + settings.buffers // settings.headroom
        self._judge = SelectiveTotalJudge(self._cores, physical, promises)
        self._channel = SerialChannel(
            plan.channel,
            seed,
            Turn,
            self._on_indication,
            self._on_put,
            None if trace is None else trace.receive,
            place_form=KeepPlace,
        )
        self._counts: dict[type, int] = {}
        self._behind = BehindLines()
        self._numbers: dict[ProcessId, int] = {}
        self._epochs: set[tuple[int, int]] = set()
        self._named: set[tuple[ProcessId, int]] = set()
        """Messages that were put."""
        self._paused: dict[tuple[int, int], tuple[int, int]] = {}
        """When each epoch's first and last control PDU were put."""
        self._members = {ProcessId(k) for k in range(settings.members)}
        self._views = 0
        self._put_by_last = self._last_ns = 0
        self._first_open = 0
        self._open_views = [frozenset(self._members)]
        self._installed: dict[int, set[ProcessId]] = {}

    def run(self, rest_ns: int) -> Outcome:
        plan, channel = self._plan, self._channel
        for process in sorted(self._members):
            self._start(process, joining=False)
        for when, source, mask in plan.messages:
            channel.at(when, lambda s=source, m=mask: self._send(s, m))  # type: ignore[misc]
        for change in plan.changes:
            channel.at(change.at_ns, lambda c=change: self._change(c))  # type: ignore[misc]
        if self._promises.rests:
            channel.run(rest_ns)
        else:
            asked_ns = max([when for when, _, _ in plan.messages], default=0)
            told_ns = [c.at_ns + max(after for _, after in c.told_after_ns) for c in plan.changes]
            until = max([asked_ns, *told_ns])
            channel.run(until)
            while until < rest_ns and not self._is_settled():
                until += 50 * SLOT_NS
                channel.run(until)
        survivors = self._survivors()
        idle = channel.is_idle if self._promises.rests else self._is_settled()
        at_rest = idle and all(
            not core.is_recovering and not any(True for _ in core.waiting())
            for k, core in self._cores.items()
            if k in survivors
        )
        self._judge.check_rest(survivors, at_rest=at_rest)
        if self._trace is not None:
            self._trace.close(survivors if at_rest else set(), channel.now)
        return Outcome(
            violations=tuple(self._judge.violations),
            delivered=sum(map(len, self._judge.delivered.values())),
            recoveries=len(self._epochs),
            repeated=self._counts.get(Rtx, 0),
            nulls=self._counts.get(type(None), 0),
            put=channel.put,
            lost=channel.lost,
            rest_ns=channel.now,
            put_by_last=self._put_by_last,
            last_ns=self._last_ns,
            latencies_ns=tuple(self._judge.latencies),
            again=self._counts.get(Rtx, 0) + self._counts.get(Data, 0) - len(self._named),
            control=sum(self._counts.get(form, 0) for form in _CONTROL),
            asked=sum(self._counts.get(form, 0) for form in _ASKING),
            paused_ns=sum(end - begin for begin, end in self._paused.values()),
            behind=self._behind.receipts,
        )

    def _survivors(self) -> set[int]:
        return {int(k) for k in self._members if k not in self._judge.crashed}

    def _is_settled(self) -> bool:
        live = [self._cores[ProcessId(k)] for k in sorted(self._survivors())]
        return all(getattr(core, "is_settled", True) for core in live)

    def _start(self, process: ProcessId, *, joining: bool) -> None:
        core = self._make(process, self._plan.settings, joining=joining)
        self._cores[process] = core
        if self._trace is not None:
            self._trace.start(process, self._channel.now)
            if not joining:
                mask = destinations(ProcessId(k) for k in range(self._plan.settings.members))
                self._trace.found(process, mask, self._channel.now)
        self._channel.add(process, core)

    def _send(self, source: ProcessId, mask: Destinations) -> None:
        core = self._channel.cores.get(source)
        if core is None or self._is_out(source):
            return
        members = {m.process for m in self._cores[source].view.members}
        mask = destinations(k for k in members if mask >> k & 1)
        if mask:
            number = self._numbers.get(source, 0)
            self._numbers[source] = number + 1
            self._judge.note_sent(source, number, mask)
            self._channel.submit(source, Multicast(b"", mask))

    def _is_out(self, process: ProcessId) -> bool:
        return process in self._judge.crashed or not self._cores[process].view.members

    def _may_crash(self, victims: tuple[ProcessId, ...]) -> bool:
        """Whether the view service could go on: with a majority of every view that may matter."""
        left = self._members - set(victims)
        return all(2 * len(view & left) > len(view) for view in self._open_views)

    def _note_installed(self, process: ProcessId, number: int) -> None:
        """Close the views before one that a majority of its members has installed."""
        here = self._installed.setdefault(number, set())
        here.add(process)
        index = number - self._first_open
        if index > 0 and 2 * len(here) > len(self._open_views[index]):
            del self._open_views[:index]
            self._first_open = number

    def _change(self, change: Change) -> None:
        if not self._may_crash(change.crash):
            change = msgspec.structs.replace(change, crash=())
            if not change.join:
                return
        for process in change.crash:
            self._judge.crashed.add(process)
            self._channel.remove(process)
        self._members = (self._members - set(change.crash)) | set(change.join)
        for process in change.join:
            self._start(process, joining=True)
        self._views += 1
        self._open_views.append(frozenset(self._members))
        view = ChangeView(self._views, tuple(sorted(Member(k) for k in self._members)))
        after = dict(change.told_after_ns)
        for process in sorted(self._members):
            when = self._channel.now + after.get(process, 0)
            self._channel.at(
                when,
                lambda p=process, v=view: self._channel.submit(p, v),  # type: ignore[misc]
            )

    def _on_put(self, source: ProcessId, pdu: Any, now: Instant) -> None:
        form = _AS_ST.get(type(pdu), type(pdu))
        if form is Data and not pdu.destinations:
            form = type(None)
        self._counts[form] = self._counts.get(form, 0) + 1
        if form is Data:
            self._named.add((source, pdu.number))
            self._judge.note_put(source, pdu.number, pdu.epoch[0])
            self._behind.data(source, pdu)
        elif form in _CONTROL:
            begin, _ = self._paused.get(pdu.epoch, (now, now))
            self._paused[pdu.epoch] = (begin, now + self._plan.channel.slot_ns)
        if form is RstAck:
            self._epochs.add(pdu.epoch)
            self._behind.ack(source, pdu, len(self._members))
        elif form is Flush:
            self._epochs.add((pdu.view, 0))

    def _on_indication(self, process: ProcessId, indication: Any, now: Instant) -> None:
        if self._trace is not None:
            self._trace.indicate(process, indication, now)
        if isinstance(indication, Delivered):
            self._judge.note_delivered(process, indication, now)
            self._judge.check_buffers(process)
            self._put_by_last, self._last_ns = self._channel.put, now
        elif isinstance(indication, Installed):
            self._note_installed(process, indication.number)
            self._judge.note_installed(process, indication.number)


# ---------------------------------------------------------------------- generators


def _settings(chance: Random, members: int) -> TotalSettings:
    slot = SLOT_NS
    ack = slot * chance.choice((2, 10, 20))
    buffers = chance.choice((members, 2 * members, 8, 64, 4096))
    return TotalSettings(
        members=members,
        delivery=chance.choice(tuple(Delivery)),
        stability=chance.choice(tuple(Stability)),
        window=chance.choice((1, 2, 4, 8, 16)),
        buffers=max(members, buffers),
        ack_delay_ns=ack,
        heartbeat_ns=4 * ack,
        heartbeat_max_ns=40 * ack,
        control_ns=slot * 40,
        nak_ns=slot * 40,
        guard_ns=slot * 10,
    )


def _messages(
    chance: Random, members: int, count: int, gap_ns: int, size_max: int | None = None
) -> tuple[tuple[int, ProcessId, Destinations], ...]:
    when, found = 0, []
    for _ in range(count):
        when += chance.randrange(1, 2 * gap_ns)
        size = chance.randint(1, size_max or members)
        mask = destinations(chance.sample(range(members), size))
        found.append((when, ProcessId(chance.randrange(members)), mask))
    return tuple(found)


def _lag(chance: Random) -> int:
    return SLOT_NS * chance.choice((0, 0, 5, 20))


def mixed(seed: int) -> Plan:
    """f up to 0.3, independent, or outages; nothing crashes."""
    chance = stream(seed, "mixed")
    return _lossy(chance, (2, 5), lambda: chance.choice((0.0, 0.01, 0.05, 0.1, 0.3)))


def heavy(seed: int) -> Plan:
    """f from 0.3 to 0.5 for ever, up to eight members: somebody misses almost every PDU."""
    chance = stream(seed, "heavy")
    return _lossy(chance, (3, 8), lambda: chance.uniform(0.3, 0.5))


def _lossy(chance: Random, sizes: tuple[int, int], loss: Callable[[], float]) -> Plan:
    """Lose as much for ever, independently."""
    members = chance.randint(*sizes)
    return Plan(
        settings=_settings(chance, members),
        channel=ChannelSettings(
            slot_ns=SLOT_NS,
            loss=loss(),
            own_loss=chance.random() < 0.7,
            lag_ns=_lag(chance),
        ),
        messages=_messages(chance, members, chance.randint(2, 30), SLOT_NS * 8),
    )


def deaf(seed: int) -> Plan:
    """Receivers overrun: each misses everything for a while.

    In half of the runs few are to receive a message and it is delivered early, so that much depends
    on what others miss that comes from the same source.
    """
    chance = stream(seed, "deaf")
    sharp = chance.random() < 0.5
    members = chance.randint(3 if sharp else 2, 5)
    count = chance.randint(10 if sharp else 2, 30)
    gap = SLOT_NS * chance.choice((1, 2) if sharp else (1, 2, 8))
    span = gap * count
    outages = []
    for _ in range(chance.choice((2, 6, 12) if sharp else (1, 2, 3, 4))):
        start = chance.randrange(span)
        length = SLOT_NS * chance.randint(1, 40)
        outages.append(Outage(ProcessId(chance.randrange(members)), start, start + length))
    settings = _settings(chance, members)
    if sharp:
        settings = msgspec.structs.replace(
            settings,
            delivery=Delivery.PREACK,
            window=16,
            buffers=4096,
            ack_delay_ns=2 * SLOT_NS,
            heartbeat_ns=8 * SLOT_NS,
            heartbeat_max_ns=80 * SLOT_NS,
        )
    return Plan(
        settings=settings,
        channel=ChannelSettings(
            slot_ns=SLOT_NS,
            own_loss=chance.random() < 0.7,
            lag_ns=_lag(chance),
            outages=tuple(outages),
        ),
        messages=_messages(chance, members, count, gap, 2 if sharp else None),
    )


def lossy_start(seed: int) -> Plan:
    """f from 0.2 to 0.6 at first, then nothing is lost; half of the runs spare control PDUs."""
    chance = stream(seed, "lossy start")
    members = chance.randint(2, 5)
    count = chance.randint(2, 30)
    gap = SLOT_NS * chance.choice((1, 2, 8))
    return Plan(
        settings=_settings(chance, members),
        channel=ChannelSettings(
            slot_ns=SLOT_NS,
            loss=chance.uniform(0.2, 0.6),
            loss_until_ns=gap * count * 2,
            own_loss=chance.random() < 0.7,
            lag_ns=_lag(chance),
            spared=(Rst, RstPak, RstAck, Rtx, Nak) if chance.random() < 0.5 else (),
        ),
        messages=_messages(chance, members, count, gap),
    )


def _with_changes(plan: Plan, seed: int) -> Plan:
    """Crash a minority, one after the other, and let somebody join now and then."""
    chance = stream(seed, "changes")
    members = list(range(plan.settings.members))
    span = max(when for when, _, _ in plan.messages) + 1
    fresh = plan.settings.members
    when, changes = 0, []
    for _ in range(chance.randint(1, 3)):
        when += chance.randrange(span) + SLOT_NS
        majority = len(members) // 2 + 1
        victims = chance.sample(members, chance.randint(0, len(members) - majority))
        joins = [fresh] if chance.random() < 0.4 or not victims else []
        fresh += len(joins)
        members = [k for k in members if k not in victims] + joins
        told = tuple((ProcessId(k), chance.randrange(SLOT_NS * 60)) for k in members)
        changes.append(
            Change(
                at_ns=when,
                crash=tuple(map(ProcessId, victims)),
                join=tuple(map(ProcessId, joins)),
                told_after_ns=told,
            )
        )
    least = 2 * fresh * plan.settings.headroom
    settings = msgspec.structs.replace(plan.settings, buffers=max(plan.settings.buffers, least))
    return msgspec.structs.replace(plan, settings=settings, changes=tuple(changes))


def mixed_crash(seed: int) -> Plan:
    """Mixed, with crashes and joins."""
    return _with_changes(mixed(seed), seed)


def deaf_crash(seed: int) -> Plan:
    """Deaf, with crashes and joins."""
    return _with_changes(deaf(seed), seed)


def lossy_start_crash(seed: int) -> Plan:
    """Lossy start, with crashes and joins."""
    return _with_changes(lossy_start(seed), seed)


def large(seed: int) -> Plan:
    """From 15 to 20 members: above 16 the codec leaves vectors out of headers."""
    chance = stream(seed, "large")
    return _lossy(chance, (15, 20), lambda: chance.choice((0.0, 0.01, 0.03)))


def large_crash(seed: int) -> Plan:
    """Large, with crashes and joins: some groups pass that size."""
    return _with_changes(large(seed), seed)


def heavy_crash(seed: int) -> Plan:
    """Heavy, with crashes and joins."""
    return _with_changes(heavy(seed), seed)


GENERATORS: Mapping[str, Callable[[int], Plan]] = {
    "mixed": mixed,
    "deaf": deaf,
    "lossy-start": lossy_start,
    "mixed-crash": mixed_crash,
    "deaf-crash": deaf_crash,
    "lossy-start-crash": lossy_start_crash,
}
HEAVY: Mapping[str, Callable[[int], Plan]] = {"heavy": heavy, "heavy-crash": heavy_crash}
"""What ST withstands; its rivals are not asked for it."""
LARGE: Mapping[str, Callable[[int], Plan]] = {"large": large, "large-crash": large_crash}
"""For ST over its codec."""
