"""One member of the ordering probe, through the public API: publishes, answers, writes a log.

`order_node.py i n seconds interval_ms own_ip hub_ip out_file [--order NAME] [--lifetime-ms MS]`,
the arguments that the harness fills in.  It says `ready`, reads the start instant (CLOCK_MONOTONIC,
ns) from standard input, publishes for so many seconds, one member answering each message, and after
one more line writes a JSON list: `["s", seq, t]` for what it sent, `["d", sender, seq,
cause_sender, cause_seq, t]` for what it was given.

`--order selective-total` is a totally ordered group, whose relay member 0 starts beside itself.
Rivals: `pysyncobj`, Raft, whose members replicate one log of all messages; `cpg`, Corosync's closed
process groups, agreed order; `nats`, one server.

With `--flood COUNT --size BYTES` it writes so many messages as fast as it is let instead, and the
file says when it began, when it had been given everything, and in which order.
"""

import argparse
import asyncio
import contextlib
import ctypes
import json
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from orderwire import (
    DeltaCausal,
    Fifo,
    Order,
    Participant,
    Published,
    Topic,
    TotalGroup,
    TotalGroupSettings,
    Unordered,
)
from orderwire.aio.total_relay import ChannelRelay, RelaySettings

PORT = 7_800
RELAY_PORT = 7_801
NO_CAUSE = (-1, -1)


def order_of(name: str, lifetime_ms: float) -> Order:
    """Return the order that this name of the catalog stands for."""
    if name == "fifo":
        return Fifo(lifetime_ms=lifetime_ms)
    if name == "unordered":
        return Unordered(lifetime_ms=lifetime_ms)
    if name == "bounded-jang":
        return DeltaCausal(lifetime_ms=lifetime_ms)
    return Published(algorithm=name, lifetime_ms=lifetime_ms)


class Member:
    """What one member sends and is given."""

    def __init__(self, me: int, members: int) -> None:
        self.me = me
        self.members = members
        self.log: list[tuple[Any, ...]] = []
        self.sent = 0
        self.write: Any = None

    def publish(self, cause: tuple[int, int] = NO_CAUSE) -> None:
        """Send the next message."""
        number = self.sent
        self.sent += 1
        self.log.append(("s", number, time.monotonic()))
        self.write(json.dumps([self.me, number, *cause]).encode())

    def take(self, data: bytes) -> None:
        """Take what was delivered; one member answers each message."""
        sender, number, cause_sender, cause_number = json.loads(data)
        now = time.monotonic()
        self.log.append(("d", sender, number, cause_sender, cause_number, now))
        if sender != self.me and cause_sender < 0 and (sender + number) % self.members == self.me:
            self.publish((sender, number))


def addresses(options: argparse.Namespace) -> list[str]:
    """Where each member is."""
    network = options.own_ip.rpartition(".")[0]
    return [f"{network}.{each + 1}" for each in range(options.members)]


@contextlib.asynccontextmanager
async def participant(options: argparse.Namespace, member: Member) -> AsyncIterator[None]:
    """Take part with a topic of the family of causal orders."""
    hosts = {str(each): f"{host}:{PORT}" for each, host in enumerate(addresses(options))}
    topic = Topic("t", order=order_of(options.order, options.lifetime_ms))
    async with Participant(
        str(options.me), members=hosts, insecure=True, restarted=False
    ) as taking_part:
        taking_part.reader(topic, callback=lambda sample: member.take(sample.data))
        writer = taking_part.writer(topic)
        member.write = writer.write
        await writer.wait_matched(options.members, timeout_s=30)
        yield


