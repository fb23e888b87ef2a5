"""What went wrong in the field with total order, tried on every protocol where it applies."""

from collections.abc import Callable
from typing import Any

import pytest

from orderwire.kernel import (
    Broadcast,
    Effects,
    Indicate,
    Instant,
    ProcessId,
    destinations,
    members_of,
    ms,
)
from orderwire.ordering.pdu import Delivered, Multicast
from orderwire.ordering.total.catalog import ALGORITHMS
from orderwire.ordering.total.csn_pdu import KeepPlace
from orderwire.ordering.total.flushing import Message
from orderwire.ordering.total.pdu import ChangeView, Data, Installed, Member, Nak, Suspected, Turn
from orderwire.ordering.total.settings import TotalSettings
from orderwire.ordering.total.skeen_agreement import SkeenAgreement
from orderwire.ordering.total.two_phase import Decision, Held, Offer
from orderwire.sim.selective_total_run import GENERATORS, SLOT_NS, Change, Outcome, Plan, run
from orderwire.sim.serial_channel import ChannelSettings, Outage, SerialChannel

NAMES = list(ALGORITHMS)
BOTH = destinations((0, 1))
ALL = destinations((0, 1, 2))


def settings(members: int = 3, **more: Any) -> TotalSettings:
    slot = SLOT_NS
    return TotalSettings(
        members=members,
        window=4,
        ack_delay_ns=5 * slot,
        heartbeat_ns=20 * slot,
        heartbeat_max_ns=200 * slot,
        control_ns=40 * slot,
        nak_ns=40 * slot,
        guard_ns=10 * slot,
        **more,
    )


def change(at_slots: int, *, crash: tuple[int, ...] = (), join: tuple[int, ...] = ()) -> Change:
    told = tuple((ProcessId(k), SLOT_NS * (1 + k % 7)) for k in range(64))
    return Change(
        at_ns=at_slots * SLOT_NS,
        crash=tuple(map(ProcessId, crash)),
        join=tuple(map(ProcessId, join)),
        told_after_ns=told,
    )


def plan(*messages: tuple[int, int, int], changes: tuple[Change, ...] = (), **more: Any) -> Plan:
    """Make a plan of (slot, source, destinations)."""
    return Plan(
        settings=more.pop("settings", settings()),
        channel=ChannelSettings(slot_ns=SLOT_NS, **more),
        messages=tuple(
            (slot * SLOT_NS, ProcessId(source), destinations(members_of(mask)))
            for slot, source, mask in messages
        ),
        changes=changes,
    )


class Wrapped:
    """A core whose inputs and effects a test sees."""

    def __init__(self, core: Any, me: ProcessId, log: list[tuple[ProcessId, Any]]) -> None:
        self._core = core
        self._me = me
        self._log = log

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._core, name)
        if name == "receive_numbered":  # Of cores alone that have it.
            return lambda *what: self._seen(self._taken(found, *what))
        return found

    def _taken(self, receive: Callable[..., Effects], *what: Any) -> Effects:
        """Give the core what has come."""
        return receive(*what)

    def _seen(self, effects: Effects) -> Effects:
        self._log += [(self._me, effect) for effect in effects]
        return effects

    def submit(self, command: Any, now: Instant) -> Effects:
        return self._seen(self._core.submit(command, now))

    def receive(self, source: ProcessId, pdu: Any, now: Instant) -> Effects:
        return self._seen(self._taken(self._core.receive, source, pdu, now))

    def turn(self, now: Instant) -> Effects:
        return self._seen(self._core.turn(now))

    def wake(self, now: Instant) -> Effects:
        return self._seen(self._core.wake(now))


class Twice(Wrapped):
    def _taken(self, receive: Callable[..., Effects], *what: Any) -> Effects:
        return receive(*what) + receive(*what)


