"""What one core of discovery does, written into a timeline of a trace: on sockets and simulated.

Indications and messages are recorded as they are applied.  On sockets a participant has a number in
the run, its id, only when it has joined: what happens before is kept until then.
"""

from collections.abc import Callable
from typing import TypeAlias

from orderwire.discovery.commands import Ended, Gone, Joined, Learnt
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.messages import Addressed
from orderwire.discovery.settings import DiscoverySettings
from orderwire.kernel import NS_PER_S
from orderwire.trace.discovery_events import LEFT, REPLACED, SILENT, DiscoveryTimeline
from orderwire.trace.events import DiscoveryRun

EARLY_EVENTS_MAX = 100_000
"""Kept before there is a timeline; messages beyond are not recorded."""
MARGIN_NS = 2 * NS_PER_S

_Write: TypeAlias = Callable[[DiscoveryTimeline, int], None]
"""Writes one event, given how far the run's time is ahead of the core's."""


def discovery_run(
    settings: DiscoverySettings, *, timer_slack_ns: int = 0, protocol: str = "fdp"
) -> DiscoveryRun:
    """Return what a domain with these settings promises; times in nanoseconds.

    Whoever dies is on no list after T_fail and the time until lists are looked through; a margin
    for messages under way and for late timers comes on top.
    """
    margin_ns = MARGIN_NS + timer_slack_ns
    return DiscoveryRun(
        protocol=protocol,
        fail_ns=settings.fail_ns,
        settle_ns=settings.fail_ns + settings.fail_ns // 4 + margin_ns,
        margin_ns=margin_ns,
    )


class DiscoveryRecorder:
    """Records one life of a core.  `now` is always the core's time."""

    def __init__(self, core: FdpNode, now: int) -> None:
        self._core = core
        self._line: DiscoveryTimeline | None = None
        self._ahead_ns = 0
        self._early: list[_Write] = []
        self._version = 0
        """Of its own MAP, as recorded last."""
        self.unrecorded = 0
        """Messages that came too early, and too many."""
        self._write(lambda line, ahead: line.boot(now + ahead))

    def write_to(self, line: DiscoveryTimeline, *, ahead_ns: int = 0) -> None:
        """Write all that has happened and will happen to this timeline, whose START is written.

        `ahead_ns` is how far the run's time is ahead of the core's.
        """
        self._line, self._ahead_ns = line, ahead_ns
        early, self._early = self._early, []
        for write in early:
            write(line, ahead_ns)

    def posted(self, now: int, message: object, size_bytes: int) -> None:
        """This message left."""
        peer = message.to if isinstance(message, Addressed) else None
        name, hop = type(message).__name__, getattr(message, "hop", 0)
        self._carried(
            lambda line, ahead: line.post(now + ahead, name, size_bytes, hop=hop, peer_id=peer)
        )

    def heard(self, now: int, message: object, size_bytes: int) -> None:
        """This message came."""
        peer = message.frm if isinstance(message, Addressed) else None
        name, hop = type(message).__name__, getattr(message, "hop", 0)
        self._carried(
            lambda line, ahead: line.hear(now + ahead, name, size_bytes, hop=hop, peer_id=peer)
        )

    def changed(self, now: int) -> None:
        """It took the command `Change`: its MAP may be another."""
        version = self._core.own.map.ver
        if self._core.id is not None and version > self._version:
            self._version = version
            self._write(lambda line, ahead: line.update(now + ahead, version=version))

    def leaving(self, now: int) -> None:
        """It is about to take the command `End`."""
        self._write(lambda line, ahead: line.leave(now + ahead))

    def told(self, now: int, indication: object) -> None:
        """The core indicated this."""
        if isinstance(indication, Joined):
            self._adopted(now, indication)
        elif isinstance(indication, Learnt):
            self._learnt(now, indication)
        elif isinstance(indication, Ended):
            self._ended(now, indication)
        elif isinstance(indication, Gone):
            self._write(lambda line, ahead: line.gone(now + ahead))

    def _adopted(self, now: int, joined: Joined) -> None:
        version = self._version = self._core.own.map.ver
        self._write(
            lambda line, ahead: line.adopt(
                now + ahead, peer_id=joined.id, incarnation=joined.inc, version=version
            )
        )

    def _learnt(self, now: int, learnt: Learnt) -> None:
        age_ns = self._age_ns(now, learnt.id, learnt.inc)
        self._write(
            lambda line, ahead: line.learn(
                now + ahead,
                peer_id=learnt.id,
                incarnation=learnt.inc,
                version=learnt.ver,
                age_ns=age_ns,
            )
        )

    def _ended(self, now: int, ended: Ended) -> None:
        entry = self._core.roster.entries.get(ended.id)
        replaced = entry is None or entry.inc != ended.inc
        reason = LEFT if ended.left else REPLACED if replaced else SILENT
        age_ns = self._age_ns(now, ended.id, ended.inc)
        self._write(
            lambda line, ahead: line.expire(
                now + ahead,
                peer_id=ended.id,
                incarnation=ended.inc,
                reason=reason,
                age_ns=age_ns,
            )
        )

    def _age_ns(self, now: int, identity: int, inc: int) -> int:
        """Return how old the newest evidence of this incarnation is; 0 when it is forgotten."""
        entry = self._core.roster.entries.get(identity)
        return 0 if entry is None or entry.inc != inc else max(0, now - entry.fresh)

    def _carried(self, write: _Write) -> None:
        if self._line is None and len(self._early) >= EARLY_EVENTS_MAX:
            self.unrecorded += 1
        else:
            self._write(write)

    def _write(self, write: _Write) -> None:
        if self._line is None:
            self._early.append(write)
        else:
            write(self._line, self._ahead_ns)
