"""The total-order protocols of a 1C channel by name, and what each promises."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

from orderwire.kernel import Effects, Instant, LocalProtocolError, ProcessId
from orderwire.ordering.pdu import Multicast
from orderwire.ordering.total.delta4_xamp import Delta4Xamp
from orderwire.ordering.total.fixed_sequencer import FixedSequencer
from orderwire.ordering.total.pdu import ChangeView
from orderwire.ordering.total.skeen_agreement import SkeenAgreement
from orderwire.ordering.total.source_sp import SourceSP
from orderwire.ordering.total.st_csn import StCsn
from orderwire.ordering.total.st_go_back import StGoBack
from orderwire.ordering.total.tachikawa_st import TachikawaST
from orderwire.ordering.total.total_to import TotalTO
from orderwire.ordering.total.totem_ring import TotemRing


class TotalOrder(Protocol):
    """A core of this family; what runs it on a channel needs no more than its last five."""

    @property
    def view(self) -> ChangeView:
        """The installed view."""
        ...

    @property
    def is_recovering(self) -> bool:
        """Whether this member has stopped, for a recovery or a change of views."""
        ...

    @property
    def buffers_used(self) -> int:
        """How many places for messages are taken."""
        ...

    def waiting(self) -> Iterable[tuple[int, int]]:
        """Yield (source, number) of what is here and not delivered."""
        ...

    def submit(self, command: Multicast | ChangeView, now: Instant) -> Effects:
        """Send a message, or change the view."""
        ...

    def receive(self, source: ProcessId, pdu: Any, now: Instant) -> Effects:
        """Take a PDU."""
        ...

    def turn(self, now: Instant) -> Effects:
        """Return what is to be sent now that the channel is free."""
        ...

    def wake(self, now: Instant) -> Effects:
        """Act on deadlines."""
        ...

    def next_deadline(self) -> Instant | None:
        """Return the next one."""
        ...


@dataclass(frozen=True, kw_only=True)
class Promises:
    """What holds in every run, beside the order of each source and the set of destinations."""

    one_order: bool = True
    """What two members deliver in common they deliver in the same order, and all fit in one."""
    atomic: bool = True
    """When a message is delivered, every destination has it."""
    uniform: bool = True
    """The order, and all or nothing, hold also for what a member delivered that crashed then."""
    bounded: bool = True
    """No more buffers are used than the settings say."""
    in_its_view: bool = True
    """A message is handed over in the view in which it was sent: before who joins in the next."""
    rests: bool = True
    """When nothing is asked for, nobody sends."""


@dataclass(frozen=True)
class TotalAlgorithm:
    """One entry of the catalog."""

    name: str
    create: Callable[..., TotalOrder]
    """`create(me, settings, joining=…)`."""
    promises: Promises = Promises()


_FLUSHED = Promises(atomic=False, uniform=False, bounded=False, in_its_view=False)

# What each is, with its transmissions on a quiet channel, for a message to d destinations.
_ENTRIES = (
    # One order at all that have it, to any destinations; nobody special: 1 + d (preack),
    # 1 + 2d (ack), fewer under load.  [S003]
    TotalAlgorithm("tachikawa-st", TachikawaST),
    # The same with every message to everybody, who drops what is not for it: as with d = n.
    TotalAlgorithm("total-to", TotalTO),
    # Only each source's own order; no stop, no sorting: as ST.  [S003]
    TotalAlgorithm("source-sp", SourceSP, Promises(one_order=False, in_its_view=False)),
    # ST that sends everything behind the failure line again: as ST.  [S003]
    TotalAlgorithm("st-go-back", StGoBack, Promises(in_its_view=False)),
    # ST over a channel that tells its numbers: no stop, no sorting: as ST.  [S003]
    TotalAlgorithm("st-csn", StCsn),
    # One member numbers and broadcasts what it is handed: 2.  [K91]
    TotalAlgorithm("sequencer-pb", FixedSequencer, _FLUSHED),
    # Senders broadcast, one member broadcasts the numbers: 2, fewer under load.  [K91]
    TotalAlgorithm("sequencer-bb", partial(FixedSequencer, sends_to_all=True), _FLUSHED),
    # PB, and r others have a message before anybody delivers it: 3 + r, fewer under load; here all
    # others.  [K91]
    TotalAlgorithm(
        "sequencer-pb-resilient",
        partial(FixedSequencer, resilience=1 << 12),
        Promises(bounded=False, in_its_view=False),
    ),
    # The highest of the destinations' proposals counts: 2 + d.  [B87]
    TotalAlgorithm(
        "skeen", SkeenAgreement, Promises(uniform=False, bounded=False, in_its_view=False)
    ),
    # The place of the frame that all destinations have answered: 2 + d.  [R92]
    TotalAlgorithm("xamp", Delta4Xamp, Promises(bounded=False, in_its_view=False)),
    # Who has the token numbers and sends; delivered without gaps: 1 + hops of the token.  [A95T]
    TotalAlgorithm("totem-agreed", TotemRing, replace(_FLUSHED, rests=False)),
    # The same, delivered when the token has shown that all have it.  [A95T]
    TotalAlgorithm(
        "totem-safe",
        partial(TotemRing, is_safe=True),
        Promises(bounded=False, rests=False, in_its_view=False),
    ),
)
ALGORITHMS: Mapping[str, TotalAlgorithm] = {entry.name: entry for entry in _ENTRIES}


def algorithm(name: str) -> TotalAlgorithm:
    """Return the catalog's entry of this name.  Raises LocalProtocolError if there is none."""
    try:
        return ALGORITHMS[name]
    except KeyError:
        raise LocalProtocolError(
            f"no total-order protocol {name!r}; there are {', '.join(ALGORITHMS)}"
        ) from None