def judged(
    name: str, what: Plan, seed: int = 1, form: type[Wrapped] = Wrapped
) -> tuple[Outcome, list[tuple[ProcessId, Any]]]:
    """Run a protocol; return the outcome and all effects, in order."""
    entry = ALGORITHMS[name]
    log: list[tuple[ProcessId, Any]] = []

    def make(me: ProcessId, its: TotalSettings, *, joining: bool = False) -> Any:
        return form(entry.create(me, its, joining=joining), me, log)

    outcome = run(what, seed, make, promises=entry.promises, rest_ns=ms(20_000))
    assert outcome.violations == ()
    return outcome, log


def indications(log: list[tuple[ProcessId, Any]], form: type) -> list[tuple[ProcessId, Any]]:
    return [
        (k, effect.indication)
        for k, effect in log
        if isinstance(effect, Indicate) and isinstance(effect.indication, form)
    ]


@pytest.mark.parametrize("name", NAMES)
def test_every_pdu_twice_delivers_nothing_twice(name: str) -> None:
    """JGroups JGRP-1458: the sequencer's message came twice."""
    for seed in range(4):
        judged(name, GENERATORS["mixed"](seed), seed, Twice)


@pytest.mark.parametrize("name", NAMES)
def test_the_hole_of_a_leaver_blocks_nobody(name: str) -> None:
    """JGroups pull request 74: messages of a leaver blocked the delivery queue."""
    _, log = judged(
        name,
        plan(
            *[(slot, 2, BOTH) for slot in (0, 1, 2)],
            *[(slot, 0, BOTH) for slot in (3, 200, 201)],
            changes=(change(12, crash=(2,)),),
            outages=(Outage(ProcessId(1), 0, 2 * SLOT_NS),),
        ),
    )
    last = [i.number for k, i in indications(log, Delivered) if i.source == 0 and k == 1]
    assert last == [0, 1, 2]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("generator", ["mixed-crash", "deaf-crash"])
def test_a_view_stands_at_the_same_place_at_all(name: str, generator: str) -> None:
    """JGroups JGRP-1495: a message and a view came in different orders."""
    for seed in range(6):
        what = GENERATORS[generator](seed)
        _, log = judged(name, what, seed)
        before: dict[int, dict[ProcessId, set[tuple[int, int]]]] = {}
        had: dict[ProcessId, set[tuple[int, int]]] = {}
        masks: dict[tuple[int, int], int] = {}
        newcomers: dict[int, set[int]] = {}
        crashed = {k for told in what.changes for k in told.crash}
        for k, effect in log:
            indication = effect.indication if isinstance(effect, Indicate) else None
            if isinstance(indication, Delivered):
                message = (int(indication.source), indication.number)
                had.setdefault(k, set()).add(message)
                masks[message] = indication.destinations
            elif isinstance(indication, Installed):
                before.setdefault(indication.number, {})[k] = set(had.get(k, ()))
                newcomers.setdefault(indication.number, set()).update(indication.joined)
        for number, sets in before.items():
            told = {m for k, s in sets.items() for m in s if k not in crashed}
            for k, its in sets.items():
                if k in crashed or k >= what.settings.members:
                    continue
                missed = {m for m in told if masks[m] >> k & 1 and m not in its}
                assert not missed, f"{name}, seed {seed}, view {number} at {k}"


@pytest.mark.parametrize("name", NAMES)
def test_only_the_view_service_changes_the_view(name: str) -> None:
    """JGroups JGRP-1452: the sequencer guessed at view changes."""
    what = plan(
        *[(slot, source, ALL) for slot in (0, 50, 100) for source in range(3)],
        settings=settings(fail_ns=250 * SLOT_NS),
        outages=(Outage(ProcessId(0), 0, 2_000 * SLOT_NS),),
    )
    outcome, log = judged(name, what)
    assert indications(log, Installed) == []
    assert indications(log, Suspected) or name.startswith("totem")
    assert outcome.delivered == 27