@contextlib.asynccontextmanager
async def total_group(options: argparse.Namespace, member: Member) -> AsyncIterator[None]:
    """Take part in a totally ordered group."""
    where = (addresses(options)[0], RELAY_PORT)
    relay = None
    if options.me == 0:
        relay = await ChannelRelay.open(where, RelaySettings())
    group = await TotalGroup.join(
        f"{where[0]}:{RELAY_PORT}",
        me=options.me,
        members=options.members,
        bind=options.own_ip,
        settings=TotalGroupSettings(insecure=True),
    )
    waiting: asyncio.Queue[bytes] = asyncio.Queue()
    member.write = waiting.put_nowait

    async def write() -> None:
        while True:
            await group.write(await waiting.get())

    async def read() -> None:
        async for message in group:
            member.take(message.payload)

    tasks = [asyncio.create_task(write()), asyncio.create_task(read())]
    yield
    for task in tasks:
        task.cancel()
    await group.close()
    if relay is not None:
        await relay.close()


@contextlib.asynccontextmanager
async def raft(options: argparse.Namespace, member: Member) -> AsyncIterator[None]:
    """Replicate a log with PySyncObj, in its own thread."""
    from pysyncobj import SyncObj, SyncObjConf, replicated

    loop = asyncio.get_running_loop()
    hosts = [f"{host}:{PORT}" for host in addresses(options)]

    class Log(SyncObj):  # type: ignore[misc]
        @replicated  # type: ignore[untyped-decorator]
        def append(self, data: bytes) -> None:
            loop.call_soon_threadsafe(member.take, data)

    settings = SyncObjConf(
        commandsQueueSize=1_000_000,
        appendEntriesPeriod=0.01,
        autoTickPeriod=0.001,  # its own, 50 ms, would be most of the delay
        # A member that lags would get a snapshot instead of messages: they would count as lost.
        logCompactionMinEntries=10**9,
        logCompactionMinTime=10**9,
    )
    log = Log(hosts[options.me], [each for each in hosts if each != hosts[options.me]], settings)
    while not log.isReady():
        await asyncio.sleep(0.05)
    member.write = log.append
    yield
    log.destroy()


@contextlib.asynccontextmanager
async def closed_process_group(options: argparse.Namespace, member: Member) -> AsyncIterator[None]:
    """Join a group of Corosync, through libcpg."""
    library = ctypes.CDLL("libcpg.so.4")
    loop = asyncio.get_running_loop()

    class Name(ctypes.Structure):
        _fields_ = (("length", ctypes.c_uint32), ("value", ctypes.c_char * 128))

    class Part(ctypes.Structure):
        _fields_ = (("base", ctypes.c_char_p), ("size", ctypes.c_size_t))

    deliver = ctypes.CFUNCTYPE(
        None,
        ctypes.c_uint64,
        ctypes.POINTER(Name),
        ctypes.c_uint32,
        ctypes.c_uint32,
        ctypes.c_void_p,
        ctypes.c_size_t,
    )

    class Callbacks(ctypes.Structure):
        _fields_ = (("deliver", deliver), ("change", ctypes.c_void_p))

    def delivered(handle: int, group: Any, node: int, pid: int, data: int, size: int) -> None:
        member.take(ctypes.string_at(data, size))

    callbacks = Callbacks(deliver(delivered), None)
    handle = ctypes.c_uint64()
    while library.cpg_initialize(ctypes.byref(handle), ctypes.byref(callbacks)) != CPG_OK:
        await asyncio.sleep(0.2)
    group = Name(1, b"t")
    assert library.cpg_join(handle, ctypes.byref(group)) == CPG_OK
    socket = ctypes.c_int()
    assert library.cpg_fd_get(handle, ctypes.byref(socket)) == CPG_OK
    loop.add_reader(socket.value, lambda: library.cpg_dispatch(handle, CPG_ALL))
    waiting: asyncio.Queue[bytes] = asyncio.Queue()
    member.write = waiting.put_nowait

    async def write() -> None:
        while True:
            data = await waiting.get()
            part = Part(data, len(data))
            while library.cpg_mcast_joined(handle, CPG_AGREED, ctypes.byref(part), 1) != CPG_OK:
                await asyncio.sleep(0.001)

    task = asyncio.create_task(write())
    yield
    task.cancel()
    loop.remove_reader(socket.value)
    library.cpg_finalize(handle)


