"""Worked scenarios of causal order, replayed through the catalog.

Source: 20 scenarios computed by hand and by a separate prototype; format in causal/README.md.
"""

import json
from pathlib import Path
from typing import Any

import pytest
from broken_bounded_twins import BOUNDED_TWINS
from broken_twins import TWINS
from click.testing import CliRunner
from judging import broken

from orderwire.cli.vectors import command
from orderwire.ordering.catalog import ALGORITHMS, Algorithm
from orderwire.sim.causal_vectors import read_scenario, schedule_of
from orderwire.sim.schedule import replay
from orderwire.sim.vectors import check_paths
from orderwire.verify.causal import violating_pairs
from orderwire.verify.history import rebuild

FOLDER = Path(__file__).parent / "causal"
FILES = sorted(FOLDER.glob("*.json"))
VARIANTS: dict[str, Algorithm] = {twin.name: twin.algorithm for twin in (*TWINS, *BOUNDED_TWINS)}
EXACT = {entry.name for entry in ALGORITHMS.values() if entry.expectation == "exact"}


def load(path: Path) -> dict[str, Any]:
    raw = json.loads(path.read_text())
    assert isinstance(raw, dict)
    return raw


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_exact_algorithms_do_what_the_scenario_expects(path: Path) -> None:
    report = check_paths([path])
    assert report.failed == []
    assert report.checks == report.passed > 20
    if "jang_tags" in load(path):
        assert report.checks > 2 * len(load(path)["jang_tags"])


def violations_of(path: Path) -> list[tuple[str, dict[str, list[list[str]]]]]:
    return [
        (variant, shown)
        for variant, shown in load(path).get("violated_by", {}).items()
        if variant.partition(":")[0] in VARIANTS
    ]


@pytest.mark.parametrize(
    ("path", "variant", "shown"),
    [(path, *found) for path in FILES for found in violations_of(path)],
    ids=lambda value: value.stem if isinstance(value, Path) else str(value)[:30],
)
def test_broken_variants_break_what_the_scenario_says(
    path: Path, variant: str, shown: dict[str, list[list[str]]]
) -> None:
    scenario = read_scenario(load(path))
    names = scenario.processes
    schedule = schedule_of(scenario)
    name, _, bound = variant.partition(":")
    options: dict[str, Any] = {"max_cb": int(bound)} if bound else {}
    replayed = replay(schedule, VARIANTS[name], **options)
    history = rebuild(replayed.events)
    for key, weak in (("safety", False), ("safety_weak", True)):
        found = {
            (
                names[v.process],
                replayed.ids[v.source, v.number],
                replayed.ids[v.other_source, v.other_number],
            )
            for v in violating_pairs(history, within_lifetime=weak)
        }
        assert found == {tuple(triple) for triple in shown.get(key, [])}
    late = [
        [names[process], name]
        for process, delivered in replayed.delivered.items()
        for name, tick in delivered
        if scenario.delta is not None and tick > replayed.messages[name].stamp + scenario.delta
    ]
    assert late == shown.get("live_late", [])
    assert broken(schedule, replayed)


def test_every_variant_named_by_a_vector_is_run() -> None:
    named = {name for path in FILES for name in load(path).get("violated_by", {})}
    assert len(named) >= 8
    assert {name.partition(":")[0] for name in named} <= set(VARIANTS)


def corrupt_copy(tmp_path: Path, name: str, change: dict[str, Any]) -> Path:
    path = tmp_path / "corrupt.json"
    path.write_text(json.dumps(load(FOLDER / name) | change))
    return path


