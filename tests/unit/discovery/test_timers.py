"""Named timers: the last setting counts, and what is due comes in the order of its times."""

from orderwire.discovery.timers import SLACK, Timers
from orderwire.kernel import Instant


def test_the_earliest_is_next() -> None:
    timers = Timers()
    assert timers.next() is None
    timers.set("a", Instant(5))
    timers.set("b", Instant(3))
    assert timers.next() == 3
    assert list(timers.pop_due(Instant(2))) == []
    assert list(timers.pop_due(Instant(5))) == ["b", "a"]
    assert timers.next() is None


def test_setting_again_moves_it_both_ways() -> None:
    timers = Timers()
    timers.set("a", Instant(5))
    timers.set("a", Instant(9))
    assert timers.next() == 9
    timers.set("a", Instant(1))
    assert list(timers.pop_due(Instant(4))) == ["a"]
    assert list(timers.pop_due(Instant(10))) == []


def test_a_cancelled_one_is_not_due() -> None:
    timers = Timers()
    timers.set("a", Instant(5))
    timers.set(("b", 1), Instant(6))
    timers.cancel("a")
    timers.cancel("never set")
    assert not timers.is_set("a")
    assert timers.is_set(("b", 1))
    assert list(timers.pop_due(Instant(9))) == [("b", 1)]
    timers.set("c", Instant(1))
    timers.clear()
    assert timers.next() is None


def test_one_may_be_set_or_cancelled_while_they_are_taken() -> None:
    timers = Timers()
    for name, due in (("a", 1), ("b", 2), ("c", 3)):
        timers.set(name, Instant(due))
    taken = []
    for name in timers.pop_due(Instant(3)):
        taken.append(name)
        if name == "a":
            timers.cancel("b")
            timers.set("d", Instant(2))
    assert taken == ["a", "d", "c"]


def test_the_same_instant_keeps_the_order_of_setting() -> None:
    timers = Timers()
    for name in ("x", "y", "z"):
        timers.set(name, Instant(7))
    assert list(timers.pop_due(Instant(7))) == ["x", "y", "z"]


def test_cancelled_times_do_not_pile_up() -> None:
    """One that is set anew before it is due, again and again, costs no memory."""
    timers = Timers()
    timers.set("other", Instant(7))
    for at in range(10 * SLACK):
        timers.set("a", Instant(1_000_000 + at))
        timers.set(("b", at), Instant(2_000_000))
        timers.cancel(("b", at))
    assert len(timers._heap) <= SLACK + 5
    assert list(timers.pop_due(Instant(3_000_000))) == ["other", "a"]