@pytest.mark.parametrize("name", NAMES)
def test_a_delivery_that_sends_stops_nobody(name: str) -> None:
    """JGroups JGRP-1498: the sequencer locked up."""
    entry = ALGORITHMS[name]
    delivered: list[tuple[ProcessId, int, int]] = []

    def tell(k: ProcessId, indication: Any, now: Instant) -> None:
        if isinstance(indication, Delivered):
            delivered.append((k, indication.source, indication.number))
            if indication.number < 3:
                channel.at(now, lambda: channel.submit(k, Multicast(b"", ALL)))

    channel = SerialChannel(
        ChannelSettings(slot_ns=SLOT_NS, loss=0.05),
        3,
        Turn,
        tell,
        lambda *_: None,
        place_form=KeepPlace,
    )
    for k in range(3):
        channel.add(ProcessId(k), entry.create(ProcessId(k), settings()))
    channel.at(0, lambda: channel.submit(ProcessId(0), Multicast(b"", ALL)))
    channel.run(30_000 * SLOT_NS)
    logs = [[(s, n) for at, s, n in delivered if at == k] for k in range(3)]
    assert len(logs[0]) > 20
    assert sorted(logs[0]) == sorted(logs[1]) == sorted(logs[2])
    if entry.promises.one_order:
        assert logs[0] == logs[1] == logs[2]


@pytest.mark.parametrize("name", NAMES)
def test_the_window_is_open_after_many_views(name: str) -> None:
    """JGroups 1048: credit was lost after churn, and a sender starved."""
    churn = [change(10 + 150 * i, crash=(2 + i,), join=(3 + i,)) for i in range(8)]
    talk = [(150 * i + j, j % 3 and 1, ALL | 1 << (2 + i)) for i in range(8) for j in range(4)]
    end = [(1_600 + i, 0, BOTH) for i in range(12)]
    _, log = judged(
        name,
        plan(*talk, *end, changes=tuple(churn), settings=settings(buffers=256), loss=0.02),
    )
    assert len([1 for k, i in indications(log, Installed) if k == 0]) >= 6
    last = [i for k, i in indications(log, Delivered) if k == 1 and i.source == 0]
    assert len(last) >= 12


