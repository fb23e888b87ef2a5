"""Running until the work is done, Ctrl-C or SIGTERM."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import click

from orderwire.cli.output import EXIT_FAILED
from orderwire.kernel import OrderwireError


def run_until_stopped(work: Callable[[asyncio.Event], Coroutine[Any, Any, int]]) -> None:
    """Run `work(stop)` and exit with its status; Ctrl-C or SIGTERM set `stop`, twice kills.

    What was used wrongly is told as a usage error, what the system refuses as a failure.
    """

    async def run() -> int:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def on_signal() -> None:
            stop.set()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, on_signal)
        return await work(stop)

    try:
        status = asyncio.run(run())
    except OrderwireError as error:
        raise click.UsageError(str(error)) from None
    except (OSError, TimeoutError) as error:
        click.echo(f"error: {error}", err=True)
        status = EXIT_FAILED
    except KeyboardInterrupt:
        status = 130
    raise SystemExit(status)


def end_with_input(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    """Set `stop` once whoever keeps our standard input open has closed it, or has ended."""

    def ended() -> None:
        loop.remove_reader(sys.stdin.fileno())
        stop.set()

    loop.add_reader(sys.stdin.fileno(), ended)


async def first_of(*waits: Coroutine[Any, Any, Any]) -> None:
    """Return when the first of these has ended, and end the others.  Raises what it raised."""
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*tasks, return_exceptions=True)
