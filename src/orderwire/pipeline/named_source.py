"""What a SOURCE on the command line names: files, a lake, or a topic.  No Spark."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

import msgspec

from orderwire.pipeline.lake import Lake
from orderwire.trace.errors import TraceError

EVENTS = "events"
_LOG = "_delta_log"
_TOPIC = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})@(?P<servers>[^@/]+:\d+(,[^@/]+:\d+)*)")


class NamedTopic(msgspec.Struct, frozen=True):
    """TOPIC@HOST:PORT,…"""

    topic: str
    servers: str
    more: Mapping[str, str] = {}
    """Further settings of the client, librdkafka's: how to pass the brokers' TLS and SASL."""

    @property
    def client(self) -> list[tuple[str, str]]:
        """All settings of a client that reads it."""
        return [("bootstrap.servers", self.servers), *self.more.items()]

    def __str__(self) -> str:
        return f"{self.topic}@{self.servers}"


Named: TypeAlias = Path | Lake | NamedTopic


def named_source(source: str | Named, more: Mapping[str, str] | None = None) -> Named:
    """Tell a file or folder, a lake (or its table `events`) and TOPIC@HOST:PORT apart.

    `more` are settings of a topic's client.  What was told apart is returned as it is.  Raises
    TraceError when it is none of these, another table of a lake, or a lake without events.
    """
    if not isinstance(source, str):
        return source
    text = source
    path = Path(text)
    if path.exists():
        return _lake_at(path) or path
    found = _TOPIC.fullmatch(text)
    if found is None:
        raise TraceError(f"{text!r} is neither a file or folder that exists nor TOPIC@HOST:PORT")
    return NamedTopic(found["topic"], found["servers"], dict(more or {}))


def _lake_at(path: Path) -> Lake | None:
    if (path / _LOG).is_dir():
        if path.absolute().name != EVENTS:
            raise TraceError(f"{path} is a table of a lake, but not {EVENTS!r}: it holds no trace")
        lake = Lake(path.absolute().parent)
    elif (path / EVENTS / _LOG).is_dir():
        lake = Lake(path)
    else:
        return None
    if not lake.files(EVENTS):
        raise TraceError(f"the lake {lake.root} holds no events yet")
    return lake
