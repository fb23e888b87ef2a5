"""Of which kind a domain is: complete MAPs for all, or summaries and details.

Members of two kinds cannot read each other's MAPs.  The oldest one's kind is the domain's; whoever
is of the other kind leaves and says so, so that one that was started wrongly ends itself alone.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from orderwire.discovery.map_codec import decode
from orderwire.discovery.messages import MapRecord
from orderwire.discovery.summaries import decode_summary
from orderwire.kernel import RemoteProtocolError

_LOG = logging.getLogger(__name__)

SETTLE_S = 1.0
"""So long after one of the other kind is met, the older ones are known."""


class Kinds:
    """Members of the other kind, as one of a domain meets them."""

    def __init__(
        self,
        told: str,
        *,
        interest_only: bool,
        incarnations: Callable[[], Iterable[int]],
        wrong: Callable[[str], None],
    ) -> None:
        """`told` says who we are; `incarnations()` are ours and those of members of our kind.

        `wrong(why)` is called when an older member is of the other kind than all of these.
        """
        self._told = told
        self._interest_only = interest_only
        self._incarnations = incarnations
        self._wrong = wrong
        self._others: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def met(self, identity: int, inc: int, record: MapRecord) -> bool:
        """Take note of a MAP that we cannot read; whether it is one of the other kind."""
        if not _is_of_kind(record, interest_only=not self._interest_only):
            return False
        if self._others.get(identity) != inc:
            self._others[identity] = inc
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(SETTLE_S, self._judge)
        return True

    def gone(self, identity: int, inc: int) -> None:
        """That incarnation is no longer there."""
        if self._others.get(identity) == inc:
            del self._others[identity]

    def close(self) -> None:
        """Judge no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _judge(self) -> None:
        self._timer = None
        if not self._others:
            return
        oldest = min(self._others, key=self._others.__getitem__)
        why = (
            f"{self._told} has interest_only={self._interest_only}, and participant {oldest} has"
            f" {not self._interest_only}: it must be the same at all"
        )
        if self._others[oldest] < min(self._incarnations()):
            self._wrong(f"{why}, as the oldest has it")
        else:
            _LOG.warning("%s", why)


def _is_of_kind(record: MapRecord, *, interest_only: bool) -> bool:
    """Whether this is a summary, or a complete MAP."""
    try:
        if interest_only:
            return decode_summary(record).participant is not None
        decode(record)
    except RemoteProtocolError:
        return False
    return True
