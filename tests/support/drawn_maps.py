"""Hypothesis strategies of MAPs, as participants might tell them."""

from hypothesis import strategies as st

from orderwire.discovery.maps import (
    EndpointData,
    EndpointKind,
    ForeignData,
    Map,
    ParticipantData,
)

NAMES = st.text(st.characters(codec="utf-8", exclude_characters="/*"), min_size=1, max_size=8)
TOPICS = st.one_of(
    st.sampled_from(["chat/room", "chat/hall", "robot/1/pose", "robot/2/pose"]),
    st.lists(NAMES, min_size=1, max_size=4).map("/".join),
)
PAIRS = st.lists(st.tuples(NAMES, NAMES), max_size=3).map(tuple)
KEYS = st.one_of(st.integers(0, 40), st.integers(0, (1 << 32) - 1))

PARTICIPANTS = st.builds(ParticipantData, NAMES, NAMES, PAIRS, PAIRS)
ENDPOINTS = st.builds(EndpointData, KEYS, st.sampled_from(EndpointKind), TOPICS, NAMES, PAIRS)
FOREIGN = st.builds(
    ForeignData,
    st.sampled_from(["east", "west"]),
    st.integers(0, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.binary(max_size=20),
)
MAPS = st.builds(
    Map.of,
    PARTICIPANTS,
    st.lists(ENDPOINTS, max_size=12, unique_by=lambda each: each.key),
    st.lists(FOREIGN, max_size=3, unique_by=lambda each: each.origin),
    st.integers(0, 3),
)
