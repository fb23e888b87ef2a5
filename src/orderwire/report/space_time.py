"""A violation as a space–time diagram: who sent what, how it was known, who was told too early."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from matplotlib.figure import Figure

from orderwire.kernel import NS_PER_MS
from orderwire.report.style import ALARM, GREY, INK, ORDERED, styled
from orderwire.trace.events import Event, EventKind

MESSAGES_MAX = 12
"""A diagram with more arrows than this cannot be read; the chain's middle is left out."""


class MessageKey(NamedTuple):
    """A message: its sender and the sender's own send number."""

    source: int
    number: int

    def __str__(self) -> str:
        return f"m{self.source}.{self.number}"


class Inversion(NamedTuple):
    """At `process`, `second` was delivered although `first`, in its causal past, came later."""

    process: int
    first: MessageKey
    second: MessageKey


def _key(event: Event) -> MessageKey:
    return MessageKey(event.source, event.number)


def causal_chain(
    events: Sequence[Event], first: MessageKey, second: MessageKey
) -> list[MessageKey]:
    """Return the messages that carried knowledge of `first` to the sender of `second`.

    Both ends are in.  `events`: send and deliver events, ascending in time.  Empty when `first`
    does not happen before `second` in them.
    """
    known: dict[int, list[MessageKey]] = {}
    carried: dict[MessageKey, list[MessageKey]] = {}
    for event in events:
        if event.kind is EventKind.SEND:
            key = _key(event)
            if key == first:
                known.setdefault(event.process, [])
                carried[key] = [first]
            elif event.process in known:
                chain = known[event.process]
                path = [*chain, key] if chain else [first, key]
                if key == second:
                    return path
                carried[key] = path
        elif event.kind is EventKind.DELIVER and event.process not in known:
            arrived = carried.get(_key(event))
            if arrived is not None:
                known[event.process] = arrived
    return []


def space_time_figure(
    events: Iterable[Event], inversion: Inversion, names: Sequence[str]
) -> Figure:
    """Draw the two messages of an inversion and the chain between them.

    `events` must hold their sends and deliveries.  `names`: one per process id.
    """
    ordered = sorted(
        (e for e in events if e.kind in (EventKind.SEND, EventKind.DELIVER)),
        key=lambda e: (e.time_ns, e.kind is EventKind.DELIVER, e.process, e.position),
    )
    chain = causal_chain(ordered, inversion.first, inversion.second)
    if len(chain) > MESSAGES_MAX:
        chain = [*chain[: MESSAGES_MAX // 2], *chain[-MESSAGES_MAX // 2 :]]
    shown = set(chain) | {inversion.first, inversion.second}
    sends = {_key(e): e for e in ordered if e.kind is EventKind.SEND and _key(e) in shown}
    if inversion.first not in sends or inversion.second not in sends:
        raise ValueError(f"no send of {inversion.first} or {inversion.second} among the events")
    deliveries = [e for e in ordered if e.kind is EventKind.DELIVER and _key(e) in shown]
    links = {
        (chain[i], sends[chain[i + 1]].process)
        for i in range(len(chain) - 1)
        if chain[i + 1] in sends
    }
    drawn = [
        e for e in deliveries if e.process == inversion.process or (_key(e), e.process) in links
    ]
    processes = sorted(
        {e.process for e in drawn} | {e.process for e in sends.values()} | {inversion.process}
    )
    row = {process: len(processes) - 1 - at for at, process in enumerate(processes)}
    origin = min(e.time_ns for e in sends.values())

    def x(time_ns: int) -> float:
        return (time_ns - origin) / NS_PER_MS

    with styled():
        figure = Figure(figsize=(9.5, 1.1 + 0.62 * len(processes)))
        axes = figure.add_subplot()
        end = max(x(e.time_ns) for e in drawn) if drawn else 1.0
        for process in processes:
            axes.plot([-0.04 * end, end * 1.08], [row[process]] * 2, color=GREY, lw=1, zorder=1)
        for event in drawn:
            key = _key(event)
            sent = sends[key]
            if sent.process == event.process:
                continue
            colour = {inversion.first: ALARM, inversion.second: ORDERED}.get(key, INK)
            axes.annotate(
                "",
                xy=(x(event.time_ns), row[event.process]),
                xytext=(x(sent.time_ns), row[sent.process]),
                arrowprops={"arrowstyle": "-|>", "color": colour, "lw": 1.6, "shrinkA": 0},
                zorder=3,
            )
        for key, sent in sends.items():
            colour = {inversion.first: ALARM, inversion.second: ORDERED}.get(key, INK)
            axes.plot(x(sent.time_ns), row[sent.process], "o", color=colour, ms=5, zorder=4)
            axes.annotate(
                str(key),
                (x(sent.time_ns), row[sent.process]),
                xytext=(0, 7),
                textcoords="offset points",
                ha="center",
                color=colour,
                fontsize=8.5,
            )
        wrong = [e for e in drawn if e.process == inversion.process and _key(e) == inversion.first]
        for event in wrong:
            axes.plot(
                x(event.time_ns), row[event.process], "x", color=ALARM, ms=10, mew=2.4, zorder=5
            )
        axes.set_yticks([row[p] for p in processes], [names[p] for p in processes])
        axes.set_ylim(-0.6, len(processes) - 0.3)
        axes.grid(visible=False)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
        axes.set_xlabel("milliseconds since the first send")
        axes.set_title(
            f"{names[inversion.process]} was told {inversion.second} before {inversion.first},"
            f" which happened before it"
        )
    return figure
