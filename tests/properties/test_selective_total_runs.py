"""ST in drawn groups: losses, outages, crashes, views.  What it promises holds; no rule is idle."""

import msgspec
import pytest
import selective_total_mutants as mutants
from wired_st import WiredST

from orderwire.kernel import (
    Destinations,
    Instant,
    LocalProtocolError,
    ProcessId,
    RemoteProtocolError,
    ms,
)
from orderwire.ordering.total.catalog import ALGORITHMS
from orderwire.ordering.total.pdu import (
    ChangeView,
    Data,
    Has,
    Known,
    Member,
    Record,
    RstPak,
)
from orderwire.ordering.total.settings import Delivery, TotalSettings
from orderwire.ordering.total.st_csn import StCsn
from orderwire.ordering.total.tachikawa_st import TachikawaST
from orderwire.sim.selective_total_run import GENERATORS, HEAVY, LARGE, run
from orderwire.sim.selective_total_vectors import Script, ScriptConfig, ScriptStep
from orderwire.trace import MemorySink
from orderwire.verify.audit import audit
from orderwire.verify.source import TableSource
from orderwire.verify.verdict import Verdict

REST_NS = ms(2_000)


@pytest.mark.paper("S003:sec.2")
@pytest.mark.parametrize("name", GENERATORS)
def test_no_promise_is_broken(name: str) -> None:
    recoveries = repeated = 0
    for seed in range(40):
        outcome = run(GENERATORS[name](seed), seed)
        assert outcome.violations == (), f"{name}, seed {seed}"
        recoveries += outcome.recoveries
        repeated += outcome.repeated
    assert recoveries > 20
    assert repeated > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", GENERATORS)
def test_no_promise_is_broken_in_many_runs(name: str) -> None:
    for seed in range(10_000, 12_000):
        assert run(GENERATORS[name](seed), seed).violations == (), f"{name}, seed {seed}"


@pytest.mark.parametrize("seed", [10_663, 11_011])
def test_nulls_do_not_keep_one_another_alive(seed: int) -> None:
    """A missed NULL made a suspicion, that a poll, that NULLs, of which each was missed again."""
    outcome = run(GENERATORS["mixed-crash"](seed), seed, rest_ns=REST_NS)
    assert outcome.violations == ()


@pytest.mark.parametrize("name", HEAVY)
@pytest.mark.parametrize("algorithm", ["tachikawa-st", "st-csn"])
def test_lasting_heavy_loss_lets_the_group_come_to_rest(algorithm: str, name: str) -> None:
    for seed in range(12):
        outcome = run(HEAVY[name](seed), seed, ALGORITHMS[algorithm].create)
        assert outcome.violations == (), f"{name}, seed {seed}"


def test_what_is_overheard_of_a_gap_is_not_had() -> None:
    """A crash met RTX that had come before any gap was seen: they counted, and had no place."""
    entry = ALGORITHMS["source-sp"]
    outcome = run(HEAVY["heavy-crash"](30_014), 30_014, entry.create, promises=entry.promises)
    assert outcome.violations == ()


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", HEAVY)
def test_lasting_heavy_loss_lets_the_group_come_to_rest_in_many_runs(name: str) -> None:
    for seed in range(10_000, 10_500):
        assert run(HEAVY[name](seed), seed).violations == (), f"{name}, seed {seed}"


@pytest.mark.paper("S003:sec.3.1")
@pytest.mark.parametrize("name", LARGE)
def test_large_groups_keep_their_promises_with_headers_left_out(name: str) -> None:
    WiredST.headers_lost = WiredST.followed = 0
    for seed in range(4):
        WiredST.wire.clear()
        assert run(LARGE[name](seed), seed, WiredST).violations == (), f"{name}, seed {seed}"
    assert WiredST.followed > 100
    assert WiredST.headers_lost > 10


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", LARGE)
def test_large_groups_keep_their_promises_in_many_runs(name: str) -> None:
    for seed in range(10_000, 10_300):
        WiredST.wire.clear()
        assert run(LARGE[name](seed), seed, WiredST).violations == (), f"{name}, seed {seed}"


