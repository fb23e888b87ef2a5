"""Bounded Jang under drawn schedules: every promise kept, within every bound."""

from collections.abc import Callable
from itertools import islice
from random import Random
from typing import Any

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from judging import broken, what_happened
from literal_bounded import LITERAL_BOUNDED
from small_scope import LONG_SCOPE_SCHEDULES, WIDE_SCOPE_SCHEDULES, long_scope, wide_scope

from orderwire.kernel import (
    Effects,
    Indicate,
    Instant,
    ProcessId,
    RemoteProtocolError,
    Send,
    destinations,
    ms,
    probes,
    us,
)
from orderwire.ordering.bounded_jang import BoundedJang
from orderwire.ordering.bounded_jang_codec import BoundedJangCodec, BoundedJangPdu, loss_notice
from orderwire.ordering.bounded_jang_entries import BoundedUndelivered
from orderwire.ordering.catalog import ALGORITHMS, Algorithm, OrderingSettings
from orderwire.ordering.pdu import Discarded, Multicast
from orderwire.ordering.wire import encode_head
from orderwire.sim.drawn_schedules import draw_schedule
from orderwire.sim.schedule import Replayed, Schedule, ScheduledSend, _Replayer, replay
from orderwire.verify.delta import needless_waits
from orderwire.verify.history import rebuild

BOUNDED = ALGORITHMS["bounded-jang"]
EXACT = ALGORITHMS["jang-delta"]
OVERTAKEN = "causal: overtaken by a later message of its sender"
NEEDLESS = "no-needless-waiting"
MODES: dict[str, dict[str, Any]] = {
    "exact clocks": {},
    "skewed clocks": {"skew_max": 15},
    "coarse timers": {"granularities": (2, 5)},
    "duplicates": {"duplicates": True},
    "FIFO channels": {"fifo_channels": True},
    "everything": {"skew_max": 15, "granularities": (1, 2, 5), "duplicates": True},
}
BOUNDS: dict[str, dict[str, Any]] = {
    **{f"cap {cap}": {"floor_cap": cap} for cap in range(4)},
    "nothing fits": {"tag_bytes_max": 8},
    "three pairs": {"tag_bytes_max": 16},
    "cap and budget": {"tag_bytes_max": 20, "floor_cap": 2},
    "steered": {"tag_bytes_max": 64, "floor_held_target_permille": 50},
}
CI_RUNS = 12
NIGHTLY_RUNS = 1_700
"""Times the modes: 10,000 runs of each bound."""


def judged(schedule: Schedule, replayed: Replayed) -> dict[str, str]:
    """Every check but the one that a bound gives up."""
    return {check: why for check, why in broken(schedule, replayed).items() if check != NEEDLESS}


def needless_share(schedules: list[Schedule], **bounds: Any) -> float:
    """Needless ticks per delivery."""
    ticks = deliveries = 0
    for schedule in schedules:
        replayed = replay(schedule, BOUNDED, **bounds)
        ticks += sum(needless_waits(rebuild(replayed.events)).values())
        deliveries += sum(map(len, replayed.delivered.values()))
    return ticks / deliveries


def tag_bytes(pdu: BoundedJangPdu) -> int:
    return len(pdu.control) - len(encode_head(pdu.stamp, pdu.number, pdu.destinations))


def longest_tag(replayed: Replayed) -> int:
    pdus = [pdu for message in replayed.messages.values() for pdu in message.pdus.values()]
    return max(map(tag_bytes, pdus), default=0)


def run_bounded(seed: int, mode: str, bound: str) -> None:
    schedule = draw_schedule(Random(f"{seed}/{mode}"), **MODES[mode])
    overtaken = probes.hits[OVERTAKEN]
    replayed = replay(schedule, BOUNDED, **BOUNDS[bound])
    where = f"mode {mode!r}, bound {bound!r}, seed {seed}: {schedule}"
    assert judged(schedule, replayed) == {}, where
    assert longest_tag(replayed) <= BOUNDS[bound].get("tag_bytes_max", 1 << 20), where
    assert probes.hits[OVERTAKEN] == overtaken, where


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("mode", MODES)
def test_every_promise_is_kept_within_every_bound(mode: str, bound: str) -> None:
    for seed in range(CI_RUNS):
        run_bounded(seed, mode, bound)


@pytest.mark.slow
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("mode", MODES)
def test_nightly_sweep(mode: str, bound: str) -> None:
    for seed in range(CI_RUNS, NIGHTLY_RUNS):
        run_bounded(seed, mode, bound)


