"""Where a broker's own history goes; light, as brokers without one read this too."""

from collections.abc import Mapping

import msgspec

HISTORY_TOPIC = "__orderwire_history"
"""What it is called by default."""


class HistoryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Where a broker's history goes."""

    topic: str = HISTORY_TOPIC
    client: Mapping[str, str] = {}
    """Settings of the client that publishes: what the broker's own listener asks for."""