def corrupt(tmp_path: Path, change: dict[str, Any]) -> Path:
    return corrupt_copy(tmp_path, "000-fig1-no-buffering.json", change)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"stamps": {"m1": 1}}, "m1 is stamped 0, expected 1"),
        ({"causal_past": {"m3": ["m1"]}}, "m3 has the past ['m1', 'm2'], expected ['m1']"),
        ({"expect": {"exact": {}}}, "P2 delivers [('m2', 120), ('m5', 330)], expected []"),
        (
            {"jang_tags": {"m6": {"DC": {"P3": []}, "CI": []}}},
            "m6 to P3 has DC [('P1', 'm4')], expected []",
        ),
        (
            {"jang_tags": {"m2": {"DC": {"P2": []}, "CI": []}}},
            "m2 to P2 has CI [('P1', 'm1', ['P3'])], expected []",
        ),
        ({"jang_tags": {"mx": {"DC": {}, "CI": []}}}, "jang_tags name 'mx', which is not sent"),
        ({"delta": 171}, "P3 discards [], expected [('m1', 170)]"),
    ],
)
def test_a_wrong_expectation_fails(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    report = check_paths([corrupt(tmp_path, change)])
    assert why in [failure.why for failure in report.failed]
    failing = {failure.algorithm for failure in report.failed}
    assert failing == ({"jang-delta", "jang-delta-reference"} if "jang_tags" in change else EXACT)
    assert report.passed + len(report.failed) == report.checks


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "not JSON"),
        ("[]", "expected a JSON object, got list"),
        ("{}", "no documented format: keys none"),
        ('{"kind": "riddle"}', "no documented format: kind 'riddle'"),
        ('{"sends": []}', "malformed scenario: Object missing required field"),
        ('{"name": "x", "processes": [], "delta": 3, "sends": []}', "processes [] are none"),
        (
            '{"name": "x", "processes": ["A", "B"], "delta": 3, "sends":'
            ' [{"id": "m", "t": 0, "from": "A", "to": ["B"], "arrive": {}}]}',
            "message 'm' goes to ['B'], arrivals are given for []",
        ),
        (
            '{"name": "x", "processes": ["A", "B"], "delta": 3, "sends":'
            ' [{"id": "m", "t": 1, "from": "A", "to": ["B"], "arrive": {"B": 0}}]}',
            "arrives at B before it is sent",
        ),
        (
            '{"name": "x", "processes": ["A", "B"], "delta": 3, "sends":'
            ' [{"id": "m", "t": 1, "from": "C", "to": ["B"], "arrive": {"B": 2}}]}',
            "message 'm' names ['C']",
        ),
    ],
)
def test_what_is_no_scenario_fails_with_a_reason(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    report = check_paths([path])
    assert (report.files, report.checks, report.passed) == (1, 1, 0)
    (failure,) = report.failed
    assert why in failure.why


def test_what_the_catalog_cannot_check_is_listed(tmp_path: Path) -> None:
    script = '{"kind": "script", "n": 2, "steps": [], "expect": {}}'
    (tmp_path / "script.json").write_text(script)
    nothing: dict[str, Any] = {"stamps": {}, "causal_past": {}, "jang_tags": {}}
    path = corrupt(tmp_path, {"expect": {"oracle:3": {}}, "colour": "red", **nothing})
    report = check_paths([tmp_path])
    assert report.failed == []
    assert report.files == 2
    assert set(report.verdicts.values()) == {"not covered"}
    assert {(Path(part.file).name, part.expectation) for part in report.not_covered} == {
        ("script.json", "expect"),
        (path.name, "oracle:3"),
        (path.name, "colour"),
    }


REMARK = {"note": "drawn anew"}
HUGE = 1 << 61


@pytest.mark.parametrize(
    ("name", "where", "value", "why"),
    [
        ("fig1", ("sends", 0, "lifetime"), 3, "unknown field `lifetime`"),
        ("fig1", ("jang_tags", "m2", "DCs"), {}, "unknown field `DCs`"),
        ("fig1", ("expect", "exact", "P2", "delivers"), [], "unknown field `delivers`"),
        ("fig1", ("violated_by",), {"triangle-h0": {"safe": []}}, "unknown field `safe`"),
        ("fig1", ("expect", "exact:3"), {}, "exact takes no bound"),
        ("fig1", ("expect", "maxcb-paper"), {}, "the bound is no positive number"),
        ("fig1", ("expect", "maxcb-paper:0"), {}, "the bound is no positive number"),
        ("fig1", ("expect", "maxcb-paper:٣"), {}, "the bound is no positive number"),
        ("fig1", ("delta",), HUGE, "delta: [2305843009213693952] ticks, at most"),
        ("fig1", ("epsilon",), HUGE, "epsilon, timer_granularity: [2305843009213693952]"),
        ("fig1", ("clock_offset", "P1"), -HUGE, "clock_offset: [-2305843009213693952]"),
        ("fig1", ("sends", 0, "t"), -HUGE, "message 'm1': [-2305843009213693952]"),
        ("fig1", ("sends", 0, "arrive", "P3"), HUGE, "message 'm1': [2305843009213693952]"),
    ],
)
def test_what_nothing_would_heed_fails_with_a_reason(
    tmp_path: Path, name: str, where: tuple[str | int, ...], value: Any, why: str
) -> None:
    raw = next(load(path) for path in FILES if name in path.stem)
    at: Any = raw
    for key in where[:-1]:
        at = at[key]
    at[where[-1]] = value
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(raw))
    (failure,) = check_paths([path]).failed
    assert why in failure.why


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_remarks_change_nothing(tmp_path: Path, path: Path) -> None:
    raw = load(path)
    remarked = raw | {
        "sends": [send | REMARK for send in raw["sends"]],
        "jang_tags": {key: tags | REMARK for key, tags in raw.get("jang_tags", {}).items()},
    }
    copy = tmp_path / "remarked.json"
    copy.write_text(json.dumps(remarked))
    reports = check_paths([path]), check_paths([copy])
    assert reports[1].failed == []
    assert reports[0].passed == reports[1].passed


