"""How an address is called: in parallel, again after a while, so many at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from discovery_net import in_virtual_time, until

from orderwire.aio.discovery_dialling import Dialler, Session


class Link:
    """A caller that notes what becomes of it."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.session = Session()
        self.has_candidates = False
        self.failures: list[str] = []
        self.gave_up_at = -1.0

    def attempt_failed(self, why: str) -> None:
        self.failures.append(why)

    def give_up(self, why: str) -> None:
        self.session.end()
        self.gave_up_at = asyncio.get_running_loop().time()


def dialler(
    connect: Callable[[str, Callable[[], None]], Awaitable[None]], **changes: Any
) -> Dialler:
    values: dict[str, Any] = {
        "connect_s": 3.0,
        "attempt_s": 0.1,
        "attempts_max": 3,
        "half_open_max": 8,
        "waiting_max": 64,
    }
    return Dialler(connect, **values | changes)


async def hang(address: str, established: Callable[[], None]) -> None:
    await asyncio.Event().wait()


class Calls:
    """Notes when which address is called; nobody answers."""

    def __init__(self) -> None:
        self.at: list[tuple[str, float]] = []

    async def __call__(self, address: str, established: Callable[[], None]) -> None:
        self.at.append((address, round(asyncio.get_running_loop().time(), 6)))
        await hang(address, established)


def test_further_attempts_start_beside_the_first() -> None:
    async def work() -> None:
        calls, link = Calls(), Link("a")
        made = dialler(calls)
        made.dial(link, link.session)
        await until(lambda: link.gave_up_at >= 0)
        assert calls.at == [("a", 0), ("a", 0.1), ("a", pytest.approx(0.3, abs=1e-3))]
        assert link.gave_up_at == pytest.approx(3.0, abs=0.3)
        await until(lambda: made.half_open == 0)

    in_virtual_time(work)


def test_who_accepts_and_is_slow_is_not_called_again_and_gets_more_time() -> None:
    async def work() -> None:
        calls, link = Calls(), Link("a")

        async def accept(address: str, established: Callable[[], None]) -> None:
            established()
            await calls(address, established)

        made = dialler(accept)
        made.dial(link, link.session)
        await asyncio.sleep(10)
        assert len(calls.at) == 1
        assert link.gave_up_at == -1
        await made.close()

    in_virtual_time(work)


def test_black_holes_are_called_side_by_side() -> None:
    async def work() -> None:
        links = [Link(f"{number}") for number in range(5)]
        made = dialler(hang)
        for link in links:
            made.dial(link, link.session)
        await until(lambda: all(link.gave_up_at >= 0 for link in links))
        assert max(link.gave_up_at for link in links) < 3.5
        await made.close()

    in_virtual_time(work)


def test_a_refusal_is_told_and_no_further_attempt_is_made_once_the_session_ends() -> None:
    async def work() -> None:
        calls = 0

        async def refuse(address: str, established: Callable[[], None]) -> None:
            nonlocal calls
            calls += 1
            raise ConnectionRefusedError("no")

        link = Link("a")
        made = dialler(refuse)
        made.dial(link, link.session)
        await until(lambda: link.failures == ["no"])
        assert not link.session.busy
        link.session.end()
        await asyncio.sleep(5)
        assert (calls, link.gave_up_at) == (1, -1)

    in_virtual_time(work)


def test_no_more_than_so_many_at_a_time_and_first_attempts_first() -> None:
    async def work() -> None:
        calls = Calls()
        made = dialler(calls, half_open_max=2)
        links = [Link(name) for name in "abc"]
        for link in links:
            made.dial(link, link.session)
        await asyncio.sleep(1)
        assert [name for name, _ in calls.at] == ["a", "b"]
        links[0].session.end()
        await until(lambda: len(calls.at) == 3)
        assert calls.at[2][0] == "c"
        await made.close()
        assert made.half_open == 0

    in_virtual_time(work)


def test_who_ended_while_it_waited_is_not_called() -> None:
    async def work() -> None:
        calls = Calls()
        made = dialler(calls, half_open_max=1)
        first, second = Link("a"), Link("b")
        made.dial(first, first.session)
        made.dial(second, second.session)
        await asyncio.sleep(0)
        second.session.end()
        first.session.end()
        await asyncio.sleep(1)
        assert [name for name, _ in calls.at] == ["a"]

    in_virtual_time(work)


def test_who_is_being_called_by_the_other_waits_a_little() -> None:
    async def work() -> None:
        calls, link = Calls(), Link("a")
        link.has_candidates = True
        made = dialler(calls)
        made.dial(link, link.session)
        assert link.session.busy
        await asyncio.sleep(0.05)
        assert not calls.at
        await asyncio.sleep(0.06)
        assert len(calls.at) == 1
        await made.close()

    in_virtual_time(work)


def test_who_ends_while_it_waits_for_room_waits_no_longer() -> None:
    """Or a domain whose addresses come and go would leave them all behind."""

    async def work() -> None:
        made = dialler(hang, half_open_max=1)
        first, other = Link("a"), Link("b")
        made.dial(first, first.session)
        for _ in range(1_000):
            passing = Link("gone")
            made.dial(passing, passing.session)
            passing.session.end()
        made.dial(other, other.session)
        assert made.waiting == 1
        await made.close()

    in_virtual_time(work)


def test_where_too_many_wait_a_further_one_gives_up_at_once() -> None:
    async def work() -> None:
        made = dialler(hang, half_open_max=1, waiting_max=2)
        links = [Link(name) for name in "abcd"]
        for link in links:
            made.dial(link, link.session)
        assert made.waiting == 2
        await until(lambda: links[3].gave_up_at >= 0)
        assert links[3].gave_up_at == 0
        await until(lambda: links[2].gave_up_at >= 0)  # Those that wait have their turn.
        assert links[2].gave_up_at == pytest.approx(9, abs=1)
        await made.close()

    in_virtual_time(work)
