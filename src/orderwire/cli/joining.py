"""What `participant`, `record` and `replay` share: joining a group from the command line."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from orderwire.cli.output import EXIT_FAILED
from orderwire.kernel import OrderwireError
from orderwire.participant import DeltaCausal, Fifo, Order, Participant, Trace, Unordered

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

ORDERS = ("delta-causal", "fifo", "unordered")
DELTA_CAUSAL_LIFETIME_MS = 250


def member_options(function: FunctionT) -> FunctionT:
    """Add the options that say who we are and who the others are."""
    for option in reversed(
        (
            click.option("--me", required=True, metavar="NAME", help="Which member we are."),
            click.option(
                "--member",
                "members",
                required=True,
                multiple=True,
                metavar="NAME=HOST:PORT",
                help="A member and its address; give every member, ourselves included.",
            ),
            click.option(
                "--insecure", is_flag=True, help="Listen on an address that others can reach."
            ),
            click.option(
                "--trace", "trace_path", metavar="FOLDER", help="Write our trace into this folder."
            ),
            click.option("--run", default="run", show_default=True, help="The trace's run."),
        )
    ):
        function = option(function)
    return function


def order_options(default: str | None) -> Callable[[FunctionT], FunctionT]:
    """Add the options that say the order; without a default, it may be left out."""

    def add(function: FunctionT) -> FunctionT:
        for option in reversed(
            (
                click.option(
                    "--order",
                    "order_name",
                    type=click.Choice(ORDERS),
                    default=default,
                    show_default=default is not None,
                    help="What readers are promised; all members name the same.",
                ),
                click.option(
                    "--lifetime-ms",
                    type=float,
                    metavar="Δ",
                    help="Drop what is older than this; delta-causal:"
                    f" {DELTA_CAUSAL_LIFETIME_MS} if not given.",
                ),
                click.option("--domain", default="", help="Name of the ordering domain."),
            )
        ):
            function = option(function)
        return function

    return add


def make_order(order_name: str, lifetime_ms: float | None, domain: str) -> Order:
    """Return the order of the options."""
    match order_name:
        case "delta-causal":
            lifetime = DELTA_CAUSAL_LIFETIME_MS if lifetime_ms is None else lifetime_ms
            return DeltaCausal(lifetime_ms=lifetime, domain=domain)
        case "fifo":
            return Fifo(lifetime_ms=lifetime_ms, domain=domain)
        case _:
            return Unordered(lifetime_ms=lifetime_ms, domain=domain)


def make_participant(
    me: str, members: tuple[str, ...], insecure: bool, trace_path: str | None, run: str
) -> Participant:
    """Return the participant of the options, not open yet."""
    addresses: dict[str, str] = {}
    for member in members:
        name, equals, address = member.partition("=")
        if not equals:
            raise click.UsageError(f"--member {member!r}: write NAME=HOST:PORT")
        if name in addresses:
            raise click.UsageError(f"--member {name!r} is given twice")
        addresses[name] = address
    trace = Trace(run=run, path=trace_path) if trace_path is not None else None
    return Participant(me, members=addresses, insecure=insecure, trace=trace)


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
