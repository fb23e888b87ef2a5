"""How to do it again: the line that replays a run, and the replay of recorded inputs."""

import platform
import shlex
from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import assert_never

import msgspec

from orderwire.kernel import (
    UNREADABLE,
    Effects,
    Indicate,
    Instant,
    LocalProtocolError,
    ProcessId,
    Received,
    RemoteProtocolError,
    Submitted,
    Woken,
    parsed,
    read_inputs,
)
from orderwire.ordering.catalog import algorithm as catalog_entry
from orderwire.ordering.pdu import OrderingCommand, OrderingIndication
from orderwire.ordering.settings import OrderingSettings

FAMILY = "ordering"
"""The family's name in the header of recorded inputs."""


def replay_line(scenario: str, seed: int, *, algorithm: str | None = None) -> str:
    """Return the one line that repeats a run."""
    chosen = f" --algorithm {algorithm}" if algorithm else ""
    python = ".".join(platform.python_version_tuple()[:2])
    return (
        f"replay: orderwire sim replay {shlex.quote(scenario)} --seed {seed}{chosen}"
        f"   ({_revision()}, Python {python})"
    )


@cache
def _revision() -> str:
    """Return the commit of the working copy this runs from, else the version of the package."""
    for folder in Path(__file__).resolve().parents:
        git = folder / ".git"
        if git.is_dir():
            return f"commit {_head(git) or 'unknown'}"
    try:
        return f"orderwire {version('orderwire')}"
    except PackageNotFoundError:
        return "orderwire, not installed"


def _head(git: Path) -> str:
    """Return the short hash of HEAD, or an empty string when it cannot be read."""
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:7]
        name = head.removeprefix("ref: ")
        loose = git / name
        if loose.exists():
            return loose.read_text().strip()[:7]
        for line in (git / "packed-refs").read_text().splitlines():
            if line.endswith(f" {name}"):
                return line[:7]
    except OSError:
        pass
    return ""


class Replayed(msgspec.Struct, frozen=True, kw_only=True):
    """What a core did with recorded inputs."""

    protocol: str
    me: int
    inputs: int
    malformed: int
    """Received PDUs that the codec or the core refused, as it did when they were recorded."""
    refused: int
    """Commands that the core refused, as it did then."""
    indications: list[tuple[int, OrderingIndication]]
    """With the core's own time at each, in ns."""
    sends: int

    def counts(self) -> dict[str, int]:
        """How many indications of each kind."""
        return dict(Counter(type(indication).__name__ for _, indication in self.indications))


def replay_inputs(lines: Iterable[bytes]) -> Replayed:
    """Feed recorded inputs to a new core.  Raises ValueError when the file is none."""
    header, inputs = read_inputs(lines)
    if header.family != FAMILY:
        raise ValueError(f"recorded inputs of family {header.family!r}, expected {FAMILY!r}")
    settings = parsed(
        msgspec.json.Decoder(OrderingSettings).decode,
        header.settings,
        "line 1: settings of no ordering domain",
        ValueError,
    )
    try:
        entry = catalog_entry(header.protocol)
    except LocalProtocolError as error:
        raise ValueError(f"line 1: {error}") from None
    if not 0 <= header.me < settings.members:
        raise ValueError(f"line 1: process {header.me} in a group of {settings.members}")
    me = ProcessId(header.me)
    core, codec = entry.create(me, settings), entry.codec(me, settings)
    decode_command: Callable[[msgspec.Raw], OrderingCommand] = msgspec.json.Decoder(
        OrderingCommand
    ).decode
    indications: list[tuple[int, OrderingIndication]] = []
    count = sends = malformed = refused = 0
    for record in inputs:
        count += 1
        now = Instant(record.now)
        effects: Effects
        if isinstance(record, Received):
            try:
                effects = core.receive(ProcessId(record.source), codec.decode(record.data), now)
            except RemoteProtocolError:
                malformed += 1
                continue
        elif isinstance(record, Submitted):
            try:
                effects = core.submit(decode_command(record.command), now)
            except LocalProtocolError:
                refused += 1
                continue
            except UNREADABLE as error:
                raise ValueError(f"line {count + 1} is no command of {FAMILY}: {error}") from None
        elif isinstance(record, Woken):
            effects = core.wake(now)
        else:
            assert_never(record)
        for effect in effects:
            if isinstance(effect, Indicate):
                indications.append((now, effect.indication))
            else:
                sends += 1
    return Replayed(
        protocol=header.protocol,
        me=me,
        inputs=count,
        malformed=malformed,
        refused=refused,
        indications=indications,
        sends=sends,
    )
