"""The demo's processes: started in their own process groups, led by JSON lines, never left behind.

A child reads its settings from the first line of its standard input and then orders, one JSON
object a line; it answers likewise on standard output.  It ends when its standard input closes.
So does a command of `orderwire`, which is told by its options.
"""

import asyncio
import contextlib
import os
import signal
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

STOP_SECONDS_MAX = 5.0
LINE_BYTES_MAX = 8 * 1024 * 1024


class ChildError(Exception):
    """A process of the demo ended early or did not answer in time."""


class Child:
    """One process, led by JSON lines."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self._process = process
        self._log = log

    @classmethod
    async def start(cls, name: str, module: str, settings: Any, folder: Path) -> "Child":
        """Start `python -m module`; what it writes to standard error goes to a log in `folder`."""
        child = await cls._run(name, (module,), folder)
        try:
            await child.tell(settings)
        except BaseException:
            child.kill()
            raise
        return child

    @classmethod
    async def command(cls, name: str, *words: str, folder: Path) -> "Child":
        """Start `orderwire …` likewise, a command that tells by one line of JSON that it runs."""
        return await cls._run(name, ("orderwire", *words, "--json", "--end-with-input"), folder)

    @classmethod
    async def _run(cls, name: str, module: Sequence[str], folder: Path) -> "Child":
        log = folder / f"{name}.log"
        with log.open("wb") as errors:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                *module,
                stdin=PIPE,
                stdout=PIPE,
                stderr=errors,
                limit=LINE_BYTES_MAX,
                start_new_session=True,
            )
        return cls(name, process, log)

    async def tell(self, order: Any) -> None:
        """Send one line."""
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(msgspec.json.encode(order) + b"\n")
            await stdin.drain()
        except (BrokenPipeError, ConnectionResetError):
            raise await self._ended() from None

    async def hear(self) -> dict[str, Any]:
        """Return the next line.  Raises ChildError when the process has ended instead."""
        stdout = self._process.stdout
        assert stdout is not None
        line = await stdout.readline()
        if not line:
            raise await self._ended()
        answer: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        return answer

    async def wait_for(
        self, what: str, seconds: float, meanwhile: Callable[[dict[str, Any]], object] | None = None
    ) -> dict[str, Any]:
        """Return the first line whose `is` equals `what`; give those before it to `meanwhile`.

        Raises ChildError when the process ends first or takes more than `seconds`.
        """
        async with self._within(seconds, f"say {what!r}"):
            while (answer := await self.hear())["is"] != what:
                if meanwhile is not None:
                    meanwhile(answer)
            return answer

    async def wait_until_running(self, seconds: float) -> None:
        """Return when a command has told that it runs.  Raises ChildError like `wait_for`."""
        async with self._within(seconds, "tell that it runs"):
            await self.hear()

    @contextlib.asynccontextmanager
    async def _within(self, seconds: float, what: str) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError:
            raise ChildError(
                f"{self.name} did not {what} within {seconds:.0f} s; {self._last_words()}"
            ) from None

    async def stop(self) -> None:
        """Close its standard input, wait, then end its whole process group."""
        process = self._process
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_SECONDS_MAX):
                await process.wait()
        self.kill()
        await process.wait()

    def kill(self) -> None:
        """End the process group at once."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def _ended(self) -> ChildError:
        status = await self._process.wait()
        return ChildError(f"{self.name} ended with status {status}; {self._last_words()}")

    def _last_words(self) -> str:
        text = self._log.read_text(errors="replace").strip()
        return f"its last words: {text[-1_500:]}" if text else "it left no message"


class Leader:
    """The child's side: settings, orders in, answers out."""

    def __init__(self) -> None:
        self._reader: asyncio.StreamReader | None = None

    async def settings(self) -> bytes:
        """Return the first line: the settings as JSON."""
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        self._reader = reader
        return await reader.readline()

    async def order(self) -> dict[str, Any] | None:
        """Return the next order, or None when the leader is gone."""
        assert self._reader is not None
        line = await self._reader.readline()
        if not line:
            return None
        order: dict[str, Any] = msgspec.json.decode(line, type=dict[str, Any])
        return order

    @staticmethod
    def say(what: str, **fields: Any) -> None:
        """Answer with one line."""
        sys.stdout.buffer.write(msgspec.json.encode({"is": what, **fields}) + b"\n")
        sys.stdout.buffer.flush()


__all__ = ["Child", "ChildError", "Leader"]
