"""Worked scenarios of discovery, replayed through the ring, the roster, the server and FDP/1.

Source: 14 scenarios computed by hand and by a separate prototype; format in discovery/README.md.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from orderwire.sim.discovery_vectors import check_discovery
from orderwire.sim.vector_format import VectorError
from orderwire.sim.vectors import check_paths

FOLDER = Path(__file__).parent / "discovery"
FILES = sorted(FOLDER.glob("*.json"))


def load(name: str) -> dict[str, Any]:
    raw = json.loads((FOLDER / f"{name}.json").read_text())
    assert isinstance(raw, dict)
    return raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_discovery_does_what_the_scenario_expects(path: Path) -> None:
    report = check_paths([path])
    assert report.failed == []
    assert report.not_covered == []
    assert report.checks == report.passed > 0


def test_the_printed_protocol_fails_when_joins_overlap() -> None:
    raw = load("12-concurrent-joins")
    raw["params"]["mode"] = "paper"
    (why,) = check_discovery(raw)
    assert why is not None
    assert "x misses 7" in why
    assert "y misses 6" in why


SPOILT = {
    "rows": ("expect.rows.0", [9, 9, 9]),
    "tree": ("expect.hops", {"1": 99}),
    "joinack": ("expect.maps.4", [4, 5]),
    "size": ("expect.join_ack.4", 1),
    "merge": ("expect.finally_id5", "LEFT"),
    "bootstrap": ("expect.replies.2", "ID 0"),
}


def of_kind(kind: str) -> dict[str, Any]:
    """Return the first of the files of this kind."""
    return next(each for path in FILES if (each := json.loads(path.read_text()))["kind"] == kind)


def changed(raw: dict[str, Any], where: str, value: Any) -> dict[str, Any]:
    """Return a copy with another value at this place; `…` takes the key away."""
    copy: dict[str, Any] = json.loads(json.dumps(raw))
    at: Any = copy
    *path, last = (int(key) if key.isdecimal() else key for key in where.split("."))
    for key in path:
        at = at[str(key)] if isinstance(at, dict) else at[key]
    last = str(last) if isinstance(at, dict) else last
    if value is ...:
        del at[last]
    else:
        at[last] = value
    return copy


@pytest.mark.parametrize("kind", SPOILT)
def test_a_wrong_expectation_is_found(kind: str) -> None:
    spoilt = changed(of_kind(kind), *SPOILT[kind])
    assert [why for why in check_discovery(spoilt) if why is not None] != []


JOIN, UPDATES = "04-fig7-join", "05-fig8-update-resets-heartbeat"
NOBODY = "nobody starts with the names zz"
MALFORMED: list[tuple[str, str, Any, str]] = [
    # name or kind, where, value, why
    (JOIN, "params.unheard", 1, "unknown field `unheard`"),
    (JOIN, "params.mode", "other", "mode 'other'"),
    (JOIN, "params.M", 0, "M: id_space=0"),
    (JOIN, "params.M", 4, "ids [4] are not within 0 … 3"),
    (JOIN, "params.policy", "foo", "policy 'foo'"),
    (JOIN, "params.hb", [2.0, 1.0], "heartbeat_min_ns=2000000000"),
    (JOIN, "params.hb", [0.0, 1.0], "must be positive"),
    (JOIN, "params.t_fail", -1.0, "times [-1.0] s"),
    (JOIN, "params.delay", [0.2, 0.1], "delay (0.2, 0.1)"),
    (JOIN, "params.loss", 2, "loss 2.0"),
    (JOIN, "params.pair_delay", {"i": 1}, "expected 'from>to'"),
    (JOIN, "params.pair_delay", {"i>zz": 1}, NOBODY),
    (JOIN, "params", ..., "malformed script: no params"),
    (JOIN, "expect", ..., "malformed script: no expect"),
    (JOIN, "parms", {"M": 1}, "unknown keys: parms"),
    (JOIN, "events.3.do", "explode", "unknown event 'explode'"),
    (JOIN, "events.3.who", ..., "names nobody"),
    (JOIN, "events.3.at", -1.0, "times [-1.0] s"),
    (JOIN, "events.3.at", 1e300, "times [1e+300] s"),
    (JOIN, "events.3.who", "server", "'server' is the name of the bootstrap server"),
    (JOIN, "events.3.id", 8, "ids [8] are not within 0 … 7"),
    (UPDATES, "events.2", {"at": 7.0, "do": "start", "who": "j"}, "it is there already"),
    (UPDATES, "events.2", {"at": 7.0, "do": "crash", "who": "zz"}, NOBODY),
    (UPDATES, "events.2", {"at": 7.0, "do": "partition", "group": ["j", "zz"]}, NOBODY),
    (JOIN, "expect.views_at.at", -1.0, "times [-1.0] s"),
    (JOIN, "expect.views_at.present", [8], "ids [8] are not within 0 … 7"),
    (JOIN, "expect.views_at.exactly", True, "unknown field `exactly`"),
    (JOIN, "expect.messages.0.t", "JOINT", "there are no messages JOINT"),
    (JOIN, "expect.messages.0.hops", 1, "unknown field `hops`"),
    (JOIN, "expect.messages.0.to", "zz", NOBODY),
    (JOIN, "expect.messages.0.t", ..., "required field `t`"),
    (JOIN, "expect.holder", {"x": "i"}, "holder: ['x'] are no ids"),
    (JOIN, "expect.holder", {"9": "i"}, "ids [9] are not within"),
    (JOIN, "expect.count", {"t": "JOINT"}, "there are no messages JOINT"),
    (UPDATES, "expect.times.tolerance", 1, "unknown field `tolerance`"),
    (UPDATES, "expect.times.frm", "zz", NOBODY),
    ("rows", "expect.row", {}, "unknown field `row`"),
    ("rows", "given.M", 0, "M is 0"),
    ("rows", "given.M", 7, "ids [7] are not within 0 … 6"),
    ("rows", "given.members", [], "0 members"),
    ("rows", "given.members.0", 1, "members named twice: [1]"),
    ("rows", "expect.after_join", 3, "is a member already"),
    ("rows", "expect.after_join", ..., "belong together"),
    ("rows", "expect.rows.x", [], "['x'] are no ids"),
    ("rows", "given", ..., "malformed rows: no given"),
    ("rows", "expect", [], "malformed expect"),
    ("tree", "given.polcy", ["slot"], "unknown field `polcy`"),
    ("tree", "given.policy", "foo", "policy 'foo'"),
    ("tree", "given.policy", [], "policy []"),
    ("tree", "given.source", 16, "ids [16] are not within 0 … 15"),
    ("tree", "expect.depth", 4, "unknown field `depth`"),
    ("tree", "expect.edges.0.high", 4, "not high"),
    ("joinack", "given.joiner", -1, "ids [-1] are not within 0 … 15"),
    ("size", "expect.joinack", {}, "unknown field `joinack`"),
    ("size", "given.LE", -1, "below 0"),
    ("size", "given.LE", 10**12, "above"),
    ("size", "given.endpoints.5", ..., "the endpoints of [5] are not given"),
    ("merge", "expect.states.0", ..., "9 steps, and 8 states are expected"),
    ("merge", "expect.states.0.1", "DEAD", "state 'DEAD'"),
    ("merge", "expect.finally_idx", "LEFT", "unknown key 'finally_idx'"),
    ("merge", "expect.finally", "LEFT", "unknown field `finally`"),
    ("merge", "given.steps.0.7", "DEAD", "state 'DEAD'"),
    ("merge", "given.steps.0.5", -1.0, "out of range"),
    ("merge", "given.t_fail", 0, "t_fail is 0"),
    ("bootstrap", "given.M", 0, "id_space=0"),
    ("bootstrap", "given.lease", 0, "lease_ns=0"),
    ("bootstrap", "given.ops.0.1", "renew", "unknown operation 'renew' of A"),
    ("bootstrap", "given.ops.1.0", 7.0, "not in order"),
    ("bootstrap", "expect.replies.0", ..., "7 ops, and 6 replies are expected"),
    ("bootstrap", "expect.replies.0", "OK", "reply 'OK'"),
    ("bootstrap", "expect.replies.0", "ID 2", "ids [2] are not within 0 … 1"),
]


@pytest.mark.parametrize(
    ("which", "where", "value", "why"), MALFORMED, ids=lambda each: str(each)[:40]
)
def test_what_is_malformed_is_refused_with_a_reason(
    which: str, where: str, value: Any, why: str
) -> None:
    raw = load(which) if which in (JOIN, UPDATES) else of_kind(which)
    with pytest.raises(VectorError) as refused:
        check_discovery(changed(raw, where, value))
    assert why in str(refused.value)


def test_who_has_left_cannot_leave_or_change() -> None:
    """Also while it says goodbye."""
    raw = load("06-fig9-leave")
    for at, event, why in (
        (5.0005, {"do": "leave"}, "End before Start, or twice"),
        (5.0005, {"do": "update", "data": "late"}, "Change before Start or after End"),
        (9.0, {"do": "leave"}, "it is not there"),
        (9.0, {"do": "crash"}, "it is not there"),
        (9.0, {"do": "mute_relay"}, "it is not there"),
    ):
        late = {**raw, "events": [*raw["events"], {"at": at, "who": "i", **event}]}
        with pytest.raises(VectorError) as refused:
            check_discovery(late)
        assert f"{event['do']} of i at {at} s: {why}" in str(refused.value)


def test_a_malformed_file_does_not_stop_the_others(tmp_path: Path) -> None:
    bad = load("06-fig9-leave")
    bad["events"].append({"at": 9.0, "do": "leave", "who": "i"})
    (tmp_path / "a.json").write_text(json.dumps(bad))
    (tmp_path / "b.json").write_text(json.dumps(load("14-bootstrap")))
    (tmp_path / "c.json").mkdir()
    report = check_paths([tmp_path])
    assert [(Path(each.file).name, each.why) for each in report.failed] == [
        ("a.json", "leave of i at 9.0 s: it is not there"),
        ("c.json", "no regular file"),
    ]
    assert report.verdicts[str(tmp_path / "b.json")] == "passed"


def test_a_fault_of_ours_is_a_failed_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(raw: Any) -> list[str | None]:
        raise AssertionError("held twice")

    monkeypatch.setattr("orderwire.sim.vectors.check_discovery", broken)
    report = check_paths([FOLDER / "14-bootstrap.json", FOLDER.parent / "causal"])
    (failure,) = report.failed
    assert failure.why.startswith("the check broke off: AssertionError: held twice (in broken")
    assert report.files == 21


def test_a_scenario_that_expects_nothing_is_told(tmp_path: Path) -> None:
    path = tmp_path / "nothing.json"
    path.write_text(json.dumps(changed(of_kind("tree"), "expect", {})))
    report = check_paths([path])
    assert report.failed == []
    assert [each.why for each in report.not_covered] == ["the scenario says nothing to check"]
    assert report.verdicts == {str(path): "not covered"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_remarks_may_stand_anywhere(path: Path) -> None:
    """Texts for people are no expectations."""

    def remarked(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: remarked(each) for key, each in value.items()} | {"why": "it is so"}
        return [remarked(each) for each in value] if isinstance(value, list) else value

    raw = remarked(json.loads(path.read_text())) | {"figure": "3", "drawn": ["by", "hand"]}
    assert {*check_discovery(raw)} == {None}


def test_a_first_header_older_than_any_record_is_kept_as_expired() -> None:
    """[FDP/1 R11.2, R13] At most 4,096 ids: every id's last record is kept for ever."""
    given = {
        "t_fail": 6.0,
        "steps": [
            [100.0, 5, 7, 1, 1, 24.5, "a", "LIVE"],
            [100.0, 6, 8, 1, 1, 90.0, "b", "LEFT"],
            [100.0, 40_000, 9, 1, 1, 6.0, "c", "LIVE"],
        ],
    }
    expect: dict[str, Any] = {
        "states": [[7, "EXPIRED", 75.5], [8, "LEFT", 10], [9, "LIVE", 94.0]],
        "finally_id5": "EXPIRED",
        "finally_id9": None,
    }
    raw = {"kind": "merge", "given": given, "expect": expect}
    assert check_discovery(raw) == [None] * 5
    expect["states"][0] = [7, "EXPIRED", 76]
    assert check_discovery(raw)[0] is not None


