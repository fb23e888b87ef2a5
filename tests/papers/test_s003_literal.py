"""The paper's ST, read literally, breaks its promises, in the paper's own figure too.  [S003]"""

import pytest
from selective_total_mutants import NoHeld, OwnOrder

from orderwire.ordering.total.tachikawa_st import TachikawaST
from orderwire.sim.paper_selective_total import Pak, PaperGroup, Step4
from orderwire.sim.selective_total_vectors import Script, ScriptConfig, ScriptStep
from orderwire.verify.selective_total import Logs


def logs_of(group: PaperGroup) -> Logs[str]:
    received = {at: group.log(at).split() for at in group.entities}
    sent = {at: [each.name for each in one.sent] for at, one in group.entities.items()}
    destinations = {
        each.name: each.destinations for one in group.entities.values() for each in one.sent
    }
    return Logs(sent, received, destinations)


def figure_6(step4: Step4) -> PaperGroup:
    group = PaperGroup(3, step4=step4)
    group.send(1, "a", 2, 3)
    group.send(3, "x", 1, 2, 3)
    group.send(1, "b", 2)
    group.compose(1, "c", 1, 3)
    group.compose(2, "p", 1)
    group.compose(3, "y", 2)
    group.compose(3, "z", 1, 3)
    group.put(1, 3)
    group.put(2)
    group.put(3)
    group.put(3)
    group.send(2, "q", 2, 3)
    return group


@pytest.mark.paper("S003:fig.6")
def test_figure_6_ends_in_two_orders() -> None:
    group = figure_6(Step4.MEANT)
    assert [group.log(at) for at in (1, 2, 3)] == ["x c p z", "a x b q y", "a x z q c"]
    logs = logs_of(group)
    assert not logs.are_order_equivalent(1, 3)
    assert not logs.is_acyclic()
    assert all(logs.is_selectively_correct(at) for at in (1, 2, 3))


@pytest.mark.paper("S003:fig.6")
@pytest.mark.paper("S003:sec.4.3")
def test_figure_6_as_printed_never_gives_back_what_was_lost() -> None:
    group = figure_6(Step4.PRINTED)
    assert [group.log(at) for at in (1, 2, 3)] == ["x c p z", "a x b q y", "a x z q"]
    assert not any(each.queue for each in group.entities.values())


@pytest.mark.paper("S003:sec.4.1")
def test_the_failure_point_is_each_entitys_own() -> None:
    group = PaperGroup(2, step4=Step4.MEANT)
    group.compose(2, "b", 1, 2)
    group.send(1, "a", 1, 2, lost=(1,))
    group.put(2)
    group.send(1, "d", 1, 2)
    assert not logs_of(group).are_order_equivalent(1, 2)
    assert group.log(1).split().index("b") < group.log(1).split().index("a")
    assert group.log(2).split().index("a") < group.log(2).split().index("b")


@pytest.mark.paper("S003:sec.3.3")
def test_without_a_loss_a_message_is_never_acknowledged() -> None:
    group = PaperGroup(3)
    group.send(1, "p", 1, 2)
    for turn in range(20):
        group.send(2, f"b{turn}", 3)
        group.send(1, f"a{turn}", 2)
        group.send(3, f"c{turn}", 1)
    assert group.entities[1].pre_acknowledged[0].name == "p"
    assert group.entities[2].pre_acknowledged[0].name == "p"
    assert not group.entities[1].acknowledged
    assert not group.entities[2].acknowledged


@pytest.mark.paper("S003:sec.3.2")
def test_a_pdu_for_others_that_is_missed_closes_its_senders_window() -> None:
    group = PaperGroup(3, window=3)
    group.send(1, "a", 2, lost=(3,))
    for turn in range(20):
        for source, to in ((1, 2), (2, 1), (3, 1)):
            group.compose(source, f"{source}-{turn}", to)
            group.drain()
    assert group.entities[3].treq[1] == 0
    assert group.entities[1].tseq == 3
    assert len(group.entities[1].waiting) == 18


@pytest.mark.paper("S003:fig.5")
def test_a_recovery_for_nothing_comes_again_at_every_pdu() -> None:
    group = PaperGroup(3)
    group.send(1, "a", 2, lost=(3,))
    for turn in range(1, 4):
        group.send(2, f"b{turn}", 3)
        assert group.entities[3].recoveries == turn
        assert group.control == 7 * turn


@pytest.mark.paper("S003:sec.4.3")
def test_what_is_sent_again_is_refused() -> None:
    group = PaperGroup(2)
    group.send(1, "a", 2, lost=(2,))
    group.send(1, "b", 2)
    assert group.entities[2].recoveries == 1
    assert group.log(2) == ""
    for turn in range(5):
        group.send(1, f"c{turn}", 2)
    assert "a" not in group.log(2).split()
    assert "b" not in group.log(2).split()