CAUGHT = {
    mutants.NoPrefix: ("deaf", (3, 69), "O2"),
    mutants.PointInTheLog: ("deaf", (10, 36), "O2"),
    mutants.OwnOrder: ("deaf", (1, 5), "O2"),
    mutants.NoSorting: ("deaf", (1, 4), "O2"),
    mutants.AckPassesHoles: ("deaf", (0, 1), "O3"),
    mutants.PrintedAcceptance: ("mixed", (0, 1), "O4"),
    mutants.FlowOnTseq: ("mixed", (0, 1, 2, 3), "O4"),
    mutants.TellsViewsEarly: ("mixed-crash", (1, 3), "O7"),
    mutants.OneIsEnough: ("deaf", (1,), "O2"),
    mutants.NeverPutAgain: ("deaf", (7,), "O4"),
    mutants.PassesOnOneWord: ("mixed", (2,), "O2"),
}


@pytest.mark.paper("S003:sec.4.1")
@pytest.mark.parametrize("mutant", CAUGHT, ids=lambda mutant: mutant.__name__)
def test_a_rule_that_is_off_is_caught(mutant: type[TachikawaST]) -> None:
    name, seeds, promise = CAUGHT[mutant]
    whole = StCsn if issubclass(mutant, StCsn) else TachikawaST
    for seed in seeds:
        plan = GENERATORS[name](seed)
        assert run(plan, seed, whole).violations == ()
        broken = run(plan, seed, mutant, rest_ns=REST_NS).violations
        if any(violation.startswith(promise) for violation in broken):
            return
    pytest.fail(f"{mutant.__name__} breaks nothing in {seeds}")


@pytest.mark.paper("S003:sec.4.1")
def test_rules_that_only_save_work_break_nothing_when_off() -> None:
    """HELD saves repetitions; condition (2) as a mere suspicion saves recoveries."""
    found = {}
    for make in (TachikawaST, mutants.NoHeld, mutants.HardSuspicion):
        outcomes = [run(GENERATORS["mixed"](seed), seed, make) for seed in range(30)]
        assert [o.violations for o in outcomes if o.violations] == []
        found[make] = (sum(o.recoveries for o in outcomes), sum(o.repeated for o in outcomes))
    assert found[mutants.NoHeld][1] > found[TachikawaST][1]
    assert found[mutants.HardSuspicion][0] > 1.2 * found[TachikawaST][0]


AUDITED: dict[str, set[str]] = {
    "tachikawa-st": set(),
    "total-to": set(),
    "st-go-back": set(),
    "st-csn": set(),
    "totem-safe": set(),
    "source-sp": {"T1", "T2"},
}


@pytest.mark.parametrize("algorithm", AUDITED)
def test_the_audit_of_its_trace_says_the_same(algorithm: str) -> None:
    entry = ALGORITHMS[algorithm]
    sink = MemorySink()
    for name in ("mixed", "deaf-crash", "lossy-start-crash"):
        for seed in range(6):
            plan, run_id = GENERATORS[name](seed), f"{name}-{seed}"
            outcome = run(
                plan,
                seed,
                entry.create,
                promises=entry.promises,
                sink=sink,
                run_id=run_id,
                algorithm=algorithm,
            )
            assert outcome.violations == ()
    report, _ = audit(TableSource(sink.table()))
    assert report.verdict is Verdict.VALID
    broken = {check.id for check in report.checks if check.violations and check.id[0] == "T"}
    assert broken == AUDITED[algorithm]


def test_the_audit_rejects_a_rule_that_is_off() -> None:
    sink = MemorySink()
    plan = GENERATORS["deaf"](1)
    run(plan, 1, mutants.NoSorting, rest_ns=REST_NS, sink=sink)
    report, _ = audit(TableSource(sink.table()))
    assert report.verdict is Verdict.INVALID
    assert {"T1", "T2"} <= {check.id for check in report.checks if check.violations}


def test_the_same_seed_gives_the_same_run() -> None:
    plan = GENERATORS["mixed-crash"](5)
    assert run(plan, 5) == run(plan, 5)


def test_a_view_of_ids_in_use_is_refused() -> None:
    core = TachikawaST(ProcessId(0), TotalSettings(members=2))
    again = ChangeView(1, (Member(ProcessId(0)), Member(ProcessId(1), incarnation=1)))
    with pytest.raises(LocalProtocolError, match="a view without it must be installed first"):
        core.submit(again, Instant(0))


