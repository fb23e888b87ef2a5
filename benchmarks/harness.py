"""What every benchmark shares: interleaved repeats, medians, the machine, one shape of result.

A benchmark is a script: it measures several contestants in the same run, round by round, so that a
noisy machine disturbs them alike, and prints one JSON object:
`{"name", "machine", "ours": {…}, "rivals": {…}, "ratios": {…}, "repeats"}`.
"""

import argparse
import contextlib
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """One run of one contestant."""

    units: int
    """How many things it did: messages, events, records."""
    wall_s: float
    cpu_s: float
    """CPU time of this process, user and system; the steady figure on a busy machine."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over the repeats of one contestant."""

    units: int
    units_per_s: float
    """Per second of wall time."""
    units_per_cpu_s: float
    cpu_us_per_unit: float
    units_per_s_min: float
    units_per_s_max: float


def machine() -> dict[str, Any]:
    """Describe where the figures were made, without naming the host."""
    model = ""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    return {
        "cpu": model or platform.machine(),
        "cpus": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def cpu_s_of(pids: Iterable[int]) -> float:
    """User and system time of every thread that lives in these processes, from the scheduler."""
    total = 0
    for pid in pids:
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def measure(work: Callable[[], int]) -> Measured:
    """Run `work` once; it returns how many units it did."""
    gc.collect()
    wall, cpu = time.perf_counter(), time.process_time()
    units = work()
    cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - wall
    return Measured(units=units, wall_s=wall_s, cpu_s=cpu_s)


def interleave(
    contestants: Mapping[str, Callable[[], int]], repeats: int, *, warm_up: bool = True
) -> dict[str, list[Measured]]:
    """Run every contestant once per round, for `repeats` rounds, in turn."""
    if warm_up:
        for work in contestants.values():
            work()
    rounds: dict[str, list[Measured]] = {name: [] for name in contestants}
    for _ in range(repeats):
        for name, work in contestants.items():
            rounds[name].append(measure(work))
    return rounds


def summarise(runs: list[Measured]) -> Summary:
    """Medians of one contestant's runs."""
    rates = [run.units / run.wall_s for run in runs]
    cpu_rates = [run.units / max(run.cpu_s, 1e-9) for run in runs]
    return Summary(
        units=round(statistics.median(run.units for run in runs)),
        units_per_s=round(statistics.median(rates), 1),
        units_per_cpu_s=round(statistics.median(cpu_rates), 1),
        cpu_us_per_unit=round(1e6 / statistics.median(cpu_rates), 4),
        units_per_s_min=round(min(rates), 1),
        units_per_s_max=round(max(rates), 1),
    )


def median_ratio(
    ours: list[Measured], theirs: list[Measured], figure: Callable[[Measured], float]
) -> float:
    """Median over the rounds of (our figure / their figure): noise of one round hits both."""
    return round(
        statistics.median(figure(a) / figure(b) for a, b in zip(ours, theirs, strict=True)), 3
    )


def units_per_cpu_s(run: Measured) -> float:
    """Units per second of CPU, for `median_ratio`."""
    return run.units / max(run.cpu_s, 1e-9)


def units_per_s(run: Measured) -> float:
    """Units per second of wall time, for `median_ratio`."""
    return run.units / run.wall_s


def arguments(description: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """Return a parser with the options every benchmark has; add your own to it."""
    parser = argparse.ArgumentParser(description=(description or "").partition("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.add_argument("--quick", action="store_true", help="smaller, for a first look")
    parser.add_argument("--repeats", type=int, default=repeats, help="rounds (default %(default)s)")
    return parser


def report(
    name: str,
    *,
    ours: Mapping[str, Any],
    rivals: Mapping[str, Any],
    ratios: Mapping[str, Any],
    repeats: int,
    as_json: bool,
    **more: Any,
) -> None:
    """Print the result: one JSON object, or a few lines for people."""
    result = {
        "name": name,
        "machine": machine(),
        "ours": ours,
        "rivals": rivals,
        "ratios": ratios,
        "repeats": repeats,
        **more,
    }
    if as_json:
        sys.stdout.write(msgspec.json.encode(result).decode() + "\n")
        return
    plain = msgspec.to_builtins(result)
    for part in ("ours", "rivals", "ratios"):
        print(f"{part}:")
        for key, value in plain[part].items():
            print(f"  {key}: {value}")


def run_json(
    command: list[str], folder: Path, seconds: float, environment: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the last line that a program prints, a JSON object; what failed has an `error`."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {seconds} s"}
    try:
        result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    except (IndexError, ValueError):
        return {"error": (done.stderr.strip() or "no output")[-200:]}
    return result
