"""The ordering algorithms by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from orderwire.kernel import LocalProtocolError, ProcessId
from orderwire.ordering.adelstein_singhal import AdelsteinSinghal, AdelsteinSinghalCodec
from orderwire.ordering.adelstein_singhal import printed_bytes as two_hop_printed_bytes
from orderwire.ordering.baldoni_broadcast import BaldoniBroadcast
from orderwire.ordering.baldoni_broadcast import printed_bytes as baldoni_printed_bytes
from orderwire.ordering.bounded_jang import BoundedJang
from orderwire.ordering.bounded_jang_codec import BoundedJangCodec
from orderwire.ordering.bounded_jang_codec import printed_bytes as bounded_printed_bytes
from orderwire.ordering.fifo import Fifo, FifoCodec
from orderwire.ordering.fixed_delay import FixedDelay, FixedDelayCodec
from orderwire.ordering.jang_delta import JangDelta
from orderwire.ordering.jang_delta_codec import JangDeltaCodec
from orderwire.ordering.jang_delta_codec import printed_bytes as jang_printed_bytes
from orderwire.ordering.jang_delta_reference import JangDeltaReference
from orderwire.ordering.kshemkalyani_singhal import KshemkalyaniSinghal, KshemkalyaniSinghalFlat
from orderwire.ordering.kshemkalyani_singhal import printed_bytes as kshemkalyani_printed_bytes
from orderwire.ordering.pdu import Codec, Ordering
from orderwire.ordering.prakash_raynal_singhal import PrakashRaynalSinghal
from orderwire.ordering.prakash_raynal_singhal import printed_bytes as prakash_printed_bytes
from orderwire.ordering.predecessor_sets import printed_bytes as sets_printed_bytes
from orderwire.ordering.raynal_schiper_toueg import RaynalSchiperToueg
from orderwire.ordering.raynal_schiper_toueg import printed_bytes as raynal_printed_bytes
from orderwire.ordering.rodrigues_deadline import RodriguesDeadline, RodriguesDeadlineCodec
from orderwire.ordering.rodrigues_deadline import printed_bytes as rodrigues_printed_bytes
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.tags_codec import EntriesCodec, MatrixCodec, PairsCodec
from orderwire.ordering.unordered import Unordered, UnorderedCodec
from orderwire.ordering.yavatkar_mcp import YavatkarMcp, YavatkarMcpCodec
from orderwire.ordering.yoshimoto_maxcb import (
    YoshimotoMaxCb,
    YoshimotoMaxCbCodec,
    YoshimotoMaxCbOldest,
)

__all__ = ["ALGORITHMS", "Algorithm", "OrderingSettings", "algorithm"]


def _nothing_printed(pdu: Any, settings: OrderingSettings) -> int:
    """Return the size of no control information."""
    return 0


@dataclass(frozen=True, kw_only=True)
class Algorithm:
    """One entry of the catalog."""

    name: str
    summary: str
    create: Callable[[ProcessId, OrderingSettings], Ordering[Any]]
    codec: Callable[[ProcessId, OrderingSettings], Codec[Any]]
    printed_bytes: Callable[[Any, OrderingSettings], int] = _nothing_printed
    """Size of a PDU's control information in the papers' layout of 4-byte integers, in bytes.

    The head, common to all (sender, stamp, destinations), is not counted.
    """
    expectation: str | None = None
    """Which expectation of the causal test vectors it must meet, e.g. "exact".

    One of a family that is bounded, e.g. "maxcb-paper", stands for all of them: "maxcb-paper:3" is
    met with `max_cb=3`.
    """
    own_lifetimes: bool = False
    """Whether a message may have a lifetime of its own, shorter than the domain's."""
    needs_lifetime: bool = False
    """Whether it can wait for ever without Δ: for messages that were meant for other members."""
    delivers_at_deadline: bool = False
    """Whether messages wait until the last instant at which they may be delivered."""
    max_cb: bool = False
    """Whether `OrderingSettings.max_cb` bounds its tags."""
    twin: bool = False
    """A slow, literal form that tests compare with the one that is used."""


