"""T1 … T5 of a run that still goes on, as far as all its members have come.

A message is settled when it was stamped a window ago: a run with a slower delivery is never VALID.
So what is kept is bounded by the window, but for views, which are few, and what members that
crashed had not handed over: these have limits of their own.
"""

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from orderwire.trace.events import EventKind
from orderwire.verify.kernels.columns import TIME_MIN, integers
from orderwire.verify.kernels.lives import Lives
from orderwire.verify.kernels.total_columns import GROUP_KINDS
from orderwire.verify.live_channel import ChannelState, LiveChannel
from orderwire.verify.live_order import LiveOrder, OrderState
from orderwire.verify.live_parts import KEPT, Closing
from orderwire.verify.live_views import LiveViews, ViewsState

_MESSAGES = (EventKind.SEND.value, EventKind.DELIVER.value)


class TotalState(msgspec.Struct, kw_only=True):
    """What is remembered between two closings, besides events."""

    order: OrderState = msgspec.field(default_factory=OrderState)
    views: ViewsState = msgspec.field(default_factory=ViewsState)
    channel: ChannelState = msgspec.field(default_factory=ChannelState)
    settled_ns: int = TIME_MIN
    slow: bool = False
    """Something was sent or handed over whose message was settled, or stamped far ahead."""


class LiveTotal:
    """Judges one run with a total order."""

    def __init__(self) -> None:
        self._order = LiveOrder()
        self._views = LiveViews()
        self._channel = LiveChannel()
        self._settled_ns = TIME_MIN
        self._slow = False

    @property
    def held(self) -> int:
        """Events kept, in number, but for beginnings, ends and views."""
        tables = (self._order.kept, self._views.open, self._channel.kept)
        return sum(table.num_rows for table in tables)

    @property
    def uncertain(self) -> bool:
        """Something could not be judged."""
        overfull = self._order.state.overfull or self._views.state.overfull
        return self._slow or overfull or self._channel.state.slow

    def close(self, held: pa.Table, closing: Closing) -> pa.Table:
        """Judge those of these events that are new, too; return what was not told so far."""
        wanted = pc.field("kind").isin(GROUP_KINDS)
        new = held.filter(
            wanted & (pc.field("time_ns") >= closing.low) & (pc.field("time_ns") < closing.high)
        )
        new, _ = closing.arranged(new.select(KEPT.names).cast(KEPT))
        about = new.filter(pc.field("kind").isin(_MESSAGES))
        stamp_ns, time_ns = integers(about, "stamp_ns"), integers(about, "time_ns")
        ahead = stamp_ns > time_ns + closing.window_ns
        self._slow |= bool(np.any((stamp_ns < self._settled_ns) | ahead))
        self._settled_ns = closing.settled_ns
        delivered = about.filter(pc.field("kind") == EventKind.DELIVER.value)
        return pa.concat_tables(
            [
                self._order.close(delivered, closing),
                self._views.close(new, closing),
                self._channel.close(new, closing),
            ]
        )

    def checked(self, deliveries: int, *, promised: bool) -> dict[str, int]:
        """Return how much each check had to check; `promised` is T1, which needs no views."""
        installs, received = self._views.state.installs, self._channel.state.received
        if not (installs or promised):
            return {}
        counts = {"T1": deliveries, "T2": deliveries, "T3": deliveries * bool(installs)}
        return counts | {"T4": installs} | ({"T5": received} if received else {})

    def departed(self, members: int, lives: Lives) -> list[int]:
        """Return the members that the views of others have left behind."""
        return self._views.views(members, lives).departed

    @property
    def state(self) -> TotalState:
        """What `restore` needs beside `tables`."""
        return TotalState(
            order=self._order.state,
            views=self._views.state,
            channel=self._channel.state,
            settled_ns=self._settled_ns,
            slow=self._slow,
        )

    def tables(self) -> dict[str, pa.Table]:
        """Return the events that are kept."""
        return {
            "total_order": self._order.kept,
            "total_marks": self._views.marks,
            "total_open": self._views.open,
            "total_channel": self._channel.kept,
        }

    def restore(self, state: TotalState, tables: dict[str, pa.Table]) -> None:
        """Undo `state` and `tables`, which are taken out of these."""
        self._order.state, self._order.kept = state.order, tables.pop("total_order")
        self._views.state, self._views.marks = state.views, tables.pop("total_marks")
        self._views.open = tables.pop("total_open")
        self._channel.state, self._channel.kept = state.channel, tables.pop("total_channel")
        self._settled_ns, self._slow = state.settled_ns, state.slow