def run_ample(seed: int, mode: str, **bounds: Any) -> None:
    drawn = {"lifetime": False} if mode == "for ever" else MODES[mode]
    schedule = draw_schedule(Random(f"{seed}/{mode}"), **drawn)
    ours = replay(schedule, BOUNDED, **bounds)
    theirs = replay(schedule, EXACT)
    events = zip(what_happened(ours), what_happened(theirs), strict=True)
    for event, other in events:
        # All but the sizes are the same: kind, place, message, order, instant.
        assert (event.kind, event.process, event.position, event.clock_ns) == (
            other.kind,
            other.process,
            other.position,
            other.clock_ns,
        ), schedule
        assert (event.source, event.number, event.reason) == (
            other.source,
            other.number,
            other.reason,
        ), schedule
    assert ours.wakes == theirs.wakes, schedule
    assert broken(schedule, ours) == {}, schedule


@pytest.mark.parametrize("mode", [*MODES, "for ever"])
def test_with_room_it_does_what_jang_does(mode: str) -> None:
    for seed in range(2 * CI_RUNS):
        run_ample(seed, mode)
        if mode != "for ever":
            run_ample(seed, mode, tag_bytes_max=4_000, floor_cap=1_000)


@pytest.mark.slow
@pytest.mark.parametrize("mode", [*MODES, "for ever"])
def test_nightly_with_room(mode: str) -> None:
    for seed in range(2 * CI_RUNS, NIGHTLY_RUNS):
        run_ample(seed, mode)


@settings(max_examples=80)
@given(
    chance=st.randoms(use_true_random=False),
    tag_bytes_max=st.integers(8, 40),
    cap=st.none() | st.integers(0, 3),
    target=st.none() | st.integers(0, 1_000),
)
def test_the_bound_holds_for_drawn_chance(
    chance: Random, tag_bytes_max: int, cap: int | None, target: int | None
) -> None:
    """The same with a chance that shrinks."""
    schedule = draw_schedule(
        chance, processes_max=6, messages_max=14, skew_max=5, granularities=(1, 3), duplicates=True
    )
    note(repr(schedule))
    replayed = replay(
        schedule,
        BOUNDED,
        tag_bytes_max=tag_bytes_max,
        floor_cap=cap,
        floor_held_target_permille=target,
    )
    assert longest_tag(replayed) <= tag_bytes_max
    assert judged(schedule, replayed) == {}


@pytest.mark.parametrize("tag_bytes_max", [8, 24, 100, 200])
def test_the_bound_holds_under_a_flood_of_small_sets(tag_bytes_max: int) -> None:
    """Sixty members, each message to a set of its own, delivered only where it adds entries."""
    members = 60
    chance = Random(f"flood/{tag_bytes_max}")
    group = OrderingSettings(
        members=members, lifetime_ns=ms(250), tick_ns=us(1), tag_bytes_max=tag_bytes_max
    )
    cores = [BoundedJang(ProcessId(process), group) for process in range(members)]
    codec = BoundedJangCodec(ProcessId(0), group)
    longest = 0
    for step in range(400):
        now = Instant(ms(1) + step * us(137))
        sender = ProcessId(chance.randrange(members))
        to = destinations(chance.sample(range(members), chance.choice((1, 2, 5, 40))))
        for effect in cores[sender].submit(Multicast(b"", to), now):
            if isinstance(effect, Send):
                assert codec.decode(codec.encode(effect.pdu)) == effect.pdu
                longest = max(longest, tag_bytes(effect.pdu))
                if chance.random() < 0.5:
                    cores[effect.to].receive(sender, effect.pdu, now)
    assert longest <= tag_bytes_max
    assert longest > tag_bytes_max * 3 // 4


def test_each_place_more_shortens_the_wait_many_times() -> None:
    """[S001:sec.3] with floors, in the small."""
    schedules = [draw_schedule(Random(seed)) for seed in range(120)]
    waits = [needless_share(schedules, floor_cap=cap) for cap in range(4)]
    assert waits[0] > 2 * waits[1] > 8 * waits[2] > 8 * waits[3]
    assert needless_share(schedules) == 0


MESSAGES_MAX = 28
"""Makes 27 deliveries a run, where the prototype had 28."""
PUBLISHED = {1: 0.88, 2: 0.14}
"""Needless ticks a delivery by cap, over 10,000 runs of the prototype, schedules of its own."""


def needless_ticks(seeds: range, cap: int) -> float:
    schedules = [draw_schedule(Random(seed), messages_max=MESSAGES_MAX) for seed in seeds]
    return needless_share(schedules, floor_cap=cap)