def test_the_release_of_somebody_who_holds_nothing_is_ignored() -> None:
    """A stranger, one that has released its id before, and one whose id is another's by now."""
    steps: list[tuple[float, str, str, str | None]] = [
        (0.0, "release", "Z", None),
        (0.1, "req", "A", "ID 0"),
        (0.2, "release", "Z", None),
        (0.3, "req", "A", "ID 0"),
        (0.4, "release", "A", None),
        (0.5, "release", "A", None),
        (0.6, "req", "B", "ID 0"),
        (0.7, "release", "A", None),
        (0.8, "req", "C", "FULL"),
        (0.9, "release", "C", None),
        (1.0, "req", "B", "ID 0"),
    ]
    raw = {
        "kind": "bootstrap",
        "given": {"M": 1, "ops": [step[:3] for step in steps]},
        "expect": {"replies": [step[3] for step in steps], "incarnations_increase": True},
    }
    assert check_discovery(json.loads(json.dumps(raw))) == [None] * 12


def surplus() -> dict[str, Any]:
    """Return a script of five in an id space of four: [S002 spec 7 no. 2]."""
    return {
        "kind": "script",
        "params": {"M": 4, "delay": 0.001},
        "events": [{"at": n / 2, "do": "start", "who": "abcde"[n]} for n in range(5)],
        "expect": {
            "views_at": {"at": 4.0, "exact": True, "present": [0, 1, 2, 3]},
            "unique_ids": True,
            "count": {"t": "FULL", "min": 1},
        },
    }


