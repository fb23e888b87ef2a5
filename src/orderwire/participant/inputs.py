"""Recording what a participant's ordering cores are fed, for `orderwire sim replay --inputs`."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import IO
from urllib.parse import quote

import msgspec

from orderwire.kernel import Input, InputsHeader, ProcessId, write_input
from orderwire.ordering.settings import OrderingSettings

_LOG = logging.getLogger(__name__)

FAMILY = "ordering"
"""The family's name in the header of recorded inputs."""

NAMES_MAX = 10_000
"""Recordings of one name that a folder may hold."""


class InputRecorder:
    """Writes one file per ordering domain into a folder, `<member>-<domain>.jsonl`.

    A file that is there already is kept, and the new one numbered: it may be from an earlier life.
    Lines are buffered: a process that is killed leaves its file without the last of them.
    """

    def __init__(self, folder: Path | str, member: str) -> None:
        self._folder = Path(folder)
        self._member = member
        self._files: list[IO[bytes]] = []
        self._failed: OSError | None = None
        self._folder.mkdir(parents=True, exist_ok=True)

    def open(
        self, label: str, algorithm: str, me: ProcessId, settings: OrderingSettings
    ) -> Callable[[Input], None]:
        """Begin a domain's file; return who takes its core's inputs.  Raises OSError."""
        file = self._create(quote(f"{self._member}-{label}", safe=" "))
        self._files.append(file)
        header = InputsHeader(
            family=FAMILY,
            protocol=algorithm,
            me=me,
            settings=msgspec.Raw(msgspec.json.encode(settings)),
        )
        file.write(write_input(header))

        def record(what: Input) -> None:
            if self._failed is None:
                try:
                    file.write(write_input(what))
                except OSError as error:
                    self._fail(error)

        return record

    def close(self) -> None:
        """Close all files.  Raises OSError when a recording is incomplete."""
        for file in self._files:
            try:
                file.close()
            except OSError as error:
                self._fail(error)
        self._files.clear()
        if self._failed is not None:
            raise self._failed

    def _fail(self, error: OSError) -> None:
        if self._failed is None:
            _LOG.error("recording inputs in %s ended: %s", self._folder, error)
            self._failed = error

    def _create(self, name: str) -> IO[bytes]:
        for count in range(1, NAMES_MAX):
            numbered = f"{name}.{count}.jsonl" if count > 1 else f"{name}.jsonl"
            try:
                return (self._folder / numbered).open("xb")
            except FileExistsError:
                continue
        raise FileExistsError(f"{NAMES_MAX} recordings {name!r} in {self._folder} already")