def test_a_member_that_claims_more_than_its_window_makes_no_places() -> None:
    core = TachikawaST(ProcessId(0), TotalSettings(members=2, window=4))
    known = Known(has=(Has(0), Has(0)), pseq=(1 << 40, 0), tseq=1 << 40, ack=(0, 0))
    with pytest.raises(RemoteProtocolError, match="4 may be on their way"):
        core.receive(ProcessId(1), RstPak((0, 1), Destinations(0), known), Instant(0))


def test_a_record_that_claims_more_than_a_window_is_not_adopted() -> None:
    """What others have completed says how much is on its way here: a place for each."""
    core = TachikawaST(ProcessId(0), TotalSettings(members=2, window=4))
    core.submit(ChangeView(1, (Member(ProcessId(0)), Member(ProcessId(1)))), Instant(0))
    sent = ((ProcessId(0), 0, (0, 0)), (ProcessId(1), 1 << 40, (1 << 40, 0)))
    record = Record((0, 1), ((ProcessId(0), 0), (ProcessId(1), 0)), (), sent, ())
    known = Known(has=(Has(0), Has(0)), pseq=(0, 0), tseq=0, ack=(0, 0), record=record)
    with pytest.raises(RemoteProtocolError, match="4 may be on their way"):
        core.receive(ProcessId(1), RstPak((1, 0), Destinations(0), known), Instant(0))


@pytest.mark.paper("S003:dec.1")
@pytest.mark.parametrize(
    ("make", "first"), [(TachikawaST, ["q"]), (mutants.Hasty, ["q", "p"])], ids=["ST", "hasty"]
)
def test_who_completes_an_epoch_alone_hands_out_nothing_that_it_has_sorted(
    make: type[TachikawaST], first: list[str]
) -> None:
    """E1 misses its own p, alone completes the recovery, sends p again, and crashes."""
    script = Script(3, ScriptConfig(deliver=Delivery.PREACK), make)
    for step in (
        {"op": "send", "src": 1, "dst": [1, 3], "id": "p", "lost": [1]},
        {"op": "send", "src": 3, "dst": [1, 3], "id": "q"},
        {"op": "lose", "kind": "RACK", "src": 1, "copy": 1, "lost": [2, 3]},
        {"op": "null", "src": 1},
        {"op": "null", "src": 1, "lost": [2, 3]},
        {"op": "crash", "src": 1},
        {"op": "view", "view": 1, "members": [2, 3]},
        {"op": "nulls", "rounds": 3},
    ):
        script.run(msgspec.convert(step, ScriptStep))
    assert script.delivered == [first, [], ["p", "q"]]


@pytest.mark.paper("S003:dec.1")
@pytest.mark.parametrize("delivery", Delivery)
@pytest.mark.parametrize("views", [(2,), (2, 3)], ids=["once", "twice"])
def test_what_all_have_is_handed_over_though_its_source_departs(
    delivery: Delivery, views: tuple[int, ...]
) -> None:
    """E1 waits for x of view 0 when E3 crashes, whose m of view 1 E4 has been handed."""
    script = Script(4, ScriptConfig(deliver=delivery))
    for step in (
        {"op": "send", "src": 2, "dst": [1], "id": "x", "lost": [1]},
        *({"op": "lose", "kind": "RTX", "src": 2, "copy": k, "lost": [1]} for k in (1, 2, 3)),
        {"op": "view", "view": 1, "members": [1, 2, 3, 4]},
        {"op": "send", "src": 3, "dst": [1, 4], "id": "m"},
        {"op": "nulls", "rounds": 3},
        {"op": "crash", "src": 3},
        *({"op": "view", "view": number, "members": [1, 2, 4]} for number in views),
    ):
        script.run(msgspec.convert(step, ScriptStep))
    assert script.delivered == [[], [], [], ["m"]]
    assert script.log(0) == ["?", "m"]
    while not script.delivered[0]:
        script.run(ScriptStep(op="nak", src=1))
        script.run(ScriptStep(op="nulls", rounds=3))
    assert script.delivered == [["x", "m"], [], [], ["m"]]


def test_who_waits_outside_for_room_asks_for_it() -> None:
    core = TachikawaST(ProcessId(0), TotalSettings(members=2))
    core.receive(ProcessId(1), Data((0, 0), 0, Destinations(0), (0, 0), (0, 0), 0), Instant(0))
    assert not core.may_send()
    assert core.is_at_rest
    core.await_window(True, Instant(0))
    assert not core.is_at_rest
    assert core.next_deadline() is not None
    core.await_window(False, Instant(0))
    assert core.is_at_rest