def test_all_but_the_surplus_participant_are_exact() -> None:
    assert {*check_discovery(surplus())} == {None}
    two = surplus()
    two["events"].append({"at": 2.5, "do": "start", "who": "f"})
    assert {*check_discovery(two)} == {None}


def test_who_waits_for_an_id_unrefused_is_told_once() -> None:
    raw = surplus()
    raw["params"]["M"] = 8
    raw["events"].insert(4, {"at": 1.8, "do": "server_down"})
    raw["expect"] = {"views_at": {"at": 4.0, "exact": True}}
    assert check_discovery(raw) == ["views at 4.0 s: ['e'] have no id"]


TABLE_4 = [[18, 19], [604, 605]], [[53, 54], [598, 599]], [[83, 84], [587, 588]]
THREE: dict[str, list[Any]] = {
    "objects": [
        {"level1": 50, "level2": 14, "percent": 10},
        {"L1": 53, "L2": 11, "percent": 30},
        {"level_1": 56, "level_2": 8, "percent": 50},
    ],
    "lists": [[50, 14, 10], [53, 11, 30], [56, 8, 50]],
}


@pytest.mark.parametrize(
    "given",
    [
        {"total": 9400, "cases": THREE["objects"]},
        {"total": 9400, "splits": THREE["lists"], "participants": 64},
        {"cases": [each[:2] for each in THREE["lists"]], "percent": [10, 30, 50]},
    ],
)
@pytest.mark.parametrize(
    "expect",
    [
        dict(zip(("50/14", "53/11", "56/8"), TABLE_4, strict=True)),
        {"L1": [one for one, _ in TABLE_4], "level2": [two for _, two in TABLE_4]},
        {"cases": [{"L1": one, "L2": two} for one, two in TABLE_4]},
        {"splits": [[50, 14], [53, 11], [56, 8]], "L1": [18.8, 53.2, 83.9]},
    ],
)
def test_populations_are_told_in_several_shapes(
    given: dict[str, Any], expect: dict[str, Any]
) -> None:
    raw = {"kind": "population", "given": given, "expect": expect}
    outcomes = check_discovery(raw)
    assert {*outcomes} == {None}
    assert len(outcomes) == 6
    key = next(iter(expect))
    spoilt = json.loads(json.dumps(raw).replace("18", "17").replace("[56, 8]", "[56, 9]"))
    if key in spoilt["expect"] and spoilt["given"] == given:
        assert any(why is not None for why in check_discovery(spoilt))


