"""Which view may follow.  [S003:dec.1]"""

import msgspec
import pytest

from orderwire.kernel import ProcessId
from orderwire.ordering.total.pdu import ChangeView, Member
from orderwire.ordering.total.view_rules import Entrant, RelayAt, StoredView, next_view

ONE, TWO = RelayAt("127.0.0.1:1", 10), RelayAt("127.0.0.1:2", 20)
ME = ProcessId(0)


def _alive(*members: tuple[int, int], installed: int = -1) -> dict[ProcessId, Entrant]:
    return {
        ProcessId(k): Entrant(Member(ProcessId(k), incarnation), installed)
        for k, incarnation in members
    }


def _ids(view: StoredView | None) -> list[int] | None:
    return None if view is None else [member.process for member in view.members]


ABC = ((0, 1), (1, 2), (2, 3))


def _first(*members: tuple[int, int]) -> StoredView:
    view = next_view(StoredView(), _alive(*(members or ABC)), [ONE], ME)
    assert view is not None
    return view


def test_the_first_view_waits_for_the_least_and_for_a_relay() -> None:
    assert next_view(StoredView(), _alive(*ABC[:2]), [ONE], ME, least=3) is None
    assert next_view(StoredView(), _alive(*ABC), [], ME, least=3) is None
    view = next_view(StoredView(), _alive(*ABC), [ONE, TWO], ME, least=3)
    assert view is not None
    assert (view.number, _ids(view), view.relay) == (1, [0, 1, 2], ONE)


def test_nothing_follows_while_all_live() -> None:
    assert next_view(_first(), _alive(*ABC), [ONE, TWO], ME) is None


def test_a_majority_goes_on_and_a_minority_does_not() -> None:
    assert _ids(next_view(_first(), _alive(*ABC[:2]), [ONE], ME)) == [0, 1]
    assert next_view(_first(), _alive(*ABC[:1]), [ONE], ME) is None


def test_the_next_relay_takes_over_and_the_members_stay() -> None:
    view = next_view(_first(), _alive(*ABC), [TWO], ME)
    assert view is not None
    assert (_ids(view), view.relay) == ([0, 1, 2], TWO)
    assert next_view(_first(), _alive(*ABC), [], ME) is None


def test_a_relay_that_is_there_again_is_another() -> None:
    again = msgspec.structs.replace(ONE, incarnation=30)
    view = next_view(_first(), _alive(*ABC), [again], ME)
    assert view is not None
    assert view.relay == again


def test_views_that_nobody_installed_bind_the_next_ones() -> None:
    five = tuple((k, k) for k in range(5))
    three = next_view(_first(*five), _alive(*five[:3]), [ONE], ME)
    assert three is not None
    assert three.former == (ChangeView(1, _first(*five).members),)
    # Two of three, but two of five: only once three have installed the second view is it enough.
    assert next_view(three, _alive(*five[:2]), [ONE], ME) is None
    assert _ids(next_view(three, _alive(*five[:2], installed=2), [ONE], ME)) == [0, 1]


@pytest.mark.parametrize("installed", [1, 2])
def test_an_id_is_given_again_when_all_have_installed_a_view_without_it(installed: int) -> None:
    two = next_view(_first(), _alive(*ABC[:2], (2, 9)), [ONE], ME)
    assert two is not None
    assert (_ids(two), two.retired) == ([0, 1], {2: 2})
    alive = _alive(*ABC[:2], installed=installed) | _alive((2, 9))
    three = next_view(two, alive, [ONE], ME)
    if installed < 2:
        assert three is None
    else:
        assert three is not None
        assert three.members[2] == Member(ProcessId(2), 9)
        assert three.retired == {}


def test_where_nobody_is_left_another_group_begins() -> None:
    view = next_view(_first(), _alive((0, 7), (1, 8)), [TWO], ME, least=2)
    assert view is not None
    assert (view.number, _ids(view), view.former, view.retired) == (2, [0, 1], (), {})


def test_what_is_stored_comes_back() -> None:
    view = next_view(_first(), _alive(*ABC[:2]), [ONE], ME)
    assert msgspec.json.decode(msgspec.json.encode(view), type=StoredView) == view
