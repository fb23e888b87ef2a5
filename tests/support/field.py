"""Members in processes of their own, told what to do: see `field_member.py`."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from loopback import free_members

from orderwire import Order

SCRIPT = Path(__file__).with_name("field_member.py")
LINE_BYTES_MAX = 16 << 20


def percentile(values: Sequence[float], percent: int) -> float:
    """Return the value below which so many percent of them are."""
    return sorted(values)[min(len(values) - 1, len(values) * percent // 100)]


class Told(msgspec.Struct):
    """What a member says of itself."""

    counters: dict[str, int]
    readers: dict[str, dict[str, int]]
    heard: dict[str, list[tuple[str, int, int, int]]]
    """Topic → (source, number, delay until delivery, age when handed over) of each sample, ns."""
    drops: list[dict[str, Any]]
    connected: list[str]

    def dropped(self, reason: str) -> int:
        """How many drops of this reason were told."""
        return sum(each["count"] for each in self.drops if each["reason"] == reason)


class Field:
    """One member."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process

    def say(self, do: str, order: Order | None = None, **what: Any) -> None:
        """Give a command and do not wait."""
        assert self.process.stdin is not None
        what |= {"do": do} | ({"order": msgspec.json.encode(order).decode()} if order else {})
        self.process.stdin.write(json.dumps(what).encode() + b"\n")

    async def answer(self) -> Any:
        """Wait until the first command that was not answered is."""
        assert self.process.stdout is not None
        line = await self.process.stdout.readline()
        assert line, "the member has ended"
        return json.loads(line)

    async def do(self, do: str, order: Order | None = None, **what: Any) -> Any:
        """Give a command and wait until it is done."""
        self.say(do, order, **what)
        return await self.answer()

    async def tell(self) -> Told:
        """Ask what was counted and heard."""
        return msgspec.convert(await self.do("tell"), Told)


async def start(
    stack: AsyncExitStack,
    me: str,
    members: dict[str, str],
    *,
    runtime: Path | None = None,
    **more: Any,
) -> Field:
    """Start a member that is killed at the end; `runtime` is its user's runtime folder."""
    pipe = asyncio.subprocess.PIPE
    settings = json.dumps({"me": me, "members": members, **more})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(SCRIPT),
        settings,
        stdin=pipe,
        stdout=pipe,
        limit=LINE_BYTES_MAX,
        env=os.environ | ({"XDG_RUNTIME_DIR": str(runtime)} if runtime else {}),
    )

    async def end() -> None:
        if process.returncode is None:
            process.kill()
        await process.communicate()

    stack.push_async_callback(end)
    return Field(process)


@asynccontextmanager
async def field(*names: str, **more: Any) -> AsyncIterator[list[Field]]:
    """Start members that know each other."""
    members = free_members(*names)
    async with AsyncExitStack() as stack:
        yield [await start(stack, name, members, **more) for name in names]
