"""A message's own lifetime: which ones a writer may ask for, and what of it the order gets."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire import DeltaCausal, Fifo, LocalProtocolError, Order, Published, Unordered
from orderwire.kernel import ms, us
from orderwire.participant.lifetimes import delivered_within_ns, handed_over_within_ns

OWN = Published(algorithm="rodrigues-deadline", lifetime_ms=250)


@pytest.mark.parametrize(
    ("asked", "own"), [(0.001, us(1)), (249.999, us(249_999)), (250, None), (100, ms(100))]
)
def test_any_lifetime_up_to_the_orders(asked: float, own: int | None) -> None:
    assert OWN.own_lifetime_ns(asked) == own


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        (0, "lifetime_ms=0 must be above 0"),
        (-1, "lifetime_ms=-1 must be above 0"),
        (250.001, "lifetime_ms=250.001 of a message must be at most 250, its order's lifetime_ms"),
        (0.0005, "whole number of microseconds"),
        ("1", "must be a number of milliseconds"),
        (True, "must be a number of milliseconds"),
    ],
)
def test_what_is_out_of_bounds_is_refused_with_what_is_not(asked: float, why: str) -> None:
    with pytest.raises(LocalProtocolError, match=why):
        OWN.own_lifetime_ns(asked)


@pytest.mark.parametrize(
    "order",
    [
        DeltaCausal(lifetime_ms=250),
        Fifo(lifetime_ms=250),
        Unordered(),
        Published(algorithm="yavatkar-mcp", lifetime_ms=250),
    ],
    ids=lambda order: order.label,
)
@pytest.mark.parametrize("asked", [100, 250])
def test_where_it_had_no_effect_it_is_refused(order: Order, asked: float) -> None:
    with pytest.raises(LocalProtocolError, match=f"lifetime_ms={asked} has no effect: all messa"):
        order.own_lifetime_ns(asked)


@given(ticks=st.one_of(st.integers(1, 300), st.integers(1, 10**6), st.integers(1, 10**11)))
def test_handing_over_gets_a_share_and_never_more_than_was_asked(ticks: int) -> None:
    asked = us(ticks)
    delivered = delivered_within_ns(asked)
    handed = handed_over_within_ns(delivered)
    assert 0 < delivered <= handed <= asked <= handed + us(1)
    assert delivered_within_ns(handed) == delivered
    assert min(ms(20), asked // 5) - us(2) <= handed - delivered <= ms(20)


def test_whole_fractions_keep_all_of_it() -> None:
    for asked in (us(5), us(250), ms(1), ms(99), ms(100), ms(250), ms(86_400_000)):
        assert handed_over_within_ns(delivered_within_ns(asked)) == asked
