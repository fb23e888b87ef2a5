"""The worse network: seeded, bounded, and refusing nonsense."""

import asyncio
from collections.abc import Sequence

import pytest

from orderwire.aio import impairment
from orderwire.aio.impairment import DrawnFates, Impairer, Impairment, Jitter
from orderwire.kernel import ProcessId, ms

ME, A, B = ProcessId(0), ProcessId(1), ProcessId(2)


def draw(settings: Impairment, to: ProcessId = A, count: int = 2_000) -> list[tuple[int, ...]]:
    fates = DrawnFates(settings, ME)
    return [tuple(fates.fate(to, b"")) for _ in range(count)]


def test_one_seed_gives_one_fate_and_streams_are_independent() -> None:
    settings = Impairment(seed=7, loss_ratio=0.2, jitter_mean_ms=3, duplicate_ratio=0.1)
    assert draw(settings) == draw(settings)
    assert draw(settings) != draw(Impairment(seed=8, loss_ratio=0.2, jitter_mean_ms=3))
    assert draw(settings) != draw(settings, B)
    # Another loss ratio leaves the delays of what arrives alone.
    lossless = draw(Impairment(seed=7, jitter_mean_ms=3))
    fates = DrawnFates(Impairment(seed=7, jitter_mean_ms=3, duplicate_ratio=0.0), ME)
    for _ in range(100):
        fates.fate(B, b"")  # another destination's draws disturb nothing
    assert [tuple(fates.fate(A, b"")) for _ in range(2_000)] == lossless


def test_ratios_are_met() -> None:
    fates = draw(Impairment(loss_ratio=0.2, duplicate_ratio=0.1), count=20_000)
    assert sum(not each for each in fates) == pytest.approx(4_000, rel=0.1)
    assert sum(len(each) == 2 for each in fates) == pytest.approx(1_600, rel=0.1)


@pytest.mark.parametrize("jitter", list(Jitter))
def test_every_jitter_has_the_mean_it_is_given(jitter: Jitter) -> None:
    fates = draw(Impairment(delay_ms=10, jitter_mean_ms=4, jitter=jitter), count=20_000)
    delays = [each[0] for each in fates]
    assert min(delays) >= ms(10)
    assert sum(delays) / len(delays) == pytest.approx(ms(14), rel=0.05)


def test_reordered_datagrams_are_held_back() -> None:
    delays = {each[0] for each in draw(Impairment(reorder_ratio=0.5, reorder_ms=5))}
    assert delays == {0, ms(5)}


@pytest.mark.parametrize(
    "bad", [{"loss_ratio": 1.5}, {"duplicate_ratio": -0.1}, {"delay_ms": -1}, {"reorder_ms": 1e9}]
)
def test_nonsense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        Impairment(**bad)  # type: ignore[arg-type]


class Scripted:
    def __init__(self, *fates: Sequence[int]) -> None:
        self.fates = iter(fates)

    def fate(self, to: ProcessId, data: bytes) -> Sequence[int]:
        return next(self.fates)


def test_what_is_held_goes_out_in_the_order_of_its_time() -> None:
    async def run() -> list[bytes]:
        got: list[bytes] = []
        done = asyncio.get_running_loop().create_future()

        def send(to: ProcessId, data: list[bytes]) -> None:
            got.extend(data)
            if len(got) == 5:
                done.set_result(None)

        now = 0

        def clock() -> int:
            nonlocal now
            now += ms(1)
            return now

        impairer = Impairer(Scripted([ms(9)], [], [0], [ms(4), ms(6)], [ms(2)]), send, clock)
        impairer.datagrams(A, [b"late", b"lost", b"now", b"twice", b"soon"])
        async with asyncio.timeout(10):
            await done
        impairer.close()
        assert (impairer.lost, impairer.duplicated) == (1, 1)
        return got

    assert asyncio.run(run()) == [b"now", b"soon", b"twice", b"twice", b"late"]


def test_what_is_held_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(impairment, "HELD_MAX", 3)

    async def run() -> int:
        impairer = Impairer(Scripted(*[[ms(1_000)]] * 5), lambda *_: None, lambda: 0)
        impairer.datagrams(A, [b""] * 5)
        impairer.close()
        return impairer.crowded_out

    assert asyncio.run(run()) == 2
