"""What one core of discovery does, written into a timeline of a trace: on sockets and simulated.

Indications and messages are recorded as they are applied.  On sockets a participant has a number in
the run, its id, only when it has joined: what happens before is kept until then.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from orderwire.discovery.commands import Ended, Gone, Joined, Learnt
from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.messages import Addressed
from orderwire.discovery.settings import DiscoverySettings
from orderwire.kernel import NS_PER_MS, NS_PER_S
from orderwire.trace.discovery_events import LEFT, REPLACED, SILENT, DiscoveryTimeline
from orderwire.trace.events import NO_ORDER, DiscoveryRun, RunSettings

if TYPE_CHECKING:
    from orderwire.trace.sinks import Sink
    from orderwire.trace.writer import Tracer

DISCOVERY_RUN = "discovery"
"""The run of a domain's discovery is `RUN/discovery`, beside those of its ordering domains."""
EPSILON_NS = 100 * NS_PER_MS
"""Bound on the difference of clocks of several machines; seconds are judged by it."""
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
        self.began = now
        self._line: DiscoveryTimeline | None = None
        self._ahead_ns = 0
        self._early: list[_Write] = []
        self._version = 0
        """Of its own MAP, as recorded last."""
        self.unrecorded = 0
        """Messages that came too early, and too many."""
        self._write(lambda line, ahead: line.boot(now + ahead))

    def again(self, line: DiscoveryTimeline, now: int) -> None:
        """Go on as another participant, in its timeline: the id was lost, and what is known stays.

        The old timeline says that the old one is gone; what the core adopts is still to be told.
        """
        self._write(lambda before, ahead: before.gone(now + ahead))
        self._line = line
        self._write(lambda _, ahead: line.boot(now + ahead))
        for entry in self._core.live().values():
            assert entry.map is not None
            self.learnt(now, entry.id, entry.inc, entry.map.ver)

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
            self.learnt(now, indication.id, indication.inc, indication.ver)
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

    def learnt(self, now: int, identity: int, inc: int, version: int) -> None:
        """It has come to know this version of a participant's MAP."""
        age_ns = self._age_ns(now, identity, inc)
        self._write(
            lambda line, ahead: line.learn(
                now + ahead, peer_id=identity, incarnation=inc, version=version, age_ns=age_ns
            )
        )

    def _ended(self, now: int, ended: Ended) -> None:
        reason = LEFT if ended.left else REPLACED if self._replaced(ended) else SILENT
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

    def _replaced(self, ended: Ended) -> bool:
        """Whether another has its id, or listens at its address."""
        roster = self._core.roster
        entry, contact = roster.entries.get(ended.id), roster.contacts.get(ended.id)
        if entry is None or entry.inc != ended.inc:
            return True
        return contact is not None or roster.holder(entry.addr) not in (None, ended.id)

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


class DiscoveryJournal:
    """One participant's timelines in the run `RUN/discovery`: one for each id that it has."""

    def __init__(
        self,
        run: str,
        sink: "Sink",
        settings: RunSettings,
        ahead_ns: int,
        recorder: DiscoveryRecorder,
    ) -> None:
        self._run_id = f"{run}/{DISCOVERY_RUN}"
        self._sink = sink
        self._settings = settings
        self._ahead_ns = ahead_ns
        self._recorder = recorder
        self._tracer: Tracer | None = None

    def begin(self, identity: int, now: int) -> None:
        """Open the timeline of the participant with this id; `now` is the core's time."""
        from orderwire.trace.writer import Tracer  # takes a while, and only who traces needs it

        before = self._tracer
        start_ns = now + self._ahead_ns
        tracer = self._tracer = Tracer(self._run_id, identity, self._sink, self._settings, start_ns)
        line = DiscoveryTimeline.on(tracer)
        if before is None:
            self._recorder.write_to(line, ahead_ns=self._ahead_ns)
        else:
            self._recorder.again(line, now)
            before.close(start_ns)

    def gone(self, now: int, process: int) -> None:
        """Write that the participant with this id was killed."""
        assert self._tracer is not None
        DiscoveryTimeline.on(self._tracer).gone(now + self._ahead_ns, process=process)

    def flush(self) -> None:
        """Hand the events that wait to the sink.  Raises TraceError, OSError."""
        if self._tracer is not None:
            self._tracer.flush()

    def close(self, now: int) -> None:
        """End the timeline.  Raises TraceError, OSError."""
        if self._tracer is not None:
            self._tracer.close(now + self._ahead_ns)


def run_settings(
    settings: DiscoverySettings, *, members: int, one_machine: bool, timer_slack_ns: int
) -> RunSettings:
    """Return the settings of the run of a domain with so many ids."""
    return RunSettings(
        algorithm=NO_ORDER,
        members=members,
        epsilon_ns=0 if one_machine else EPSILON_NS,
        clock="shared" if one_machine else "local",
        discovery=discovery_run(settings, timer_slack_ns=timer_slack_ns),
        open=True,
    )
