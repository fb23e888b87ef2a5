"""Who takes part in the paper's experiments, and with how many endpoints.

Sources: [S002:tab.3] and [S002:tab.4].  Level-1 participants have few endpoints, Level-2 ones
many.  Table 4 prints a total of 6,400 endpoints, with which none of its counts per participant
comes out; with 9,400 all of them do, so that is what we use.
"""

from bisect import bisect
from itertools import accumulate

import msgspec

from orderwire.kernel import stream

PARTICIPANT_BYTES = 200
"""L_P, the data of a participant without its endpoints."""
ENDPOINT_BYTES = 80
"""L_E, the data of one endpoint inside a merged message."""

TABLE_3_PARTICIPANTS = {"1-1": 8, "1-2": 16, "1-3": 32, "1-4": 64}
"""Case → participants, seven of eight on Level 1.  [S002:tab.3]"""
TABLE_3_ENDPOINTS = (79, 630)
"""Endpoints of a participant on Level 1 and on Level 2."""

TABLE_4_PARTICIPANTS = 64
TABLE_4_ENDPOINTS = 9_400
"""Of all participants together.  [S002:tab.4]"""
TABLE_4_ENDPOINTS_PRINTED = 6_400
"""What the table prints for it."""
TABLE_4_SPLITS = {
    "2-1": (50, 14, 10),
    "2-2": (53, 11, 30),
    "2-3": (56, 8, 50),
    "2-4": (59, 5, 70),
    "2-5": (62, 2, 90),
}
"""Case → participants on Level 1 and on Level 2, and the share of all endpoints that Level 1 has,
in percent."""


class LevelSplit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the participants of one level have, when its endpoints are dealt out evenly."""

    participants: int
    endpoints: int
    """Of all of them together."""
    floor: int
    ceiling: int
    with_ceiling: int
    """How many of them have `ceiling` endpoints; the others have `floor`."""

    @property
    def mean(self) -> float:
        """Endpoints of a participant, as the table prints them."""
        return self.endpoints / self.participants


class Population(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The participants of one run."""

    name: str
    levels: tuple[int, ...]
    """Level of each participant, 1 or 2."""
    endpoints: tuple[int, ...]
    """How many endpoints each participant has."""

    @property
    def participants(self) -> int:
        """How many there are."""
        return len(self.endpoints)

    @property
    def endpoints_total(self) -> int:
        """Endpoints of all participants."""
        return sum(self.endpoints)

    def map_bytes(self, participant: int, endpoint_bytes: int = ENDPOINT_BYTES) -> int:
        """Size of what one participant tells about itself in one piece: L_P + L_E · N_E."""
        return PARTICIPANT_BYTES + endpoint_bytes * self.endpoints[participant]


def split_evenly(participants: int, endpoints: int) -> LevelSplit:
    """Deal endpoints out to participants so that no two counts differ by more than one."""
    assert participants > 0, f"{participants} participants"
    floor, rest = divmod(endpoints, participants)
    return LevelSplit(
        participants=participants,
        endpoints=endpoints,
        floor=floor,
        ceiling=floor + (rest > 0),
        with_ceiling=rest,
    )


def split_levels(
    total: int, level_1: int, level_2: int, level_1_percent: int
) -> tuple[LevelSplit, LevelSplit]:
    """Split a total between two levels by the share of the first; refuses a broken share."""
    first, rest = divmod(total * level_1_percent, 100)
    assert rest == 0, f"{level_1_percent} % of {total} endpoints is no whole number"
    return split_evenly(level_1, first), split_evenly(level_2, total - first)


def case(name: str) -> Population:
    """Return a case of Table 3 (`1-1` … `1-4`) or of Table 4 (`2-1` … `2-5`)."""
    if name in TABLE_3_PARTICIPANTS:
        return mixed(TABLE_3_PARTICIPANTS[name], name=name)
    level_1, level_2, percent = TABLE_4_SPLITS[name]
    splits = split_levels(TABLE_4_ENDPOINTS, level_1, level_2, percent)
    counts = [
        [split.ceiling] * split.with_ceiling
        + [split.floor] * (split.participants - split.with_ceiling)
        for split in splits
    ]
    levels = _interleaved(level_1, level_2)
    return Population(
        name=name,
        levels=levels,
        endpoints=tuple(counts[level - 1].pop(0) for level in levels),
    )


def mixed(participants: int, *, name: str | None = None) -> Population:
    """Return Table 3's mix of seven on Level 1 to one on Level 2, for any number."""
    level_2 = participants // 8
    levels = _interleaved(participants - level_2, level_2)
    return Population(
        name=name or f"mix-{participants}",
        levels=levels,
        endpoints=tuple(TABLE_3_ENDPOINTS[level - 1] for level in levels),
    )


def uniform(participants: int, endpoints: int) -> Population:
    """Return participants that all have the same number of endpoints."""
    return Population(
        name=f"uniform-{participants}x{endpoints}",
        levels=(1,) * participants,
        endpoints=(endpoints,) * participants,
    )


def _interleaved(level_1: int, level_2: int) -> tuple[int, ...]:
    """Spread the participants of Level 2 evenly among the others."""
    n = level_1 + level_2
    return tuple(2 if (i + 1) * level_2 // n > i * level_2 // n else 1 for i in range(n))


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which topics endpoints read or write."""

    topics: int = 2_000
    zipf_exponent: float = 0.0
    """0 draws all topics alike; 0.8 draws a few of them much more often."""


def draw_topics(
    population: Population, settings: TopicSettings, seed: int
) -> list[list[tuple[int, bool]]]:
    """Draw (topic, whether it writes) for every endpoint of every participant."""
    chance = stream(seed, "topics")
    weights = accumulate(
        float((rank + 1) ** -settings.zipf_exponent) for rank in range(settings.topics)
    )
    bounds = list(weights)
    return [
        [
            (bisect(bounds, chance.random() * bounds[-1]), chance.random() < 0.5)
            for _ in range(count)
        ]
        for count in population.endpoints
    ]


def matching(
    endpoints: list[list[tuple[int, bool]]],
) -> dict[tuple[int, int], int]:
    """Count, per (receiver, source), the endpoints of the source that one of the receiver matches.

    A reader and a writer of one topic match.
    """
    wanted = [{(topic, not writes) for topic, writes in mine} for mine in endpoints]
    return {
        (to, source): sum(endpoint in wanted[to] for endpoint in theirs)
        for source, theirs in enumerate(endpoints)
        for to in range(len(endpoints))
        if to != source
    }


def match_ratio(endpoints: list[list[tuple[int, bool]]]) -> float:
    """Share of all (receiver, endpoint of another) that match."""
    pairs = matching(endpoints)
    everything = (len(endpoints) - 1) * sum(len(mine) for mine in endpoints)
    return sum(pairs.values()) / everything