def test_the_shares_of_table_4_need_not_be_given() -> None:
    expect = {
        "splits": [[50, 14], [53, 11], [56, 8], [59, 5], [62, 2]],
        "L1": [18.8, 53.2, 83.9, 111.5, 136.5],
        "L2": [[604, 605], [598, 599], [587, 588], [564, 564], [470, 470]],
    }
    for given in ({}, {"total": 9400}, {"splits": expect["splits"]}):
        raw = {"kind": "population", "given": given, "expect": expect}
        assert check_discovery(raw) == [None] * 15


@pytest.mark.parametrize(
    ("given", "expect", "why"),
    [
        ({"total": 9405}, {}, "10 % of 9405 endpoints is no whole number"),
        ({"participants": 65}, {}, "50 and 14 are not 65 participants"),
        ({"splits": [[50, 14]]}, {}, "1 cases, and 5 shares"),
        ({"splits": [[50]], "percent": 10}, {}, "case [50], expected [L1, L2]"),
        ({"splits": [[64, 0, 10]]}, {}, "out of range"),
        ({"splits": [{"level1": 1, "level3": 1}]}, {}, "unknown field `level3`"),
        ({"endpoints": 9400}, {}, "unknown field `endpoints`"),
        ({}, {"L3": []}, "unknown key 'L3' in expect"),
        ({}, {"L1": [[18, 19]]}, "one entry for each of the 5 cases"),
        ({}, {"50/14": {"L9": [1, 2]}}, "unknown keys in 50/14: L9"),
        ({}, {"50/14": 3}, "expected what each of the two levels has"),
    ],
)
def test_populations_of_no_known_shape_are_refused(
    given: dict[str, Any], expect: dict[str, Any], why: str
) -> None:
    with pytest.raises(VectorError) as refused:
        check_discovery({"kind": "population", "given": given, "expect": expect})
    assert why in str(refused.value)
