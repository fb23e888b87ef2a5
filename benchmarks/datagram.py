"""Datagram transports: our endpoint beside asyncio's own datagram transport and a blocking socket.

One publisher process and S subscriber processes on loopback, 64-byte messages.  `flood`: as fast as
the publisher can.  `paced`: a few hundred messages a second, for the one-way delay (one machine,
one clock).  CPU time per message is the steady figure on a busy machine.
"""

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
from checker import Stream, problems, refuse

from orderwire.aio.endpoint import Endpoint, EndpointSettings
from orderwire.kernel import ProcessId

MESSAGE_BYTES = 64
HEAD = struct.Struct("<QQ")
END = (1 << 64) - 1
SOCKET_BUFFER_BYTES = 4 << 20
PACED_RATE = 500
CHUNK = 64
ENDS_MAX = 1_000
"""How often the end is told: a flooded receiver loses some."""


class Sink:
    """Counts what comes: one Python call per message, as an application would."""

    def __init__(self) -> None:
        self.count = 0
        self.first = 0
        self.last = 0
        self.delays: list[int] = []
        self.ended = False
        self.stream = Stream()
        self._got = self.stream.got

    def __call__(self, message: bytes | memoryview) -> None:
        number, sent = HEAD.unpack_from(message)
        if number == END:
            self.ended = True
            return
        self._got(number)
        if sent:
            self.delays.append(time.monotonic_ns() - sent)
        elif not self.count & 255:
            self.last = time.monotonic_ns()
            self.first = self.first or self.last
        self.count += 1

    def result(self, cpu_s: float) -> dict[str, Any]:
        wall_s = (self.last - self.first) / 1e9
        delays = sorted(self.delays)
        return {
            "count": self.count,
            "rate": round((self.count - 1) // 256 * 256 / wall_s) if wall_s > 0 else None,
            "cpu_s": cpu_s,
            "p50_us": delays[len(delays) // 2] / 1e3 if delays else None,
            "p99_us": delays[len(delays) * 99 // 100] / 1e3 if delays else None,
            "stream": self.stream.told(),
        }


def message(number: int, sent: int = 0) -> bytes:
    return HEAD.pack(number, sent) + bytes(MESSAGE_BYTES - HEAD.size)


def done(count: int, cpu_s: float) -> None:
    print(json.dumps({"count": count, "cpu_s": cpu_s}), flush=True)


def ready(port: int) -> float:
    print(json.dumps({"port": port}), flush=True)
    return time.process_time()


def finish(sink: Sink, started: float) -> None:
    print(json.dumps(sink.result(time.process_time() - started)), flush=True)


# A blocking socket, a datagram each.


def blocking_receive(_: argparse.Namespace) -> None:
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    udp.bind(("127.0.0.1", 0))
    buffer = bytearray(1 << 16)
    view = memoryview(buffer)
    sink = Sink()
    started = ready(udp.getsockname()[1])
    while not sink.ended:
        sink(view[: udp.recv_into(buffer)])
    finish(sink, started)


def blocking_send(options: argparse.Namespace) -> None:
    sockets = []
    for port in options.ports:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BUFFER_BYTES)
        udp.connect(("127.0.0.1", port))
        sockets.append(udp)

    def send(data: bytes) -> None:
        for udp in sockets:
            udp.send(data)

    started = time.process_time()
    count = 0
    if options.load == "flood":
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            for _ in range(CHUNK):
                send(message(count))
                count += 1
    else:
        count = paced(options, send, time.sleep)
    done(count, time.process_time() - started)
    with contextlib.suppress(ConnectionRefusedError):  # they have got it and left
        for _ in range(ENDS_MAX):
            time.sleep(0.02)
            send(message(END))


def paced(
    options: argparse.Namespace, send: Callable[[bytes], None], sleep: Callable[[float], None]
) -> int:
    begin = time.monotonic_ns()
    count = round(options.seconds * PACED_RATE)
    for number in range(count):
        while (wait := begin + number * 1_000_000_000 // PACED_RATE - time.monotonic_ns()) > 0:
            sleep(wait / 1e9)
        send(message(number, time.monotonic_ns()))
    return count


# asyncio's own datagram transport.


class Protocol(asyncio.DatagramProtocol):
    def __init__(self, sink: Sink, done: asyncio.Future[None]) -> None:
        self.sink = sink
        self.done = done

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.sink(data)
        if self.sink.ended and not self.done.done():
            self.done.set_result(None)


async def asyncio_receive(_: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    sink, done = Sink(), loop.create_future()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BUFFER_BYTES)
    udp.setblocking(False)
    udp.bind(("127.0.0.1", 0))
    await loop.create_datagram_endpoint(lambda: Protocol(sink, done), sock=udp)
    started = ready(udp.getsockname()[1])
    await done
    finish(sink, started)


async def asyncio_send(options: argparse.Namespace) -> None:
    loop = asyncio.get_running_loop()
    transports = []
    for port in options.ports:
        transport, _ = await loop.create_datagram_endpoint(
            asyncio.DatagramProtocol, remote_addr=("127.0.0.1", port)
        )
        transports.append(transport)

    def send(data: bytes) -> None:
        for transport in transports:
            transport.sendto(data)

    await drive(options, send, lambda: asyncio.sleep(0), lambda: asyncio.sleep(0.3))


async def drive(
    options: argparse.Namespace,
    send: Callable[[bytes], None],
    breathe: Callable[[], Any],
    drain: Callable[[], Any],
) -> None:
    started = time.process_time()
    count = 0
    if options.load == "flood":
        end = time.monotonic() + options.seconds
        while time.monotonic() < end:
            for _ in range(CHUNK):
                send(message(count))
                count += 1
            await breathe()
    else:
        begin = time.monotonic_ns()
        total = round(options.seconds * PACED_RATE)
        while count < total:
            while (wait := begin + count * 1_000_000_000 // PACED_RATE - time.monotonic_ns()) > 0:
                await asyncio.sleep(wait / 1e9)
            send(message(count, time.monotonic_ns()))
            count += 1
    await drain()
    done(count, time.process_time() - started)
    for _ in range(ENDS_MAX):  # until all have got it and we are ended
        send(message(END))
        await asyncio.sleep(0.02)


# Ours: the endpoint and a channel that loses nothing.


async def ours_receive(options: argparse.Namespace) -> None:
    done = asyncio.get_running_loop().create_future()
    me, publisher = ProcessId(options.index), ProcessId(0)
    sink = Sink()
    settings = EndpointSettings(
        offload=options.transport != "ours-plain", datagram_bytes_max=options.datagram_bytes
    )
    endpoint = await Endpoint.open(me, {me: ("127.0.0.1", 0)}, settings=settings)
    channel = endpoint.channel(1)

    def settled() -> None:
        if sink.ended and not done.done():
            done.set_result(None)

    channel.attach(lambda _source, data, _arrived: sink(data), lambda *_: None, settled)
    started = ready(endpoint.address[1])
    await endpoint.add_peer(publisher, ("127.0.0.1", int(sys.stdin.readline())))
    await done
    finish(sink, started)
    await asyncio.sleep(0.1)
    await endpoint.close()


async def ours_send(options: argparse.Namespace) -> None:
    me = ProcessId(0)
    settings = EndpointSettings(
        offload=options.transport != "ours-plain", datagram_bytes_max=options.datagram_bytes
    )
    endpoint = await Endpoint.open(me, {me: ("127.0.0.1", 0)}, settings=settings)
    channel = endpoint.channel(1)
    for index, port in enumerate(options.ports, start=1):
        await endpoint.add_peer(ProcessId(index), ("127.0.0.1", port))
    print(json.dumps({"port": endpoint.address[1]}), flush=True)
    sys.stdin.readline()
    async with asyncio.timeout(10):
        while not all(endpoint.is_connected(peer) for peer in endpoint.peers):
            await asyncio.sleep(0.01)

    async def breathe() -> None:
        await asyncio.sleep(0)
        if channel.full:
            await channel.drain()

    await drive(options, channel.broadcast, breathe, lambda: channel.drain(empty=True))
    await endpoint.close()


TRANSPORTS = {
    "blocking": (blocking_send, blocking_receive),
    "asyncio": (asyncio_send, asyncio_receive),
    "asyncio-uvloop": (asyncio_send, asyncio_receive),
    "ours": (ours_send, ours_receive),
    "ours-uvloop": (ours_send, ours_receive),
    "ours-1472": (ours_send, ours_receive),
    "ours-1472-plain": (ours_send, ours_receive),
}


def role(options: argparse.Namespace) -> None:
    """Be one of the processes."""
    name = options.transport
    uses_uvloop = name.endswith("uvloop")
    options.datagram_bytes = 1472 if "1472" in name else None
    if name.endswith("plain"):
        options.transport = "ours-plain"
    work = TRANSPORTS[name][0 if options.role == "send" else 1](options)
    if not asyncio.iscoroutine(work):
        return
    if uses_uvloop:
        import uvloop

        uvloop.run(work)
    else:
        asyncio.run(work)


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(
        command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent
    )


def read(process: "subprocess.Popen[str]") -> Any:
    assert process.stdout is not None
    return json.loads(process.stdout.readline())


def tell(process: "subprocess.Popen[str]", line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def run(transport: str, load: str, subscribers: int, seconds: float) -> dict[str, Any]:
    """Run one transport once."""
    common = ["--transport", transport, "--load", load, "--seconds", str(seconds)]
    receivers = [
        start("--role", "receive", "--index", str(index + 1), *common)
        for index in range(subscribers)
    ]
    sender = None
    try:
        ports = [str(read(each)["port"]) for each in receivers]
        sender = start("--role", "send", *common, "--ports", *ports)
        if transport.startswith("ours"):
            port = read(sender)["port"]
            for each in receivers:
                tell(each, str(port))
            tell(sender, "go")
        sent = read(sender)
        got = [read(each) for each in receivers]
    finally:
        for each in [*receivers, *([sender] if sender else [])]:
            each.kill()
            each.wait()
            for pipe in (each.stdin, each.stdout):
                assert pipe is not None
                pipe.close()
    if transport.startswith("ours"):  # it loses nothing; order is what lies above it
        for index, each in enumerate(got):
            found = problems(each["stream"], sent["count"], ordered=False)
            refuse(f"{transport} {load}, subscriber {index + 1}", found)
    received = statistics.mean(each["count"] for each in got)
    result = {
        "rate": statistics.median(each["rate"] or 0 for each in got),
        "lost_ratio": round(1 - received / max(1, sent["count"]), 4),
        "sender_cpu_us": round(1e6 * sent["cpu_s"] / max(1, sent["count"]), 3),
        "receiver_cpu_us": round(
            1e6 * statistics.mean(each["cpu_s"] for each in got) / max(1, received), 3
        ),
    }
    if load == "paced":
        result = {
            name: round(statistics.median(each[name] for each in got), 1)
            for name in ("p50_us", "p99_us")
        } | {"lost_ratio": result["lost_ratio"]}
    return result


def median_of(rounds: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: round(statistics.median(each[name] for each in rounds), 4) for name in rounds[0]}


def main() -> None:
    parser = harness.arguments(__doc__, repeats=3)
    parser.add_argument("--role", choices=["send", "receive"])
    parser.add_argument("--transport", choices=sorted(TRANSPORTS))
    parser.add_argument("--load", choices=["flood", "paced"])
    parser.add_argument("--index", type=int, default=0)
    parser.add_argument("--ports", type=int, nargs="*", default=[])
    parser.add_argument("--seconds", type=float, default=1.5)
    options = parser.parse_args()
    if options.role:
        role(options)
        return
    seconds = 0.5 if options.quick else options.seconds
    names = [options.transport] if options.transport else list(TRANSPORTS)
    results: dict[str, dict[str, Any]] = {name: {} for name in names}
    for subscribers in (1, 8):
        for load in ("flood", "paced"):
            rounds: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            for _ in range(options.repeats):
                for name in names:
                    rounds[name].append(run(name, load, subscribers, seconds))
            for name in names:
                results[name][f"{load}-{subscribers}"] = median_of(rounds[name])
                print(
                    name, load, subscribers, results[name][f"{load}-{subscribers}"], file=sys.stderr
                )
    ours = {name: each for name, each in results.items() if name.startswith("ours")}
    rivals = {name: each for name, each in results.items() if not name.startswith("ours")}
    ratios = {
        f"rate of ours over {name}, {case}": round(
            results["ours"][case]["rate"] / max(1, rivals[name][case]["rate"]), 2
        )
        for name in rivals
        for case in ("flood-1", "flood-8")
        if "ours" in results
    }
    harness.report(
        "datagram",
        ours=ours,
        rivals=rivals,
        ratios=ratios,
        repeats=options.repeats,
        as_json=options.json,
    )


if __name__ == "__main__":
    main()
