"""What can befall a cluster of real processes: each fault begins, lasts, and is undone."""

import contextlib
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TypeAlias

import msgspec

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.chaos.evidence import partition_folder, segments
from orderwire.chaos.wires import ZOOKEEPER, Wires, wire
from orderwire.verify.kafka_batches import batches_of

SLOW_SYNC_US = 150_000
"""What each fdatasync of a slow disk takes longer."""
_ROOM_BYTES = 1_500
"""A full disk lets files grow by so much."""


class Target(msgspec.Struct, frozen=True):
    """What a fault may ask about the cluster when it begins."""

    cluster: ClusterProcess
    wires: Wires
    folder: Path
    topic_id: str
    originals: Mapping[int, int]
    """Original of each partition."""
    high_watermarks: Mapping[int, int]
    session_s: float
    draw: Random

    @property
    def brokers(self) -> list[int]:
        """All of them."""
        return list(range(len(self.cluster.brokers)))

    def some_original(self) -> int:
        """The original of a drawn partition."""
        return self.originals[self.draw.choice(sorted(self.originals))]

    def some_secondary(self) -> int:
        """A broker that is not the original of the first partition."""
        first = self.originals[min(self.originals)]
        return self.draw.choice([each for each in self.brokers if each != first])

    def data(self, broker: int) -> list[Path]:
        """The folders of the topic's partitions at a broker."""
        return [
            partition_folder(self.folder / f"broker-{broker}", self.topic_id, each)
            for each in sorted(self.originals)
        ]


Fault: TypeAlias = Callable[[Target], Iterator[list[int]]]
"""Begins it, yields the brokers that are gone for the others, and undoes it."""


def _kill(target: Target, *brokers: int) -> list[int]:
    for broker in brokers:
        target.cluster.brokers[broker].kill()
    return list(brokers)


def _restart(target: Target, brokers: Sequence[int]) -> None:
    for broker in brokers:
        if not target.cluster.brokers[broker].is_running:
            target.cluster.restart(broker)
            target.wires.reopen(broker)


def _last(target: Target, least_s: float, most_s: float) -> None:
    time.sleep(target.draw.uniform(least_s, most_s))


def kill_original(target: Target) -> Iterator[list[int]]:
    """`kill -9` of an original; back at once, or after others have taken over."""
    gone = _kill(target, target.some_original())
    yield gone
    _last(target, 0, 2 * target.session_s)
    _restart(target, gone)


def kill_secondary(target: Target) -> Iterator[list[int]]:
    """`kill -9` of another broker."""
    gone = _kill(target, target.some_secondary())
    yield gone
    _last(target, 0, 2 * target.session_s)
    _restart(target, gone)


def kill_all(target: Target) -> Iterator[list[int]]:
    """`kill -9` of all brokers, one right after the other."""
    gone = _kill(target, *target.draw.sample(target.brokers, len(target.brokers)))
    yield []
    _last(target, 0, 1)
    _restart(target, gone)


def kill_two(target: Target) -> Iterator[list[int]]:
    """`kill -9` of an original, and of the next while the first is away."""
    first = target.some_original()
    gone = _kill(target, first)
    yield gone
    _last(target, 0.2, 1.5 * target.session_s)
    gone += _kill(target, target.draw.choice([each for each in target.brokers if each != first]))
    _last(target, 0, 1)
    _restart(target, target.draw.sample(gone, 2))


def stop_properly(target: Target) -> Iterator[list[int]]:
    """SIGTERM, and a start."""
    broker = target.draw.choice(target.brokers)
    target.cluster.brokers[broker].stop()
    yield [broker]
    _last(target, 0, 1)
    _restart(target, [broker])


def freeze(target: Target) -> Iterator[list[int]]:
    """SIGSTOP of an original past its session, SIGCONT: a zombie."""
    broker = target.some_original()
    target.cluster.freeze(broker)
    try:
        yield [broker]
        _last(target, 1.2 * target.session_s, 2.5 * target.session_s)
    finally:
        target.cluster.thaw(broker)


def pause(target: Target) -> Iterator[list[int]]:
    """SIGSTOP for less than a session."""
    broker = target.draw.choice(target.brokers)
    target.cluster.freeze(broker)
    try:
        yield []
        _last(target, 0.05, 0.6 * target.session_s)
    finally:
        target.cluster.thaw(broker)


def part(target: Target) -> Iterator[list[int]]:
    """One broker does not reach the others; ZooKeeper it does."""
    broker = target.draw.choice(target.brokers)
    wires = [wire(broker, each) for each in target.brokers if each != broker]
    (target.wires.stall if target.draw.random() < 0.5 else target.wires.cut)(*wires)
    try:
        yield []
        _last(target, 0.2, 3)
    finally:
        target.wires.heal()


def part_pair(target: Target) -> Iterator[list[int]]:
    """Two brokers do not reach each other; all else is well."""
    a, b = target.draw.sample(target.brokers, 2)
    (target.wires.stall if target.draw.random() < 0.5 else target.wires.cut)(wire(a, b))
    try:
        yield []
        _last(target, 0.2, 3)
    finally:
        target.wires.heal()