@pytest.mark.parametrize("seed", range(5))
def test_levels_never_fall_and_naks_are_bounded(seed: int) -> None:
    """corosync 330, 445, 725: endless retransmit lists, marks that never converged."""
    what = GENERATORS["lossy-start"](seed)
    outcome, log = judged("tachikawa-st", what, seed)
    levels: dict[ProcessId, tuple[int, ...]] = {}
    naks = 0
    for k, effect in log:
        pdu = effect.pdu if isinstance(effect, Broadcast) else None
        if isinstance(pdu, Data):
            old = levels.get(k, (0,) * len(pdu.ack))
            assert all(a >= b for a, b in zip(pdu.ack, old, strict=True))
            levels[k] = pdu.ack
        naks += isinstance(pdu, Nak)
    assert naks <= what.settings.members * (1 + outcome.rest_ns // what.settings.nak_ns)


@pytest.mark.parametrize("name", ["totem-agreed", "totem-safe"])
def test_a_late_token_does_not_end_a_retransmission(name: str) -> None:
    """corosync 622: the token overtook data, and a node was fenced."""
    for seed in range(5):
        what = plan(*[(slot, slot % 3, ALL) for slot in range(30)], loss=0.1, lag_ns=100 * SLOT_NS)
        assert judged(name, what, seed)[0].delivered == 90


@pytest.mark.parametrize("name", NAMES)
def test_a_departed_destination_does_not_stop_the_others(name: str) -> None:
    """orbs-network 1504: one unknown recipient failed the whole multicast."""
    entry = ALGORITHMS[name]
    got: list[tuple[ProcessId, int]] = []

    def tell(k: ProcessId, indication: Any, now: Instant) -> None:
        if isinstance(indication, Delivered):
            got.append((k, indication.number))

    channel = SerialChannel(
        ChannelSettings(slot_ns=SLOT_NS), 3, Turn, tell, lambda *_: None, place_form=KeepPlace
    )

    for k in range(3):
        channel.add(ProcessId(k), entry.create(ProcessId(k), settings()))
    channel.remove(ProcessId(2))
    view = ChangeView(1, (Member(ProcessId(0)), Member(ProcessId(1))))
    for k in range(2):
        channel.submit(ProcessId(k), view)
    for slot, mask in ((1, ALL), (500, ALL), (501, 4), (502, BOTH)):
        channel.at(
            slot * SLOT_NS,
            lambda m=mask: channel.submit(  # type: ignore[misc]
                ProcessId(0), Multicast(b"", destinations(members_of(m)))
            ),
        )
    channel.run(5_000 * SLOT_NS)
    assert sorted(got) == [(0, 0), (0, 1), (0, 3), (1, 0), (1, 1), (1, 3)]


@pytest.mark.parametrize("name", NAMES)
def test_who_takes_over_goes_on_where_the_streams_are(name: str) -> None:
    """CorfuDB 1363: the sequencer's successor began at 0 while the streams were ahead."""
    _, log = judged(
        name,
        plan(
            *[(4 * i, 1 + i % 2, ALL) for i in range(60)],
            changes=(change(100, crash=(0,)),),
            loss=0.02,
        ),
    )
    numbers = [i.number for k, i in indications(log, Delivered) if k == 2 and i.source == 1]
    assert numbers == list(range(30))


# ---------------------------------------------------------------------- Skeen's ties and clocks


def offer(source: int, clock: int = 0) -> Offer:
    message = Message(ProcessId(source), 0, 0, ALL, Instant(0), b"")
    return Offer(0, message, 0, ALL, clock, 0)


def deliveries(effects: Effects) -> list[int]:
    return [
        effect.indication.source
        for effect in effects
        if isinstance(effect, Indicate) and isinstance(effect.indication, Delivered)
    ]


def test_nothing_is_delivered_while_a_smaller_number_is_pending() -> None:
    """JGroups JGRP-1785: TOA delivered while smaller numbers were pending."""
    core = SkeenAgreement(ProcessId(2), settings())
    for source in (0, 1):
        core.receive(ProcessId(source), offer(source), Instant(0))
    second = core.receive(ProcessId(1), Decision(0, 0, 0, (9, 0), 0), Instant(1))
    assert deliveries(second) == []
    first = core.receive(ProcessId(0), Decision(0, 0, 0, (4, 1), 0), Instant(2))
    assert deliveries(first) == [0, 1]


def test_equal_clocks_are_ordered_by_process() -> None:
    """go-mcast pull request 14: equal timestamps were delivered in different orders."""
    for order in ((0, 1), (1, 0)):
        core = SkeenAgreement(ProcessId(2), settings())
        for source in (0, 1):
            core.receive(ProcessId(source), offer(source), Instant(0))
        found: list[int] = []
        for source in order:
            stamp = (7, 1 - source)
            found += deliveries(
                core.receive(ProcessId(source), Decision(0, 0, 0, stamp, 0), Instant(1))
            )
        assert found == [1, 0]


class NoTies(SkeenAgreement):
    """Clocks are compared, and what comes first goes first."""

    def _first(self) -> Held:
        return min(self._held.values(), key=lambda held: held.proposal[0])


class DeafToDecisions(SkeenAgreement):
    """A decision does not raise the clock: the next proposal may be below it."""

    def _receive_decision(
        self, effects: Effects, source: ProcessId, decision: Decision, now: Instant
    ) -> None:
        clock = self._clock
        super()._receive_decision(effects, source, decision, now)
        self._clock = clock


class Eager(SkeenAgreement):
    """What is decided is delivered, whatever is pending before it."""

    def _first(self) -> Held:
        return min(self._held.values(), key=lambda held: (not held.decided, held.proposal))


@pytest.mark.parametrize("broken", [NoTies, DeafToDecisions, Eager])
def test_a_broken_agreement_is_caught(broken: Callable[..., SkeenAgreement]) -> None:
    promises = ALGORITHMS["skeen"].promises
    for generator in ("deaf", "mixed"):
        for seed in range(60):
            what = GENERATORS[generator](seed)
            if run(what, seed, broken, promises=promises, rest_ns=ms(2_000)).violations:
                return
    pytest.fail("nothing breaks")