@contextlib.asynccontextmanager
async def nats_server(options: argparse.Namespace, member: Member) -> AsyncIterator[None]:
    """Publish and subscribe at one NATS server."""
    import nats

    client = await nats.connect(f"nats://{options.hub_ip}:4222")

    async def heard(message: Any) -> None:
        member.take(message.data)

    await client.subscribe("t", cb=heard, pending_msgs_limit=-1, pending_bytes_limit=-1)
    await client.flush()
    waiting: asyncio.Queue[bytes] = asyncio.Queue()
    member.write = waiting.put_nowait

    async def write() -> None:
        while True:
            await client.publish("t", await waiting.get())

    task = asyncio.create_task(write())
    yield
    task.cancel()
    await client.close()


CPG_OK, CPG_ALL, CPG_AGREED = 1, 2, 2
"""Corosync's CS_OK, CS_DISPATCH_ALL and CPG_TYPE_AGREED."""
SYSTEMS = {
    "selective-total": total_group,
    "pysyncobj": raft,
    "cpg": closed_process_group,
    "nats": nats_server,
}
"""What is not an order of the causal family."""


async def line() -> str:
    """Return the next line of standard input."""
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)


async def flood(options: argparse.Namespace, member: Member) -> None:
    """Write as fast as it is let; wait for everything."""
    order: list[int] = []
    everything = asyncio.Event()
    total = options.flood * options.members
    loop = asyncio.get_running_loop()

    def take(data: bytes) -> None:
        order.append(int.from_bytes(data[:8], "big"))
        if len(order) == total:
            loop.call_soon_threadsafe(everything.set)

    member.take = take  # type: ignore[method-assign]
    rest = bytes(options.size - 8)
    async with SYSTEMS[options.order](options, member):
        await asyncio.sleep(0.5)
        print("ready", flush=True)
        start = int(await line()) / 1e9
        await asyncio.sleep(max(0.0, start - time.monotonic()))
        began = time.monotonic()
        for number in range(options.flood):
            member.write((options.me << 32 | number).to_bytes(8, "big") + rest)
            if not number % 100:
                await asyncio.sleep(0)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(everything.wait(), options.seconds)
        told = {"began": began, "ended": time.monotonic(), "order": order}
        Path(options.out_file).write_text(json.dumps(told), encoding="utf-8")
        print("done", flush=True)
        await line()


async def live(options: argparse.Namespace) -> None:
    """Be one member."""
    member = Member(options.me, options.members)
    if options.flood:
        await flood(options, member)
        return
    async with SYSTEMS.get(options.order, participant)(options, member):
        await asyncio.sleep(0.5)
        print("ready", flush=True)
        start = int(await line()) / 1e9
        turn = 0
        while (now := time.monotonic()) < start + options.seconds:
            if now >= start + turn * options.interval_ms / 1e3:
                member.publish()
                turn += 1
            due = start + turn * options.interval_ms / 1e3
            await asyncio.sleep(max(0.0, due - time.monotonic()))
        await line()
        Path(options.out_file).write_text(json.dumps(member.log), encoding="utf-8")
        print("done", flush=True)


def main() -> None:
    """Read the arguments of the harness."""
    parser = argparse.ArgumentParser(description="one member of the ordering probe")
    parser.add_argument("me", type=int)
    parser.add_argument("members", type=int)
    parser.add_argument("seconds", type=float)
    parser.add_argument("interval_ms", type=float)
    parser.add_argument("own_ip")
    parser.add_argument("hub_ip")
    parser.add_argument("out_file")
    parser.add_argument("--order", default="bounded-jang", help="name in the catalog")
    parser.add_argument("--lifetime-ms", type=float, default=1_000.0)
    parser.add_argument("--flood", type=int, default=0, help="messages of this member")
    parser.add_argument("--size", type=int, default=200)
    asyncio.run(live(parser.parse_args()))


if __name__ == "__main__":
    main()