def test_a_script_of_no_family_is_refused(tmp_path: Path) -> None:
    """One of selective total order has steps, one of discovery params or events."""
    path = tmp_path / "script.json"
    path.write_text('{"kind": "script", "expect": {}}')
    (failure,) = check_paths([path]).failed
    assert failure.why == "no documented format: kind 'script'"
    path.write_text('{"kind": "script", "steps": [], "expect": {}}')
    (failure,) = check_paths([path]).failed
    assert failure.why == "malformed script: Object missing required field `n`"
    path.write_text('{"kind": "script", "events": [], "expect": {}}')
    (failure,) = check_paths([path]).failed
    assert failure.why == "malformed script: no params"


def test_clocks_before_their_origin_are_only_an_offset(tmp_path: Path) -> None:
    """A clock that reads less than 0 changes nothing but the numbers."""
    raw = load(FOLDER / "cx-deadline-tick.json")
    raw["clock_offset"] = dict.fromkeys(raw["clock_offset"], -1_000)
    raw["stamps"] = {name: stamp - 1_000 for name, stamp in raw["stamps"].items()}
    for expected in raw["expect"]["exact"].values():
        expected["deliver"] = [[name, tick - 1_000] for name, tick in expected["deliver"]]
    path = tmp_path / "negative.json"
    path.write_text(json.dumps(raw))
    assert check_paths([path]).failed == []


@pytest.mark.parametrize("path", [path for path in FILES if "jang_tags" in load(path)])
def test_tags_are_compared_before_the_origin_too(tmp_path: Path, path: Path) -> None:
    raw = load(path)
    raw["clock_offset"] = {
        name: raw.get("clock_offset", {}).get(name, 0) - 1_000 for name in raw["processes"]
    }
    shifted = {"processes", "delta", "epsilon", "clock_offset", "sends", "jang_tags", "name"}
    moved = tmp_path / "moved.json"
    moved.write_text(json.dumps({key: raw[key] for key in shifted if key in raw}))
    report = check_paths([moved])
    assert report.failed == []
    assert report.passed > len(raw["jang_tags"])


def without_expectation(tmp_path: Path, name: str, **change: Any) -> Path:
    raw = load(FOLDER / "self-delivery.json") | change
    path = tmp_path / name
    path.write_text(json.dumps({key: value for key, value in raw.items() if key != "expect"}))
    return path


def test_without_an_expectation_stamps_pasts_and_tags_are_still_checked(tmp_path: Path) -> None:
    good = check_paths([without_expectation(tmp_path, "good.json")])
    assert good.failed == []
    assert good.passed > 10
    bad = without_expectation(
        tmp_path, "bad.json", stamps={"m1": 7}, causal_past={"m2": []}, jang_tags={"m2": {"CI": []}}
    )
    assert {failure.why for failure in check_paths([bad]).failed} == {
        "m1 is stamped 0, expected 7",
        "m2 has the past ['m1'], expected []",
        "m2 to P1 has CI [('P1', 'm1', [])], expected []",
        "m2 to P3 has CI [('P1', 'm1', [])], expected []",
    }


