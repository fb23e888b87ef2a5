"""Offsets as values: resolve, merge, admit, split, losses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.pipeline import offsets as plan
from orderwire.pipeline.errors import OptionError
from orderwire.pipeline.offsets import Loss, OffsetRange, TopicPartition, Watermarks

A0, A1, B0 = TopicPartition("a", 0), TopicPartition("a", 1), TopicPartition("b", 0)
BOUNDS = {A0: Watermarks(3, 10), A1: Watermarks(0, 7)}

partitions = st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 5))
offset_maps = st.dictionaries(partitions, st.integers(0, 1_000_000), max_size=8)


@given(offset_maps)
def test_checkpoint_form_round_trips(offsets: dict[TopicPartition, int]) -> None:
    assert plan.decode(plan.encode(offsets)) == offsets


def test_checkpoint_form_is_the_documented_one() -> None:
    assert plan.encode({A1: 9, A0: 12}) == {"a": {"0": 12, "1": 9}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("earliest", {A0: 3, A1: 0}),
        ("latest", {A0: 10, A1: 7}),
        ('{"a": {"0": 5, "1": 6}}', {A0: 5, A1: 6}),
        ('{"a": {"0": -2, "1": -1}}', {A0: 3, A1: 7}),
    ],
)
def test_wanted_offsets_resolve(text: str, expected: dict[TopicPartition, int]) -> None:
    wanted = plan.parse_wanted("startingOffsets", text)
    assert plan.resolve("startingOffsets", wanted, BOUNDS) == expected


@pytest.mark.parametrize("text", ["soon", "{", '{"a": 3}', '{"a": {"x": 3}}', '{"a": {"0": -3}}'])
def test_unusable_offsets_name_the_option(text: str) -> None:
    with pytest.raises(OptionError, match="startingOffsets"):
        plan.parse_wanted("startingOffsets", text)


def test_offsets_must_name_exactly_the_partitions() -> None:
    with pytest.raises(OptionError, match="missing: a/1; unknown: b/0"):
        plan.resolve("endingOffsets", {A0: 4, B0: 0}, BOUNDS)


def test_merge_keeps_a_partition_that_one_answer_forgot() -> None:
    """[SPARK-41375] An empty or partial answer must not send anybody back to the start."""
    assert plan.merge({A0: 5, A1: 6}, {}) == {A0: 5, A1: 6}
    assert plan.merge({A0: 5, A1: 6}, {A1: 9}) == {A0: 5, A1: 9}


@given(offset_maps, offset_maps)
def test_merge_never_drops_and_never_goes_back(
    start: dict[TopicPartition, int], latest: dict[TopicPartition, int]
) -> None:
    end = plan.merge(start, latest)
    assert set(end) == set(start) | set(latest)
    assert all(end[p] >= offset for p, offset in start.items())


@given(offset_maps, offset_maps, st.integers(1, 2_000_000))
def test_admission_shares_the_limit(
    start: dict[TopicPartition, int], latest: dict[TopicPartition, int], rows_max: int
) -> None:
    end = plan.merge(start, latest)
    admitted = plan.admit(start, end, rows_max)
    lagging = [p for p in end if end[p] > start.get(p, 0)]
    rows = sum(admitted[p] - start.get(p, 0) for p in lagging)
    backlog = sum(end[p] - start.get(p, 0) for p in lagging)
    assert set(admitted) == set(end)
    assert all(start.get(p, 0) < admitted[p] <= end[p] for p in lagging)
    assert all(admitted[p] == end[p] for p in end if p not in lagging)
    assert rows == min(backlog, max(rows_max, len(lagging)))


def test_admission_is_in_proportion_to_backlog() -> None:
    assert plan.admit({A0: 0, A1: 100}, {A0: 901, A1: 201}, 102) == {A0: 91, A1: 111}


@given(
    st.lists(st.tuples(partitions, st.integers(0, 50), st.integers(1, 500)), max_size=6),
    st.integers(1, 40),
)
def test_split_covers_exactly_and_never_empty(
    drawn: list[tuple[TopicPartition, int, int]], wanted: int
) -> None:
    whole = [OffsetRange(*p, start, start + size) for p, start, size in drawn]
    pieces = plan.split(whole, wanted)
    assert all(piece.end > piece.start for piece in pieces)
    assert [(r.topic, r.partition, o) for r in pieces for o in range(r.start, r.end)] == [
        (r.topic, r.partition, o) for r in whole for o in range(r.start, r.end)
    ]


def test_split_makes_as_many_pieces_as_asked_for() -> None:
    assert len(plan.split([OffsetRange("a", 0, 0, 90), OffsetRange("a", 1, 0, 10)], 10)) == 10
    assert plan.split([OffsetRange("a", 0, 0, 90)], None) == [OffsetRange("a", 0, 0, 90)]


def test_loss_at_either_end_is_found_and_clipped() -> None:
    wanted = [OffsetRange("a", 0, 0, 12), OffsetRange("a", 1, 1, 7), OffsetRange("b", 0, 0, 9)]
    assert plan.losses(wanted, BOUNDS) == [Loss("a", 0, 0, 3), Loss("a", 0, 10, 12)]
    assert plan.clip(wanted, BOUNDS) == [OffsetRange("a", 0, 3, 10), *wanted[1:]]
    assert plan.clip([OffsetRange("a", 0, 0, 2)], BOUNDS) == []


def test_a_watermark_below_the_start_is_noticed() -> None:
    assert plan.went_back({A0: 11, A1: 7, B0: 5}, BOUNDS) == {A0: 10}