@pytest.mark.paper("S003:sec.4.1")
def test_a_lost_control_pdu_is_waited_for_for_ever() -> None:
    group = PaperGroup(2, step4=Step4.MEANT)
    group.lose[Pak, 1] = frozenset({2})
    group.send(1, "a", 2, lost=(2,))
    group.send(1, "b", 2)
    assert group.entities[2].recovering
    assert not any(each.queue for each in group.entities.values())


@pytest.mark.paper("S003:sec.4.1")
def test_a_last_pdu_that_is_lost_is_never_missed() -> None:
    group = PaperGroup(2)
    group.send(1, "a", 2, lost=(2,))
    assert not any(each.queue for each in group.entities.values())
    assert group.log(2) == ""
    assert not group.entities[2].recoveries


def late_pak(*, lost: bool) -> PaperGroup:
    """E3 misses a and b, c shows it: all is behind every failure point; a RST_PAK may be late."""
    group = PaperGroup(3, step4=Step4.MEANT)
    if lost:
        group.lose[Pak, 1] = frozenset({2})
    group.send(1, "a", 1, 2, 3, lost=(3,))
    group.send(2, "b", 1, 2, 3, lost=(3,))
    group.send(1, "c", 1, 2, 3)
    if lost:
        assert group.entities[2].recovering
        group.entities[1].repeat()
        group.put(1)
    assert not any(each.recovering for each in group.entities.values())
    return group


@pytest.mark.paper("S003:sec.4.3")
def test_a_rst_pak_that_comes_late_at_one_entity_changes_its_order() -> None:
    """[S003:sec.4.3] ORDR is the order in which RST_PAK arrive: each entity's own."""
    in_time = late_pak(lost=False)
    assert [in_time.log(at) for at in (1, 2, 3)] == ["a c b"] * 3
    group = late_pak(lost=True)
    assert [group.log(at) for at in (1, 2, 3)] == ["a c b", "b a c", "a c b"]
    logs = logs_of(group)
    assert not logs.are_order_equivalent(1, 2)
    assert all(logs.is_selectively_correct(at) for at in (1, 2, 3))


@pytest.mark.paper("S003:sec.4.3")
@pytest.mark.parametrize(("form", "at_2"), [(TachikawaST, "a c b"), (OwnOrder, "b a c")])
def test_one_member_says_in_which_order_sources_are_sorted(
    form: type[TachikawaST], at_2: str
) -> None:
    """[S003:sec.4.3] As corrected the lowest member's ORDR counts; each its own breaks it, too."""
    script = Script(3, ScriptConfig(), form)
    script.run(ScriptStep(op="lose", kind="PAK", src=1, lost=[2]))
    for source, name, lost in ((1, "a", [3]), (2, "b", [3]), (1, "c", [])):
        script.run(ScriptStep(op="send", src=source, id=name, dst=[1, 2, 3], lost=lost))
    assert not any(core.is_recovering for core in script.cores)
    assert [" ".join(script.log(at)) for at in range(3)] == ["a c b", at_2, "a c b"]


BEHIND_A_GAP = ("b", "c", "d")


@pytest.mark.paper("S003:sec.4.3")
def test_selective_repetition_goes_back_to_a_sources_first_gap() -> None:
    """[S003:sec.4.3] What comes behind a gap is refused, so it is sent again though it was here."""
    group = PaperGroup(2, step4=Step4.MEANT)
    for name in ("a", *BEHIND_A_GAP):
        group.compose(1, name, 2)
    group.put(1, 2)
    group.put(1)
    assert group.again == ["a", *BEHIND_A_GAP]
    assert group.log(2) == "a b c d"


@pytest.mark.paper("S003:sec.4.3")
@pytest.mark.parametrize(("form", "again"), [(TachikawaST, 1), (NoHeld, 4)])
def test_what_is_held_beyond_a_gap_is_not_sent_again(form: type[TachikawaST], again: int) -> None:
    """[S003:sec.4.3] As corrected only a is sent again; without HELD all are, as printed."""
    script = Script(2, ScriptConfig(), form)
    for name in ("a", *BEHIND_A_GAP):
        script.run(ScriptStep(op="compose", src=1, id=name, dst=[2]))
    script.run(ScriptStep(op="put", src=1, lost=[2]))
    script.run(ScriptStep(op="put", src=1))
    assert script.copies["RTX", 0] == again
    assert script.log(1) == ["a", *BEHIND_A_GAP]
