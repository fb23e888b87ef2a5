"""The paper's populations: splits, sums, and the total that is misprinted."""

import pytest

from orderwire.sim.population import (
    TABLE_3_PARTICIPANTS,
    TABLE_4_ENDPOINTS,
    TABLE_4_ENDPOINTS_PRINTED,
    TABLE_4_SPLITS,
    TopicSettings,
    case,
    draw_topics,
    match_ratio,
    matching,
    mixed,
    split_evenly,
    split_levels,
    uniform,
)


def test_endpoints_are_dealt_out_evenly() -> None:
    split = split_evenly(11, 6_580)
    assert (split.floor, split.ceiling, split.with_ceiling) == (598, 599, 2)
    assert 9 * 598 + 2 * 599 == 6_580
    even = split_evenly(5, 10)
    assert (even.floor, even.ceiling, even.with_ceiling) == (2, 2, 0)


def test_a_share_that_is_no_whole_number_is_refused() -> None:
    with pytest.raises(AssertionError, match="10 % of 9405 endpoints is no whole number"):
        split_levels(9_405, 50, 14, 10)


@pytest.mark.parametrize("name", [*TABLE_3_PARTICIPANTS, *TABLE_4_SPLITS])
def test_every_case_has_its_participants_on_both_levels(name: str) -> None:
    population = case(name)
    assert len(population.levels) == population.participants
    assert set(population.levels) == {1, 2}
    by_level = [
        sum(e for e, at in zip(population.endpoints, population.levels, strict=True) if at == level)
        for level in (1, 2)
    ]
    if name in TABLE_4_SPLITS:
        level_1, level_2, percent = TABLE_4_SPLITS[name]
        assert population.levels.count(1) == level_1
        assert population.levels.count(2) == level_2
        assert by_level == [94 * percent, TABLE_4_ENDPOINTS - 94 * percent]
    else:
        assert by_level == [79 * population.levels.count(1), 630 * population.levels.count(2)]
        assert population.levels.count(1) == 7 * population.levels.count(2)


def test_the_printed_total_gives_none_of_the_splits() -> None:
    """[S002:tab.4] With 9,400 the counts are those that are printed; with 6,400 no share is."""
    means = {
        name: tuple(round(s.mean, 1) for s in split_levels(TABLE_4_ENDPOINTS, *split))
        for name, split in TABLE_4_SPLITS.items()
    }
    assert means == {
        "2-1": (18.8, 604.3),
        "2-2": (53.2, 598.2),
        "2-3": (83.9, 587.5),
        "2-4": (111.5, 564.0),
        "2-5": (136.5, 470.0),
    }
    for name, split in TABLE_4_SPLITS.items():
        printed = [s.mean for s in split_levels(TABLE_4_ENDPOINTS_PRINTED, *split)]
        assert all(abs(p - m) > 5 for p, m in zip(printed, means[name], strict=True)), name


def test_a_map_is_the_participant_and_its_endpoints() -> None:
    population = case("1-1")
    assert population.endpoints_total == 1_183
    assert sorted({population.map_bytes(i) for i in range(8)}) == [200 + 80 * 79, 200 + 80 * 630]
    assert population.map_bytes(0, endpoint_bytes=9) == 200 + 9 * 79


def test_other_populations() -> None:
    assert mixed(2_000).participants == 2_000
    assert mixed(2_000).levels.count(2) == 250
    assert uniform(16, 18).endpoints == (18,) * 16


def test_a_reader_matches_writers_of_its_topic_only() -> None:
    drawn = [[(1, True), (2, False)], [(1, False), (2, False), (1, True)], [(3, True)]]
    assert matching(drawn) == {
        (0, 1): 1,
        (0, 2): 0,
        (1, 0): 1,
        (1, 2): 0,
        (2, 0): 0,
        (2, 1): 0,
    }
    assert match_ratio(drawn) == 2 / 12


@pytest.mark.parametrize(
    ("topics", "exponent", "ratio"),
    [(2_000, 0.0, 0.034), (2_000, 0.8, 0.187), (200, 0.0, 0.25), (10_000, 0.8, 0.103)],
)
def test_drawn_topics_match_as_often_as_the_specification_says(
    topics: int, exponent: float, ratio: float
) -> None:
    settings = TopicSettings(topics=topics, zipf_exponent=exponent)
    population = case("1-4")
    drawn = draw_topics(population, settings, 1)
    assert draw_topics(population, settings, 1) == drawn
    assert match_ratio(drawn) == pytest.approx(ratio, rel=0.05)