@pytest.mark.parametrize("cap", PUBLISHED)
def test_needless_waiting_is_of_the_published_size(cap: int) -> None:
    """Few schedules and rare waits: within a factor of two."""
    assert 0.5 < needless_ticks(range(1_000, 1_400), cap) / PUBLISHED[cap] < 2


@pytest.mark.slow
@pytest.mark.parametrize("cap", PUBLISHED)
def test_needless_waiting_is_of_the_published_size_nightly(cap: int) -> None:
    """What is left is how schedules are drawn; the literal form waits as long on the same ones.

    Over these 4,000: 0.26 ticks at cap 2, in a few long waits.
    """
    assert 0.7 < needless_ticks(range(4_000), cap) / PUBLISHED[cap] < 2


@pytest.mark.parametrize("cap", [0, 1, 2])
def test_it_waits_no_longer_than_its_literal_form(cap: int) -> None:
    """Floors of a source are not merged here, so it may wait less, never more."""
    literal = ours = 0
    for seed in range(60):
        schedule = draw_schedule(Random(f"{seed}/literal"), skew_max=(0, 5)[seed & 1])
        replayed = replay(schedule, LITERAL_BOUNDED, floor_cap=cap)
        assert judged(schedule, replayed) == {}, (seed, cap)
        literal += total_wait(replayed)
        ours += total_wait(replay(schedule, BOUNDED, floor_cap=cap))
    assert 0.97 * literal < ours <= literal


SCOPES = {"wide": wide_scope, "long": long_scope}
SCOPE_BOUNDS = {"none": {}, **{name: BOUNDS[name] for name in ("cap 0", "cap 1", "nothing fits")}}


def check_scope(scope: str, bound: str, step: int) -> int:
    count = 0
    for schedule in islice(SCOPES[scope](), 0, None, step):
        replayed = replay(schedule, BOUNDED, **SCOPE_BOUNDS[bound])
        found = judged(schedule, replayed) if bound != "none" else broken(schedule, replayed)
        assert found == {}, (scope, bound, schedule)
        count += 1
    return count


@pytest.mark.parametrize("bound", SCOPE_BOUNDS)
@pytest.mark.parametrize("scope", SCOPES)
def test_small_scope_sampled(scope: str, bound: str) -> None:
    assert check_scope(scope, bound, 1_511) > 70


@pytest.mark.slow
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("bound", SCOPE_BOUNDS)
@pytest.mark.parametrize("scope", SCOPES)
def test_small_scope_exhausted(scope: str, bound: str) -> None:
    counts = {"wide": WIDE_SCOPE_SCHEDULES, "long": LONG_SCOPE_SCHEDULES}
    assert check_scope(scope, bound, 1) == counts[scope]


class _OmitsFloor(BoundedUndelivered):
    """Cuts, and says nothing."""

    def take_floors(self, remote: int, dead: int) -> dict[int, int]:
        super().take_floors(remote, dead)
        self.floors.clear()
        return {}


class _DoesNotMergeFloors(BoundedUndelivered):
    """Forgets the floors of others."""

    def merge_tag(self, source: ProcessId, pdu: BoundedJangPdu) -> None:
        without = BoundedJangPdu(
            pdu.number,
            pdu.stamp,
            pdu.destinations,
            pdu.control,
            pdu.payload,
            pdu.listed,
            pdu.marks,
            pdu.others,
            pdu.floor,
            (),
        )
        super().merge_tag(source, without)


class _ForgetsAllFloors(BoundedUndelivered):
    """A send to some forgets the floors of all."""

    def take_floors(self, remote: int, dead: int) -> dict[int, int]:
        own = super().take_floors(remote, dead)
        self.floors.clear()
        return own


class _ForgetsFloorsEarly(BoundedUndelivered):
    """Takes a floor for expired when half of its time has passed."""

    def take_floors(self, remote: int, dead: int) -> dict[int, int]:
        newest = max(self.floors.values(), default=0)
        return super().take_floors(remote, max(dead, newest - 1))


class _NeverResetsFloors(BoundedUndelivered):
    """Only wasteful: sending to a destination leaves its floor as it is."""

    def take_floors(self, remote: int, dead: int) -> dict[int, int]:
        own = super().take_floors(remote, dead)
        self.floors.update(own)
        return own


def twin_of(known: Callable[..., BoundedUndelivered]) -> Algorithm:
    class Twin(BoundedJang):
        def __init__(self, me: ProcessId, settings: OrderingSettings) -> None:
            super().__init__(me, settings)
            self._known = known(me, cap=settings.floor_cap)

    return Algorithm(name="twin", summary="", create=Twin, codec=BoundedJangCodec)