ALGORITHMS: Mapping[str, Algorithm] = {
    entry.name: entry
    for entry in (
        Algorithm(
            name="unordered",
            summary="Deliver at once, in any order: the control group.",
            create=Unordered,
            codec=UnorderedCodec,
        ),
        Algorithm(
            name="fifo",
            summary="Deliver each sender's messages in the order it sent them.",
            create=Fifo,
            codec=FifoCodec,
        ),
        Algorithm(
            name="jang-delta",
            summary="Deliver in Δ-causal order, in time or not at all.  [S000]",
            create=JangDelta,
            codec=JangDeltaCodec,
            printed_bytes=jang_printed_bytes,
            expectation="exact",
        ),
        Algorithm(
            name="bounded-jang",
            summary="The same with compact tags, which can be bounded: Jang's and floors.  [S001]",
            create=BoundedJang,
            codec=BoundedJangCodec,
            printed_bytes=bounded_printed_bytes,
            expectation="maxcb-floor",
        ),
        Algorithm(
            name="jang-delta-reference",
            summary="The same in the literal form of the corrected paper; slow.",
            create=JangDeltaReference,
            codec=JangDeltaCodec,
            printed_bytes=jang_printed_bytes,
            expectation="exact",
            twin=True,
        ),
        Algorithm(
            name="yoshimoto-maxcb",
            summary="Δ-causal order with bounded tags, as published.  [S001]",
            create=YoshimotoMaxCb,
            codec=YoshimotoMaxCbCodec,
            printed_bytes=sets_printed_bytes,
            expectation="maxcb-paper",
            max_cb=True,
        ),
        Algorithm(
            name="yoshimoto-maxcb-oldest",
            summary="The same bound with shorter waits: the oldest-kept rule.  [S001]",
            create=YoshimotoMaxCbOldest,
            codec=YoshimotoMaxCbCodec,
            printed_bytes=sets_printed_bytes,
            expectation="maxcb-oldest",
            max_cb=True,
        ),
        Algorithm(
            name="yavatkar-mcp",
            summary="Δ-causal order with full tags: every live message of the past.  [Y92]",
            create=YavatkarMcp,
            codec=YavatkarMcpCodec,
            printed_bytes=sets_printed_bytes,
            expectation="exact",
        ),
        Algorithm(
            name="adelstein-singhal",
            summary="Δ-causal order with two-hop tags; every message waits Δ/3.  [A95]",
            create=AdelsteinSinghal,
            codec=AdelsteinSinghalCodec,
            printed_bytes=two_hop_printed_bytes,
            expectation="triangle",
        ),
        Algorithm(
            name="fixed-delay",
            summary="Δ-causal order without tags: every message waits until its deadline.  [S001]",
            create=FixedDelay,
            codec=FixedDelayCodec,
            expectation="fixed",
            delivers_at_deadline=True,
        ),
        Algorithm(
            name="rodrigues-deadline",
            summary="Causal order with a lifetime for each message; no waiting past it.  [R00]",
            create=RodriguesDeadline,
            codec=RodriguesDeadlineCodec,
            printed_bytes=rodrigues_printed_bytes,
            own_lifetimes=True,
        ),
        Algorithm(
            name="raynal-schiper-toueg",
            summary="Δ-causal order with a matrix of stamps in every message.  [R91]",
            create=RaynalSchiperToueg,
            codec=MatrixCodec,
            printed_bytes=raynal_printed_bytes,
            expectation="exact",
        ),
        Algorithm(
            name="prakash-raynal-singhal",
            summary="Δ-causal order with direct predecessors per destination.  [P96]",
            create=PrakashRaynalSinghal,
            codec=EntriesCodec,
            printed_bytes=prakash_printed_bytes,
            expectation="exact",
        ),
        Algorithm(
            name="kshemkalyani-singhal",
            summary="Δ-causal order with minimal tags, one for every destination.  [K96]",
            create=KshemkalyaniSinghal,
            codec=EntriesCodec,
            printed_bytes=kshemkalyani_printed_bytes,
            expectation="exact",
        ),
        Algorithm(
            name="kshemkalyani-singhal-flat",
            summary="The same with the log as one list, as it is printed; slow.  [K96]",
            create=KshemkalyaniSinghalFlat,
            codec=EntriesCodec,
            printed_bytes=kshemkalyani_printed_bytes,
            expectation="exact",
            twin=True,
        ),
        Algorithm(
            name="baldoni-broadcast",
            summary="Δ-causal order for broadcasts, with the smallest tags.  [B98]",
            create=BaldoniBroadcast,
            codec=PairsCodec,
            printed_bytes=baldoni_printed_bytes,
            expectation="bcast-cb",
            needs_lifetime=True,
        ),
    )
}


def algorithm(name: str) -> Algorithm:
    """Return the catalog's entry of this name.  Raises LocalProtocolError if there is none."""
    try:
        return ALGORITHMS[name]
    except KeyError:
        raise LocalProtocolError(
            f"no ordering algorithm {name!r}; there are {', '.join(ALGORITHMS)}"
        ) from None