def isolate(target: Target) -> Iterator[list[int]]:
    """An original reaches neither the others nor ZooKeeper; clients still reach it."""
    broker = target.some_original()
    ends = [each for each in target.brokers if each != broker]
    target.wires.stall(wire(broker, ZOOKEEPER), *(wire(broker, each) for each in ends))
    try:
        yield [broker]
        _last(target, 1.2 * target.session_s, 2.5 * target.session_s)
    finally:
        target.wires.heal()


def expire(target: Target) -> Iterator[list[int]]:
    """An original's session ends while it reaches everybody but ZooKeeper."""
    broker = target.some_original()
    target.wires.stall(wire(broker, ZOOKEEPER))
    try:
        yield [broker]
        _last(target, 1.2 * target.session_s, 2 * target.session_s)
    finally:
        target.wires.heal()


def zookeeper_restarts(target: Target) -> Iterator[list[int]]:
    """ZooKeeper is killed and starts again over its data."""
    server = target.cluster.server
    assert server is not None
    server.kill()
    yield []
    _last(target, 0, 1.5 * target.session_s)
    server.start()


def full_disk(target: Target) -> Iterator[list[int]]:
    """Files cannot grow any more (RLIMIT_FSIZE): the broker stops; it starts when there is room."""
    broker = target.draw.choice(target.brokers)
    sizes = [
        path.stat().st_size
        for folder in target.data(broker)
        for path in folder.iterdir()
        if path.is_file()
    ]
    process = target.cluster.brokers[broker]
    _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
    limit = max(sizes, default=0) + _ROOM_BYTES
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (limit, hard))
    yield []
    _last(target, 0.5, 2)
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (hard, hard))
    if process.is_running:
        _last(target, 0.2, 0.4)
    _restart(target, [broker])


def slow_disk(target: Target) -> Iterator[list[int]]:
    """Each fdatasync of one broker takes longer (strace puts the delay in)."""
    process = target.cluster.brokers[target.draw.choice(target.brokers)]
    order = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync"]
    order += ["-e", f"inject=fdatasync:delay_enter={SLOW_SYNC_US}", "-p", str(process.pid)]
    tracer = subprocess.Popen(order, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield []
        _last(target, 1, 3)
    finally:
        tracer.send_signal(signal.SIGINT)
        tracer.wait(10)


def flipped_bit(target: Target) -> Iterator[list[int]]:
    """A bit of what is committed is another when a killed broker comes back."""
    broker = target.draw.choice(target.brokers)
    gone = _kill(target, broker)
    yield gone
    places: list[tuple[Path, int, int]] = []
    for partition, folder in zip(sorted(target.originals), target.data(broker), strict=True):
        for path in segments(folder):
            for start, end, batch, _ in batches_of(path.read_bytes()):
                if batch.last < target.high_watermarks.get(partition, 0):
                    places.append((path, start, end))
    if places:
        path, start, end = target.draw.choice(places)
        at = target.draw.randrange(start, end)
        with path.open("r+b") as file:
            file.seek(at)
            old = file.read(1)[0]
            file.seek(at)
            file.write(bytes([old ^ (1 << target.draw.randrange(8))]))
    _last(target, 0, target.session_s)
    _restart(target, gone)


def torn_tail(target: Target) -> Iterator[list[int]]:
    """The last write of a killed broker came to the disk in part."""
    broker = target.draw.choice(target.brokers)
    gone = _kill(target, broker)
    yield gone
    for folder in target.data(broker):
        path = segments(folder)[-1]
        data = path.read_bytes()
        whole = list(batches_of(data))
        if whole:
            start, end, *_ = whole[-1]
            piece = bytearray(data[start:end])
            piece[:8] = (whole[-1][2].last + 1).to_bytes(8, "big")
            with path.open("ab") as file:
                file.write(piece[: target.draw.randrange(1, len(piece))])
    _last(target, 0, target.session_s)
    _restart(target, gone)


FAULTS: Mapping[str, tuple[Fault, int]] = {
    "kill-original": (kill_original, 6),
    "kill-secondary": (kill_secondary, 3),
    "kill-two": (kill_two, 2),
    "kill-all": (kill_all, 2),
    "stop": (stop_properly, 2),
    "freeze": (freeze, 3),
    "pause": (pause, 3),
    "part": (part, 3),
    "part-pair": (part_pair, 3),
    "isolate": (isolate, 3),
    "expire": (expire, 3),
    "zookeeper": (zookeeper_restarts, 2),
    "full-disk": (full_disk, 2),
    "slow-disk": (slow_disk, 2),
    "flipped-bit": (flipped_bit, 2),
    "torn-tail": (torn_tail, 2),
}
"""By name, with how often it is drawn."""


def usable(names: Sequence[str]) -> tuple[str, ...]:
    """These faults but for those for which this machine lacks a tool."""
    return tuple(each for each in names if each != "slow-disk" or shutil.which("strace"))


def drawn(draw: Random, names: Sequence[str]) -> str:
    """Draw a fault by its weight."""
    return draw.choices(names, [FAULTS[each][1] for each in names])[0]


@contextmanager
def befalling(name: str, target: Target) -> Iterator[list[int]]:
    """Within: the fault has begun.  At the end it is undone."""
    steps = FAULTS[name][0](target)
    gone = next(steps)
    try:
        yield gone
    finally:
        assert next(steps, None) is None