@pytest.mark.parametrize(
    ("known", "breaks"),
    [
        (_OmitsFloor, True),
        (_DoesNotMergeFloors, True),
        (_ForgetsAllFloors, True),
        (_ForgetsFloorsEarly, True),
        (_NeverResetsFloors, False),
    ],
)
def test_every_twin_gets_its_verdict(
    known: Callable[..., BoundedUndelivered], breaks: bool
) -> None:
    found: set[str] = set()
    for seed in range(400 if breaks else 60):
        schedule = draw_schedule(Random(seed))
        for cap in (0, 1):
            found |= set(judged(schedule, replay(schedule, twin_of(known), floor_cap=cap)))
        if "causal-order" in found:
            break
    assert ("causal-order" in found) == breaks, found


class _Notifying(_Replayer):
    """Instead of each lost copy a notice comes, some time later."""

    lost: set[tuple[bytes, int]]
    notices = 0

    def arrive(self, process: int, source: int, data: bytes, now: int) -> None:
        codec = self.codecs[process]
        pdu = codec.decode(data)
        if (pdu.payload, process) not in self.lost:
            super().arrive(process, source, data, now)
            return
        notice = loss_notice(pdu)
        assert codec.decode(codec.encode(notice)) == notice
        self.notices += 1
        clock = self.clock(process, now)
        self.apply(process, self.cores[process].receive(ProcessId(source), notice, clock), now)


def with_notices(
    schedule: Schedule, chance: Random, algorithm: Algorithm = BOUNDED, **bounds: Any
) -> tuple[Replayed, int]:
    """Replay with notices for the lost copies; return how many came."""
    assert schedule.lifetime is not None
    lost: set[tuple[bytes, int]] = set()
    sends: list[ScheduledSend] = []
    for send in schedule.sends:
        arrive = dict(send.arrive)
        for process, at in send.arrive.items():
            if at is None:
                lost.add((send.id.encode(), process))
                arrive[process] = send.at + chance.randint(1, schedule.lifetime + 2)
        sends.append(
            ScheduledSend(
                id=send.id,
                at=send.at,
                sender=send.sender,
                to=send.to,
                arrive=arrive,
                before_arrivals=send.before_arrivals,
            )
        )
    noticed = Schedule(
        processes=schedule.processes,
        lifetime=schedule.lifetime,
        sends=tuple(sends),
        epsilon=schedule.epsilon,
        clock_offsets=schedule.clock_offsets,
        timer_granularity=schedule.timer_granularity,
    )
    replayer = _Notifying(noticed, algorithm, "replay", bounds)
    replayer.lost = lost
    return replayer.run(), replayer.notices


def total_wait(replayed: Replayed) -> int:
    return sum(
        event.clock_ns - event.arrived_ns
        for event in replayed.events
        if event.kind.name == "DELIVER" and event.source != event.process
    )


@pytest.mark.parametrize("bounds", [{}, {"floor_cap": 1}, {"tag_bytes_max": 16}])
def test_loss_notices_shorten_the_wait_and_break_nothing(bounds: dict[str, Any]) -> None:
    without = noticed = came = 0
    for seed in range(60):
        schedule = draw_schedule(Random(f"notice/{seed}"), skew_max=5)
        replayed, count = with_notices(schedule, Random(seed), **bounds)
        found = judged(schedule, replayed)
        assert found == {}, (seed, found)
        came += count
        noticed += total_wait(replayed)
        without += total_wait(replay(schedule, BOUNDED, **bounds))
    assert came > 100
    assert noticed < 0.9 * without


@pytest.mark.slow
def test_nightly_loss_notices() -> None:
    for seed in range(60, 4_000):
        schedule = draw_schedule(Random(f"notice/{seed}"), skew_max=5)
        bounds = ({}, {"floor_cap": 1}, {"tag_bytes_max": 16})[seed % 3]
        assert judged(schedule, with_notices(schedule, Random(seed), **bounds)[0]) == {}, seed


class _BelievesAtOnce(BoundedJang):
    """Takes a notice for a delivery when it comes, as a FIFO channel's next message may not be."""

    def receive(self, source: ProcessId, pdu: BoundedJangPdu, now: Instant) -> Effects:
        if not pdu.is_notice:
            return super().receive(source, pdu, now)
        effects: Effects = []
        self._now = max(self._now, now)
        self._deliver(source, pdu, now, effects)
        self._drain(effects)
        return effects


class _MergesNotices(BoundedJang):
    """Learns from a notice what the message said: nobody has delivered it here."""

    def _deliver(
        self, source: ProcessId, pdu: BoundedJangPdu, arrived: Instant, effects: Effects
    ) -> None:
        super()._deliver(source, pdu, arrived, effects)
        if pdu.is_notice:
            self._merge(source, pdu)


