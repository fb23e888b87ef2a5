"""A broker as a child process: for the demo, tests and benchmarks.

with BrokerProcess.start(folder) as broker:
    Producer({"bootstrap.servers": broker.address})
"""

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from threading import Event
from types import TracebackType
from typing import IO

import msgspec

from orderwire.kernel.errors import OrderwireError
from orderwire.kernel.parsing import UNREADABLE

START_SECONDS_MAX = 75.0
"""Longer than a broker seeks its cluster: then it says itself why it does not start."""
STOP_SECONDS_MAX = 15.0
_END_S = 5.0
_LOOK_S = 0.2
_CHARS_SHOWN = 2_000


class BrokerDidNotStart(OrderwireError):
    """The process ended, or did not listen in time; the message carries what it wrote."""

    def __init__(self, message: str, status: int | None = None) -> None:
        """`status` is what the process ended with by itself."""
        super().__init__(message)
        self.status = status


class _Ended(TimeoutError):
    """Its output has."""


class _Listening(msgspec.Struct):
    listen: str
    internal: str = ""


class BrokerProcess:
    """One `orderwire broker`, in a session of its own; it ends with `stop` or `kill`."""

    def __init__(
        self, process: "subprocess.Popen[bytes]", address: str, log: Path, internal: str = ""
    ) -> None:
        self._process = process
        self._asked = False
        self.address = address
        """HOST:PORT it listens on."""
        self.internal = internal
        """Where the other brokers of its cluster find it; empty when it is alone."""
        self.log = log
        """What it wrote to standard error."""

    @classmethod
    def start(
        cls,
        data: Path,
        *options: str,
        listen: str = "127.0.0.1:0",
        log: Path | None = None,
        seconds: float = START_SECONDS_MAX,
        tied: bool = False,
        given_up: Event | None = None,
    ) -> "BrokerProcess":
        """Start a broker over this data directory and wait until it listens.

        `options` are further ones of `orderwire broker`; one that is `tied` ends with this process,
        however that ends.  Who sets `given_up` does not wait any longer.  Raises BrokerDidNotStart.
        """
        data.mkdir(parents=True, exist_ok=True)
        log = log if log is not None else data.with_name(data.name + ".log")
        order = [sys.executable, "-c", "from orderwire.cli.main import main; main()", "broker"]
        order += ["--data", str(data), "--listen", listen, "--json", *options]
        if tied:
            order.append("--end-with-input")
        with log.open("ab") as errors:
            before = errors.tell()
            process = subprocess.Popen(
                order,
                stdin=subprocess.PIPE if tied else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )
        assert process.stdout is not None
        try:
            line = _first_line(process.stdout, seconds, given_up)
            told = msgspec.json.decode(line, type=_Listening)
        except (TimeoutError, *UNREADABLE) as error:
            status = None
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(_END_S) if isinstance(error, _Ended) else None
            process.kill()
            process.wait()
            process.stdout.close()
            written = log.read_bytes()[before:].decode(errors="replace")[-_CHARS_SHOWN:].strip()
            message = f"the broker did not start ({error}): {written or 'it wrote nothing'}"
            raise BrokerDidNotStart(message, status) from error
        except BaseException:
            process.kill()
            process.wait()
            raise
        return cls(process, told.listen, log, told.internal)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """User and system time of the process so far, in ticks of usually 10 ms."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        """Memory of the process that is in RAM."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def ask_to_end(self) -> None:
        """Have it begin to end properly; `stop` waits for that."""
        if self.is_running and not self._asked:
            self._asked = True  # a second signal would end it at once, at the very end
            self._process.send_signal(signal.SIGTERM)

    def stop(self, seconds: float = STOP_SECONDS_MAX) -> int:
        """Let it end properly; after `seconds` kill it.  Returns its exit status."""
        self.ask_to_end()
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return self.kill()
        finally:
            self._close()

    def kill(self) -> int:
        """End it as a crash would: SIGKILL.  Returns its exit status."""
        self._process.kill()
        status = self._process.wait()
        self._close()
        return status

    def _close(self) -> None:
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def __enter__(self) -> "BrokerProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()


def _first_line(pipe: IO[bytes], seconds: float, given_up: Event | None) -> bytes:
    """Read one line without waiting longer than `seconds`.  Raises TimeoutError."""
    until = time.monotonic() + seconds
    line = b""
    while not line.endswith(b"\n"):
        left = until - time.monotonic()
        if given_up is not None and given_up.is_set():
            raise TimeoutError("it was given up")
        if left <= 0:
            raise TimeoutError(f"no address within {seconds} s")
        if not select.select([pipe], [], [], min(left, _LOOK_S))[0]:
            continue
        piece = os.read(pipe.fileno(), 4_096)
        if not piece:
            raise _Ended("it ended")
        line += piece
    return line
