"""S004: what its equations and its table say, and what follows from them."""

from itertools import product

import pytest

from orderwire.kernel.errors import LocalProtocolError
from orderwire.lab.models.s004 import (
    active_active_cost,
    active_standby_cost,
    claimed_end_to_end,
    gain_at_worst,
    loss_at_best,
    messages_through,
    printed_gain_at_worst,
    printed_loss_at_best,
    relay_cost,
    sigma_of,
    speed_up,
    speed_up_with_own_share,
)

WHOLE = [(n, m) for n, m in product((2, 3, 5, 8), (24, 120, 1_200)) if m * (n - 1) % n == 0]


@pytest.mark.paper("S004:eq.1")
@pytest.mark.paper("S004:eq.2")
@pytest.mark.parametrize(("n", "m"), WHOLE)
def test_differences_follow_from_the_equations(n: int, m: int) -> None:
    """[S004:eq.1] [S004:eq.2] With m(n−1)/n whole, the corrected differences are exact."""
    for r, s in ((0.2, 1.0), (1.0, 0.1), (3.0, 7.0)):
        best = active_active_cost(n, m, r, s) - active_standby_cost(n, m, r, s)
        assert best == pytest.approx(loss_at_best(n, m, r, s))
        worst = active_standby_cost(n, m, r, s, a=n - 1) - active_active_cost(n, m, r, s, b=2)
        assert worst == pytest.approx(gain_at_worst(n, m, r, s))


@pytest.mark.paper("S004:eq.2")
def test_printed_differences_do_not_follow() -> None:
    """[S004:eq.2] n = 3, m = 300, r = 0.2, s = 1: −99.3 printed for −179.2, and 0.53 for 559.2."""
    example = (3, 300, 0.2, 1.0)
    assert loss_at_best(*example) == pytest.approx(-179.2)
    assert printed_loss_at_best(*example) == pytest.approx(-99.27, abs=0.01)
    assert gain_at_worst(*example) == pytest.approx(559.2)
    assert printed_gain_at_worst(*example) == pytest.approx(0.53, abs=0.01)


@pytest.mark.paper("S004:eq.2")
@pytest.mark.parametrize("n", [2, 3, 5, 8])
def test_active_active_is_never_slower_from_n_messages_on(n: int) -> None:
    """[S004:eq.2] The conclusion survives: for m ≥ n there is no loss."""
    for m in range(n, 50 * n, n):
        assert loss_at_best(n, m, 0.7, 0.3) <= 0


@pytest.mark.paper("S004:tab.5")
def test_claimed_gains_are_means_of_the_two_ratios() -> None:
    """[S004:tab.5] 1.11 to 1.33 are the means of the producers' and the consumers' ratios."""
    claimed = claimed_end_to_end()
    assert [round(claimed[users], 2) for users in (5, 10, 20)] == [1.12, 1.2, 1.33]


def test_gain_is_batching() -> None:
    """For n = 2 a gain of 1.9 means σ = 0.05, and one of 1.34 means 0.49."""
    assert sigma_of(2, 1.9) == pytest.approx(0.053, abs=0.001)
    assert sigma_of(2, 1.34) == pytest.approx(0.493, abs=0.001)
    for n, sigma in product((2, 3, 7), (0.0, 0.05, 0.5, 1.0)):
        assert sigma_of(n, speed_up(n, sigma)) == pytest.approx(sigma)
    assert speed_up(5, 0) == 5
    assert speed_up(5, 1) == 1


def test_a_share_stored_twice_gains_less() -> None:
    """n / (1 + n σ): as much where a message in a batch is free, a loss where it is not cheaper."""
    for n, sigma in product((2, 3, 7), (0.0, 0.05, 0.5, 1.0)):
        assert speed_up_with_own_share(n, sigma) == pytest.approx(n / (1 + n * sigma))


def test_messages_through_the_busiest_broker() -> None:
    """The table of what a message is to the original's network: n = 2, 3, 5."""
    for spread, relayed, wanted in (
        (False, False, (2, 3, 5)),
        (True, True, (2.5, 3, 3.4)),
        (True, False, (1.5, 1.667, 1.8)),
    ):
        found = [messages_through(n, spread=spread, relayed=relayed) for n in (2, 3, 5)]
        assert found == pytest.approx(wanted, abs=1e-3)


def test_relay_costs_two_hops_for_all_but_the_originals_share() -> None:
    assert relay_cost(3, 300, 0.2) == pytest.approx(80.0)


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda: active_standby_cost(1, 5, 1, 1), "n=1"),
        (lambda: active_active_cost(3, 0, 1, 1), "m=0"),
        (lambda: speed_up(3, -0.1), "sigma=-0.1"),
        (lambda: sigma_of(3, 3.5), "gain=3.5"),
    ],
)
def test_nonsense_is_refused(ask: object, said: str) -> None:
    assert callable(ask)
    with pytest.raises(LocalProtocolError, match=said):
        ask()
