"""What a SOURCE on the command line names: files, a lake, or a topic.  No Spark."""

import re
from pathlib import Path

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


def named_source(text: str) -> Path | Lake | NamedTopic:
    """Tell a file or folder, a lake (or its table `events`) and TOPIC@HOST:PORT apart.

    Raises TraceError when it is none of these, another table of a lake, or a lake without events.
    """
    path = Path(text)
    if path.exists():
        return _lake_at(path) or path
    found = _TOPIC.fullmatch(text)
    if found is None:
        raise TraceError(f"{text!r} is neither a file or folder that exists nor TOPIC@HOST:PORT")
    return NamedTopic(found["topic"], found["servers"])


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
