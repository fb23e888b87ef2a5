"""Participants that are killed: how soon a restarted one is known, and a dead one is not.

Each is a process of its own on one machine, with a bootstrap server.  One is killed (SIGKILL) and
started again at the same address, time after time; then some die for good, and some are stopped
(SIGSTOP), as a machine would that is cut off.  Times are seconds:

- `known`: from when the new process opens its participant until every other knows it and it knows
  every other; `known_after_exec` from when it was started, Python's own start included;
- `unread`: from the kill until its writer no longer writes to a dead reader, and `unread_stopped`
  to one that says nothing any more;
- `gone`: from the kill until the last one has it off its list.
"""

import argparse
import contextlib
import json
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness

NODE = Path(__file__).parent / "peers" / "restart_node.py"
WAIT_S_MAX = 60.0
SETTLE_S = 1.0
BETWEEN_S = 0.5
"""Between two deaths: others die while the first ones are still being missed."""
MAIN = "from orderwire.cli.main import main; main()"


class Process:
    """A child that prints JSON lines."""

    def __init__(self, *order: str) -> None:
        self.started_ns = time.monotonic_ns()
        self.popen = subprocess.Popen(
            [sys.executable, *order], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.lines: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            self.lines.append(json.loads(line))

    def first(self, holds: Callable[[dict[str, Any]], bool], since_ns: int = 0) -> dict[str, Any]:
        """Wait for a line for which this holds, and return the first one.

        Raises TimeoutError.
        """
        end = time.monotonic() + WAIT_S_MAX
        seen = 0
        while time.monotonic() < end:
            for line in self.lines[seen:]:
                seen += 1
                if line.get("at_ns", 0) >= since_ns and holds(line):
                    return line
            time.sleep(0.002)
        raise TimeoutError(f"{self.popen.args}: the last line is {self.lines[-1:]}")

    def end(self, number: signal.Signals) -> int:
        """Send a signal; return when."""
        now_ns = time.monotonic_ns()
        self.popen.send_signal(number)
        return now_ns

    def close(self) -> None:
        """Kill it, if it is still there."""
        self.popen.kill()
        self.popen.wait()
        self._reader.join()
        for pipe in (self.popen.stdin, self.popen.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Domain:
    """A bootstrap server and participants; the first one writes, the others read."""

    def __init__(self, count: int) -> None:
        self._stack = contextlib.ExitStack()
        server = self._process("-c", MAIN, "bootstrap", "--listen=127.0.0.1:0", "--json",
                               "--domain=restart")  # fmt: skip
        self.server = server.first(lambda line: "listen" in line)["listen"]
        self.nodes = {f"p{at}": self._node(f"p{at}", "127.0.0.1:0") for at in range(count)}
        self.addresses = {
            name: node.first(lambda line: "listens" in line)["listens"]
            for name, node in self.nodes.items()
        }
        self.writer = self.nodes["p0"]
        for node in self.nodes.values():
            node.first(lambda line: len(line.get("known", ())) == count - 1)
        self.writer.first(lambda line: line.get("matched") == count - 1)
        time.sleep(SETTLE_S)

    def _process(self, *order: str) -> Process:
        process = Process(*order)
        self._stack.callback(process.close)
        return process

    def _node(self, name: str, listen: str) -> Process:
        role = "write" if name == "p0" else "read"
        return self._process(str(NODE), name, self.server, listen, role)

    def others(self, name: str) -> dict[str, Process]:
        """Return all but this one."""
        return {each: node for each, node in self.nodes.items() if each != name}

    def readers(self) -> list[str]:
        """Return the names of those that read."""
        return [name for name in self.nodes if name != "p0"]

    def restart(self, name: str) -> dict[str, float]:
        """Kill one and start it again at its address."""
        before = self.newest(self.writer)["known"][name]
        matched = len(self.readers())
        killed_ns = self.nodes[name].end(signal.SIGKILL)
        self.nodes[name].popen.wait()
        again = self.nodes[name] = self._node(name, self.addresses[name])
        opening = again.first(lambda line: "opening" in line)

        def knows(line: dict[str, Any]) -> bool:
            return bool(line.get("known", {}).get(name, 0) > before)

        others = self.others(name)
        known = [node.first(knows, killed_ns)["at_ns"] for node in others.values()]
        known.append(
            again.first(lambda line: others.keys() <= line.get("known", {}).keys())["at_ns"]
        )
        unread = self.writer.first(lambda line: (line.get("matched") or 0) < matched, killed_ns)
        read = self.writer.first(lambda line: line.get("matched") == matched, unread["at_ns"])
        return {
            "known": _s(opening["at_ns"], max(known)),
            "known_after_exec": _s(again.started_ns, max(known)),
            "unread": _s(killed_ns, unread["at_ns"]),
            "read_again": _s(opening["at_ns"], read["at_ns"]),
        }

    def newest(self, node: Process) -> dict[str, Any]:
        """Return the last line on whom it knows."""
        return [line for line in node.lines if "known" in line][-1]

    def die(self, names: list[str], number: signal.Signals) -> list[dict[str, float]]:
        """Let these die, one soon after the other; return when each was missed."""
        deaths: dict[str, int] = {}
        for name in names:
            deaths[name] = self.nodes.pop(name).end(number)
            time.sleep(BETWEEN_S)
        suffix = "" if number is signal.SIGKILL else "_stopped"
        left = len(self.readers()) + len(names)
        rows = []
        for name, died_ns in deaths.items():
            left -= 1  # They are missed in the order of their deaths.
            unread = self.writer.first(_reads_at_most(left), died_ns)["at_ns"]
            gone = [node.first(_lacks(name), died_ns)["at_ns"] for node in self.nodes.values()]
            rows.append(
                {
                    f"unread{suffix}": _s(died_ns, unread),
                    f"gone{suffix}": _s(died_ns, max(gone)),
                }
            )
        return rows

    def close(self) -> None:
        """End all."""
        self._stack.close()


def _reads_at_most(count: int) -> Callable[[dict[str, Any]], bool]:
    return lambda line: "matched" in line and line["matched"] <= count


def _lacks(name: str) -> Callable[[dict[str, Any]], bool]:
    return lambda line: "known" in line and name not in line["known"]


def _s(begin_ns: int, end_ns: int) -> float:
    return round((end_ns - begin_ns) / 1e9, 4)


@contextlib.contextmanager
def domain(count: int) -> Iterator[Domain]:
    """Run a domain of so many processes while it is in use."""
    made = Domain(count)
    try:
        yield made
    finally:
        made.close()


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Return median and extremes of every time."""
    found: dict[str, Any] = {}
    for name in sorted({name for row in rows for name in row}):
        values = sorted(row[name] for row in rows if name in row)
        found[name] = {
            "median_s": round(statistics.median(values), 4),
            "min_s": values[0],
            "max_s": values[-1],
            "times": len(values),
        }
    return found


def measure(count: int, restarts: int, deaths: int) -> list[dict[str, float]]:
    """Run all of it; return a row for each restart and each death."""
    rows = []
    with domain(count) as running:
        readers = running.readers()
        for turn in range(restarts):
            rows.append(running.restart(readers[turn % len(readers)]))
            time.sleep(BETWEEN_S)
    for number in (signal.SIGKILL, signal.SIGSTOP):
        left = deaths
        while left > 0:
            with domain(count) as running:
                dying = running.readers()[: min(left, count // 2)]
                rows += running.die(dying, number)
                left -= len(dying)
    return rows


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = harness.arguments(__doc__, repeats=10)
    parser.add_argument("--participants", type=int, default=8)
    options = parser.parse_args()
    if options.quick:
        options.participants, options.repeats = 4, 2
    return options


def main() -> None:
    """Measure, and print one JSON object."""
    options = arguments()
    rows = measure(options.participants, options.repeats, options.repeats)
    harness.report(
        "discovery-restart",
        ours={"participants": options.participants} | summary(rows),
        rivals={},
        ratios={},
        repeats=options.repeats,
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
