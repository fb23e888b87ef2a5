"""The group's clock: a stepped wall clock changes nothing; the kernel is asked for its error."""

import logging
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from orderwire.aio.clock import (
    ClockError,
    GroupClock,
    kernel_clock_error,
    shared_origin_ns,
    warn_about_clock,
)


class Clocks:
    """A wall clock that can be stepped and a monotonic one that can only advance."""

    def __init__(self) -> None:
        self.wall = 1_700_000_000_000_000_000
        self.monotonic = 5_000

    def advance(self, ns: int) -> None:
        self.wall += ns
        self.monotonic += ns


def test_time_begins_at_the_wall_clock_and_advances_with_the_monotonic_one() -> None:
    clocks = Clocks()
    clock = GroupClock(wall_ns=lambda: clocks.wall, monotonic_ns=lambda: clocks.monotonic)
    assert clock.now() == clocks.wall
    clocks.advance(1_234)
    assert clock.now() == clocks.wall


@pytest.mark.parametrize("step_ns", [-3_600_000_000_000, -1, 1, 3_600_000_000_000])
def test_a_stepped_wall_clock_changes_nothing(step_ns: int) -> None:
    clocks = Clocks()
    clock = GroupClock(wall_ns=lambda: clocks.wall, monotonic_ns=lambda: clocks.monotonic)
    before = clock.now()
    clocks.wall += step_ns
    assert clock.now() == before
    clocks.advance(10)
    assert clock.now() == before + 10


def test_an_interrupted_reading_of_the_origin_is_not_the_one_used() -> None:
    """Of several pairs of readings the one with the least time in between counts."""
    pauses: Iterator[int] = iter([5_000_000, 5_000_000, 10, 10, *[7_000] * 100])
    readings = count()
    state = {"now": 0}

    def monotonic() -> int:
        next(readings)
        return state["now"]

    def wall() -> int:
        state["now"] += next(pauses)  # the process is interrupted before the wall clock is read
        reading = 1_000_000_000_000 + state["now"]
        state["now"] += next(pauses)
        return reading

    clock = GroupClock(wall_ns=wall, monotonic_ns=monotonic)
    assert abs(clock.now() - (1_000_000_000_000 + state["now"])) <= 10


def test_two_clocks_of_one_machine_agree() -> None:
    first, second = GroupClock(), GroupClock()
    before = first.now()
    between = second.now()
    after = first.now()
    assert before - 1_000_000 <= between <= after + 1_000_000


def test_the_first_process_of_a_machine_reads_the_wall_clock_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = shared_origin_ns(tmp_path)
    assert first is not None
    before = GroupClock()
    now = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: now() - 3_600_000_000_000)
    assert shared_origin_ns(tmp_path) == first
    assert abs(GroupClock(origin_ns=first).now() - before.now()) < 100_000_000
    [file] = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600


def test_without_a_place_to_keep_it_each_process_reads_for_itself(tmp_path: Path) -> None:
    assert shared_origin_ns(tmp_path / "nowhere") is None
    shared_origin_ns(tmp_path)
    [file] = tmp_path.iterdir()
    file.write_text("noise", encoding="ascii")
    assert shared_origin_ns(tmp_path) is None


def test_the_kernel_knows_its_error() -> None:
    error = kernel_clock_error()
    if error is not None:  # every Linux
        assert error.bound_ns >= 0


@pytest.mark.parametrize(
    ("error", "epsilon_ns", "warned"),
    [
        (ClockError(500_000, True), 1_000_000, False),
        (ClockError(500_001, True), 1_000_000, True),
        (ClockError(16_000_000_000, False), 1_000_000, True),
        (None, 0, False),
    ],
)
def test_a_clock_worse_than_epsilon_is_warned_about(
    error: ClockError | None, epsilon_ns: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert warn_about_clock(epsilon_ns, lambda: error) is warned
    assert ("epsilon" in caplog.text) is warned
