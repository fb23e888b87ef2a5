"""A member, and the relay, of a totally ordered group killed under load: how long nothing comes.

Three members with views in a ZooKeeper of their own write 200 bytes to subsets, half of the
messages to everybody; a relay works and another stands by.  Each is a process on loopback, and the
members trace.  `member`: one of them is killed (SIGKILL); `relay`: the relay that works is.
`saturated`: members write as fast as they are let, else 1,000 messages/s in all.  The traces are
audited in one process, and with `--spark` by Spark, which must say the same; so must both find one
swap.  Sessions are as long as `orderwire channel` and `TotalGroup.enter` have them.
"""

import asyncio
import contextlib
import json
import multiprocessing as mp
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import harness
import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire import LocalProtocolError, TotalGroup, Trace
from orderwire.aio.clock import GroupClock, shared_origin_ns
from orderwire.aio.zookeeper_server import managed_zookeeper
from orderwire.trace.reader import read_trace, write_trace
from orderwire.verify.audit import audit
from orderwire.verify.report import Report
from orderwire.verify.source import TableSource, open_source

MEMBERS = 3
PAYLOAD = bytes(200)
AUDIT_S = 600.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What is measured."""

    kills: str
    """`member` or `relay`."""
    per_s: float | None = 1_000 / MEMBERS
    """That each member writes; None: as many as it can."""
    loss: float = 0.0
    """Of all datagrams, up and down."""


def _run(work: Any) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
    else:
        uvloop.run(work)


async def _member(load: Load, zookeeper: str, folder: str, seed: int, pipe: Any) -> None:
    trace = Trace(run="crash", path=folder)
    group = await TotalGroup.enter(zookeeper, "crash", least=MEMBERS, trace=trace)
    pipe.send(int(group.me))
    chance, began = Random(seed), time.monotonic()
    recoveries = last = 0

    async def write() -> None:
        number = 0
        with contextlib.suppress(LocalProtocolError):  # it is in no view any more
            while True:
                if load.per_s is not None:
                    await asyncio.sleep(began + number / load.per_s - time.monotonic())
                members = group.members
                count = chance.randrange(1, len(members)) if number % 2 else len(members)
                await group.write(PAYLOAD, chance.sample(members, count))
                number += 1

    async def read() -> None:
        async for _ in group:
            pass

    reading, writing = asyncio.create_task(read()), asyncio.create_task(write())
    while not pipe.poll():
        await asyncio.sleep(0.02)
        epoch = group.counters()["epoch"]
        recoveries += max(0, epoch - last)
        last = epoch
    pipe.recv()
    writing.cancel()
    await group.settled()
    pipe.send(recoveries)
    while not pipe.poll():
        await asyncio.sleep(0.02)
    await group.close()
    await reading


def _start(load: Load, zookeeper: str, folder: str, seed: int, pipe: Any) -> None:
    _run(_member(load, zookeeper, folder, seed, pipe))


@contextlib.contextmanager
def _relay(load: Load, zookeeper: str, seed: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "orderwire", "channel", "--listen", "127.0.0.1:0", "--json"]
    where = ["--zookeeper", zookeeper, "--group", "crash"]
    how = ["--loss", str(load.loss), "--seed", str(seed)]
    relay = subprocess.Popen(
        [*command, *where, *how], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert relay.stdout is not None
        json.loads(relay.stdout.readline())
        yield relay
    finally:
        relay.kill()
        relay.wait()


def crash(load: Load, folder: Path, seed: int, before_s: float, after_s: float) -> dict[str, Any]:
    """Run a group, kill, and let the others come to rest; tell what they saw."""
    context = mp.get_context("spawn")
    clock = GroupClock(origin_ns=shared_origin_ns())
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(managed_zookeeper()).address
        relays = [stack.enter_context(_relay(load, zookeeper, seed)) for _ in range(2)]
        members = {}
        for number in range(MEMBERS):
            ours, theirs = context.Pipe()
            arguments = (load, zookeeper, str(folder), seed * MEMBERS + number, theirs)
            process = context.Process(target=_start, args=arguments, daemon=True)
            process.start()
            stack.callback(process.kill)
            members[process] = ours
        ids = {process: pipe.recv() for process, pipe in members.items()}
        time.sleep(before_s)
        killed_ns = clock.now()
        if load.kills == "relay":
            relays[0].kill()
        else:
            victim = next(iter(members))
            victim.kill()
            del members[victim], ids[victim]
        time.sleep(after_s)
        for pipe in members.values():
            pipe.send("stop")
        recoveries = [pipe.recv() for pipe in members.values()]
        for pipe in members.values():
            pipe.send("quit")
        for process in members:
            process.join()
    table = read_trace(folder)
    gaps = [_gap_ns(table, me, killed_ns) for me in ids.values()]
    deliveries = table.filter(pc.equal(table.column("kind"), "deliver"))
    earlier = pc.less(deliveries.column("time_ns"), killed_ns)
    return {
        "gap_s": round(max(gap for gap, _ in gaps) / 1e9, 3),
        "view_to_delivery_ms": round(max(late for _, late in gaps) / 1e6, 1),
        "deliveries_per_s_before": round(pc.sum(earlier).as_py() / before_s),
        "deliveries": deliveries.num_rows,
        "events": table.num_rows,
        "recoveries": max(recoveries),
    }


def _gap_ns(table: pa.Table, me: int, killed_ns: int) -> tuple[int, int]:
    """Return a survivor's longest silence that ended after the kill, and the part behind its view.

    The silence counts from the kill at the earliest.
    """
    mine = table.filter(pc.equal(table.column("process"), me))
    times = mine.filter(pc.equal(mine.column("kind"), "deliver")).column("time_ns").to_numpy()
    after = np.concatenate(([killed_ns], times[times > killed_ns]))
    at = int(np.argmax(np.diff(after)))
    views = mine.filter(pc.equal(mine.column("kind"), "install")).column("time_ns").to_numpy()
    view_ns = int(views[views > killed_ns][0])
    return int(after[at + 1] - after[at]), int(after[after > view_ns][0] - view_ns)


def _one_swap(table: pa.Table) -> pa.Table:
    """Let a member that came to its end have two neighbours, for everybody, in the other order."""
    everybody = bytes([(1 << MEMBERS) - 1])
    ended = table.filter(pc.equal(table.column("kind"), "end")).column("process")[0].as_py()
    kinds, process = table.column("kind").to_pylist(), table.column("process").to_numpy()
    sets, source = table.column("destinations").to_pylist(), table.column("source").to_numpy()
    at = next(
        at
        for at in np.flatnonzero(process == ended).tolist()
        if kinds[at] == kinds[at + 1] == "deliver"
        and sets[at] == sets[at + 1] == everybody
        and source[at] != source[at + 1]
    )
    rows = np.arange(table.num_rows)
    rows[[at, at + 1]] = at + 1, at
    other = table.take(rows)
    for name in ("position", "time_ns", "clock_ns"):
        other = other.set_column(other.schema.get_field_index(name), name, table.column(name))
    return other


def judge(folder: Path, *, spark: bool) -> dict[str, Any]:
    """Audit what the members traced, and the same with one swap."""
    began = time.perf_counter()
    report, _ = audit(open_source(folder))
    took_s = time.perf_counter() - began
    wrong = _one_swap(read_trace(folder))
    broken, _ = audit(TableSource(wrong))
    found = {
        "verdict": report.verdict.value,
        "with_one_swap": broken.verdict.value,
        "audit_s": round(took_s, 2),
    }
    if spark:
        swapped = folder.with_suffix(".parquet")
        write_trace(swapped, wrong)
        began = time.perf_counter()
        same = _on_spark(folder) == report
        found["spark_s"] = round(time.perf_counter() - began, 2)
        found["spark_says_the_same"] = same and _on_spark(swapped) == broken
    return found


def _on_spark(path: Path) -> Report:
    command = [sys.executable, "-m", "orderwire", "audit", str(path), "--engine", "spark", "--json"]
    done = subprocess.run(command, capture_output=True, timeout=AUDIT_S, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(b"{")]
    if not lines:
        raise RuntimeError(f"no audit of {path}: {done.stderr.decode()[-500:]}")
    if len(done.stdout.splitlines()) > 1:
        print(f"Spark wrote beside its report: {done.stdout!r}", file=sys.stderr)
    return msgspec.json.decode(lines[0], type=Report)


def main() -> int:
    """Measure each load once a round, and print the last round's figures and the longest gaps."""
    parser = harness.arguments(__doc__, repeats=1)
    parser.add_argument("--only", help="one load by its name")
    parser.add_argument("--spark", action="store_true", help="audit on Spark, too")
    parser.add_argument("--keep", type=Path, help="leave the traces in this folder")
    options = parser.parse_args()
    before_s, after_s = (2.0, 7.0) if options.quick else (5.0, 10.0)
    loads = {
        "member": Load(kills="member"),
        "relay": Load(kills="relay"),
        "member, 1 % lost": Load(kills="member", loss=0.01),
        "relay, 1 % lost": Load(kills="relay", loss=0.01),
        "member, saturated": Load(kills="member", per_s=None),
        "relay, saturated": Load(kills="relay", per_s=None),
    }
    if options.only:
        loads = {name: load for name, load in loads.items() if name == options.only}
    repeats = 1 if options.quick else options.repeats
    ours: dict[str, dict[str, Any]] = {}
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        root = options.keep or Path(scratch)
        for turn in range(repeats):
            for name, load in loads.items():
                folder = root / f"{name.replace(', ', '-').replace(' ', '')}-{turn}"
                os.makedirs(folder)
                found = crash(load, folder, turn, before_s, after_s)
                found |= judge(folder, spark=options.spark)
                gaps = [found["gap_s"], *([ours[name]["gap_s"]] if name in ours else [])]
                ours[name] = found | {"gap_s": max(gaps)}
                print(f"{name}: {found}", file=sys.stderr, flush=True)
                good &= (found["verdict"], found["with_one_swap"]) == ("VALID", "INVALID")
                good &= found.get("spark_says_the_same", True)
    harness.report(
        "group_crash", ours=ours, rivals={}, ratios={}, repeats=repeats, as_json=options.json
    )
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
