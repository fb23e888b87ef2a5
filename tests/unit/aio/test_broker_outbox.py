"""The outbox of a broker's connection: memory and files in one order, never blocking."""

import asyncio
import errno
import os
import socket
from pathlib import Path
from random import Random

import pytest

from orderwire.aio import broker_outbox as module
from orderwire.aio.broker_outbox import FileCut, Outbox
from orderwire.broker.wire.parts import FileSlice, Part

pytestmark = pytest.mark.network


class Pipe:
    """An outbox on one end of a socket pair, and what arrives at the other."""

    def __init__(self) -> None:
        self.near, self.far = socket.socketpair()
        for end in (self.near, self.far):
            end.setblocking(False)
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8_192)
        self.errors: list[OSError] = []
        self.progress = 0
        loop = asyncio.get_running_loop()
        self.outbox = Outbox(loop, self.near.fileno(), sent=self._sent, broken=self.errors.append)

    def _sent(self) -> None:
        self.progress += 1

    async def receive(self, size: int) -> bytes:
        loop = asyncio.get_running_loop()
        data = bytearray()
        async with asyncio.timeout(20):
            while len(data) < size:
                data += await loop.sock_recv(self.far, min(size - len(data), 65_536))
        return bytes(data)

    def close(self) -> None:
        self.outbox.close()
        self.near.close()
        self.far.close()


def parts_of(chance: Random, path: Path) -> tuple[list[Part], bytes]:
    content = chance.randbytes(400_000)
    path.write_bytes(content)
    file = os.open(path, os.O_RDONLY)
    parts: list[Part] = []
    expected = b""
    for _ in range(60):
        size = chance.choice([0, 1, 100, 5_000, 40_000, 90_000])
        at = chance.randrange(len(content) - size)
        piece = content[at : at + size]
        parts.append(FileSlice(file, at, size) if chance.random() < 0.5 else piece)
        expected += piece
    return parts, expected


@pytest.mark.parametrize("sendfile", [True, False])
@pytest.mark.parametrize("seed", range(3))
def test_memory_and_files_arrive_in_order(
    seed: int, sendfile: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: object) -> int:
        raise OSError(errno.EINVAL, "not for this file system")

    if not sendfile:
        monkeypatch.setattr(module.os, "sendfile", unsupported)

    async def run() -> None:
        chance = Random(seed)
        parts, expected = parts_of(chance, tmp_path / "data")
        pipe = Pipe()
        at = 0
        while at < len(parts):
            count = chance.randint(1, 10)
            pipe.outbox.send(parts[at : at + count])
            at += count
        assert pipe.outbox.backlog_bytes > 0
        assert await pipe.receive(len(expected)) == expected
        assert pipe.outbox.backlog_bytes == 0
        assert pipe.progress > 0
        assert pipe.errors == []
        pipe.close()

    asyncio.run(run())


def test_file_that_was_cut_breaks_the_connection(tmp_path: Path) -> None:
    async def run(size: int) -> None:
        path = tmp_path / "data"
        path.write_bytes(bytes(size // 2))
        file = os.open(path, os.O_RDONLY)
        pipe = Pipe()
        pipe.outbox.send([FileSlice(file, 0, size)])
        async with asyncio.timeout(20):
            while not pipe.errors:
                await asyncio.sleep(0)
                try:
                    pipe.far.recv(65_536)
                except BlockingIOError:
                    continue
        assert isinstance(pipe.errors[0], FileCut)
        os.close(file)
        pipe.close()

    asyncio.run(run(20_000))
    asyncio.run(run(200_000))


def test_peer_that_is_gone_breaks_the_connection() -> None:
    async def run() -> None:
        pipe = Pipe()
        pipe.far.close()
        pipe.outbox.send([bytes(100)])
        assert [error.errno for error in pipe.errors] == [errno.EPIPE]
        pipe.outbox.send([b"more"])
        assert len(pipe.errors) == 1
        pipe.close()

    asyncio.run(run())