@pytest.mark.parametrize(
    ("twin", "breaks"), [(_BelievesAtOnce, "causal-order"), (_MergesNotices, NEEDLESS)]
)
def test_every_twin_of_notices_is_rejected(twin: type[BoundedJang], breaks: str) -> None:
    algorithm = Algorithm(name="twin", summary="", create=twin, codec=BoundedJangCodec)
    for seed in range(200):
        schedule = draw_schedule(Random(f"notice/{seed}"))
        replayed, _ = with_notices(schedule, Random(seed), algorithm)
        assert NEEDLESS not in broken(schedule, with_notices(schedule, Random(seed))[0]), seed
        if breaks in broken(schedule, replayed):
            return
    raise AssertionError(f"{twin.__name__} passed 200 runs")


def test_a_notice_of_a_copy_that_still_comes_loses_it() -> None:
    """So only copies that will never come have notices."""
    send = ScheduledSend(id="m", at=0, sender=0, to=(1,), arrive={1: 9})
    schedule = Schedule(processes=2, lifetime=20, sends=(send,))
    group = OrderingSettings(members=2, lifetime_ns=20, tick_ns=1)
    pdu = replay(schedule, BOUNDED).messages["m"].pdus[1]
    core = BoundedJang(ProcessId(1), group)
    assert core.receive(ProcessId(0), loss_notice(pdu), Instant(5)) == []
    (effect,) = core.receive(ProcessId(0), pdu, Instant(9))
    assert isinstance(effect, Indicate)
    assert isinstance(effect.indication, Discarded)


def test_a_broadcast_group_carries_the_causal_barrier_and_switches_without_a_switch() -> None:
    """In a broadcast group nothing but direct predecessors; a multicast to one, and back."""
    group = OrderingSettings(members=4, lifetime_ns=1_000, tick_ns=1)
    cores = [BoundedJang(ProcessId(process), group) for process in range(4)]

    def send(sender: int, to: list[int], now: int) -> dict[int, BoundedJangPdu]:
        command = Multicast(b"", destinations(to))
        pdus: dict[int, BoundedJangPdu] = {}
        for effect in cores[sender].submit(command, Instant(now)):
            if isinstance(effect, Send):
                pdus[effect.to] = effect.pdu
                cores[effect.to].receive(ProcessId(sender), effect.pdu, Instant(now + 1))
        return pdus

    everyone = [0, 1, 2, 3]
    assert all(pdu.others == () for pdu in send(0, everyone, 10).values())
    # 0 itself does not wait for its own message, but learns that 1's covers it.
    assert all(pdu.others == ((0, 10),) for pdu in send(1, everyone, 20).values())
    third = send(2, everyone, 30)  # 0's message was covered by 1's
    assert {process: (pdu.listed, pdu.others) for process, pdu in third.items()} == dict.fromkeys(
        (0, 1, 3), ((), ((1, 20),))
    )
    (to_one,) = send(3, [0], 40).values()
    assert to_one.listed == ((30, 2, 0b0010),)
    assert to_one.marks == 1
    again = send(0, everyone, 50)  # 0 knows from 3 that 2's message has come there
    assert {process: (pdu.listed, pdu.others) for process, pdu in again.items()} == {
        1: ((), ((2, 30),)),
        2: ((), ((2, 30),)),
        3: ((), ()),
    }
    last = send(1, everyone, 60)
    assert {process: (pdu.listed, pdu.others) for process, pdu in last.items()} == dict.fromkeys(
        (0, 2, 3), ((), ((0, 50),))
    )


@given(data=st.binary(max_size=60), members=st.integers(1, 70))
def test_parser_refuses_or_understands_anything(data: bytes, members: int) -> None:
    group = OrderingSettings(members=members, lifetime_ns=ms(250))
    codec = BoundedJangCodec(ProcessId(0), group)
    head = encode_head(1_000_000, 7, destinations([0]))
    try:
        pdu = codec.decode(head + data)
    except RemoteProtocolError:
        return
    assert codec.decode(memoryview(codec.encode(pdu))) == pdu


def test_budget_follows_the_share_held_by_floors() -> None:
    """Falls by an eighth when no floor holds anyone, doubles when too many are held."""
    group = OrderingSettings(
        members=2, lifetime_ns=us(100), tag_bytes_max=64, floor_held_target_permille=50
    )
    core = BoundedJang(ProcessId(1), group)
    steer, budgets = core._steer, []
    for is_held in (False, False, True, True, True):
        for _ in range(64):
            steer(is_held)
        budgets.append(core._budget)
    assert budgets == [56, 49, 64, 64, 64]