def test_half_of_the_tags_may_be_left_out(tmp_path: Path) -> None:
    """A destination that DC leaves out waits for nothing."""
    entries: dict[str, Any] = {"CI": [["P1", "m1", []]]}
    for tags in (entries, {"DC": {"P3": [["P1", "m1"]]}}, entries | {"DC": {"P3": [["P1", "m1"]]}}):
        path = corrupt_copy(tmp_path, "self-delivery.json", {"jang_tags": {"m2": tags}})
        assert check_paths([path]).failed == []
    path = corrupt_copy(tmp_path, "self-delivery.json", {"jang_tags": {"m2": {"DC": {"P1": []}}}})
    assert {failure.why for failure in check_paths([path]).failed} == {
        "m2 to P3 has DC [('P1', 'm1')], expected []"
    }


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"name": "\xff"}', "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (
            json.dumps(
                {"processes": [f"P{n}" for n in range(5_000)], "delta": 3, "sends": []}
            ).encode(),
            "5000 processes, at most 4096",
        ),
    ],
)
def test_one_broken_file_does_not_stop_the_others(tmp_path: Path, content: bytes, why: str) -> None:
    (tmp_path / "broken.json").write_bytes(content)
    corrupt(tmp_path, {})
    result = CliRunner().invoke(command, [str(tmp_path), "--json"])
    assert result.exit_code == 1
    printed = json.loads(result.stdout)
    assert printed["files"] == 2
    (failure,) = printed["failed"]
    assert why in failure["why"]


def test_a_coarse_timer_fires_at_the_next_local_multiple(tmp_path: Path) -> None:
    scenario = {
        "name": "coarse",
        "processes": ["A", "B"],
        "delta": 10,
        "clock_offset": {"B": 3},
        "epsilon": 3,
        "timer_granularity": 5,
        "sends": [
            {"id": "lost", "t": 0, "from": "A", "to": ["B"], "arrive": {"B": None}},
            {"id": "kept", "t": 6, "from": "A", "to": ["B"], "arrive": {"B": 7}},
        ],
        # Due at local tick 11, fires at 15.
        "expect": {"exact": {"B": {"deliver": [["kept", 15]], "discard": []}}},
    }
    path = tmp_path / "coarse.json"
    path.write_text(json.dumps(scenario))
    assert check_paths([path]).failed == []


def test_command_prints_one_object_and_exits_by_verdict(tmp_path: Path) -> None:
    good = CliRunner().invoke(command, [str(FOLDER), "--json"])
    assert good.exit_code == 0
    printed = json.loads(good.stdout)
    assert printed["files"] == len(FILES) == 20
    assert printed["checks"] == printed["passed"] > 1_000
    assert printed["failed"] == []
    assert set(printed["verdicts"].values()) == {"passed"}
    bad = CliRunner().invoke(command, [str(corrupt(tmp_path, {"stamps": {"m1": 9}})), "--json"])
    assert bad.exit_code == 1
    assert json.loads(bad.stdout)["failed"][0]["algorithm"] == "jang-delta"
    assert list(json.loads(bad.stdout)["verdicts"].values()) == ["failed"]
    words = CliRunner().invoke(command, [str(corrupt(tmp_path, {"stamps": {"m1": 9}}))])
    assert words.exit_code == 1
    assert "m1 is stamped 0, expected 9" in words.output
    assert CliRunner().invoke(command, ["no/such/file"]).exit_code == 2
    empty = tmp_path / "empty"
    empty.mkdir()
    assert CliRunner().invoke(command, [str(empty)]).exit_code == 1


def test_negative_control_unordered_fails_the_exact_expectation() -> None:
    """The comparison itself is not blind: the control group fails scenarios."""
    entry = ALGORITHMS["unordered"]
    blind = Algorithm(
        name="unordered",
        summary=entry.summary,
        create=entry.create,
        codec=entry.codec,
        expectation="exact",
    )
    report = check_paths([FOLDER], {"unordered": blind})
    assert len({failure.file for failure in report.failed}) >= 8
