"""One round as its original sees it: who has promised, who has what, who is done.  [R3-R7]

Pure book-keeping; `active_active_rounds` says what to do when.
"""

import msgspec

from orderwire.broker.replication.active_active_messages import Held, Pull
from orderwire.broker.replication.settings import Coordination, ReplicationSettings
from orderwire.broker.replication.spans import Span, common, missing, union, without
from orderwire.broker.replication.view import BrokerId
from orderwire.kernel import NS_PER_MS, Instant

_REPEAT_NS = 100 * NS_PER_MS
_REPEATS = 4
"""Of a round's time, the first repetition comes after one part of so many."""


class Plan(msgspec.Struct, frozen=True):
    """Who copies what from whom, and what nobody has."""

    seals: list[Held]
    pulls: dict[BrokerId, list[Pull]]
    """By the member that pulls."""


class Round:
    """A round, through all its attempts."""

    def __init__(
        self, number: int, start: int, end: int, members: tuple[BrokerId, ...], *, recovery: bool
    ) -> None:
        self.number = number
        self.attempt = 0
        self.start = start
        self.end = end
        """E + 1; a recovery finds it out."""
        self.recovery = recovery
        self.members = members
        self.closed: dict[BrokerId, list[Held]] = {}
        self.committed: dict[BrokerId, int] = {}
        """S + 1 as each knows it."""
        self.known: dict[BrokerId, int] = {}
        """The same as each has noted it; its log may have lost that since."""
        self.doubtful: set[BrokerId] = set()
        """Who cannot know that its log has not."""
        self.stale: dict[BrokerId, list[Held]] = {}
        """What each has that a later epoch did not find."""
        self.losing = False
        """Whether it waits until a loss is written down."""
        self.alone: set[BrokerId] = set()
        """Who lacks nothing, and writes it without being told how."""
        self.done: set[BrokerId] = set()
        self.planned = False
        self.deadline: Instant = Instant(0)
        """When who has not answered leaves."""
        self.repeat_at: Instant = Instant(0)
        """When who has not promised is asked again; and how long that is."""
        self.repeat_ns = 0
        self.holes_since: Instant | None = None
        """Since when it waits for somebody who may have what is missing.  [R4]"""
        self.avoid: set[tuple[BrokerId, BrokerId]] = set()
        """(a, b): a cannot get anything from b."""

    def asked(self, now: Instant, settings: ReplicationSettings) -> None:
        """All have been asked for their promises: who is silent is asked again, at ever longer
        intervals.  Watches may be missed; over connections nothing is, but by a replica that is
        closed for a moment.  Who is slow has more to do by every repetition.  [G14]"""
        self.repeat_ns = _REPEAT_NS
        if settings.coordination is Coordination.RPC:
            self.repeat_ns = max(_REPEAT_NS, settings.round_timeout_ns // _REPEATS)
        self.repeat_at = Instant(now + self.repeat_ns)

    def asked_again(self, now: Instant) -> None:
        """Wait twice as long."""
        self.repeat_ns *= 2
        self.repeat_at = Instant(now + self.repeat_ns)

    def again(self, members: tuple[BrokerId, ...]) -> None:
        """Begin another attempt with these.  [R5]"""
        self.attempt += 1
        self.members = members
        self.closed.clear()
        self.committed.clear()
        self.known.clear()
        self.doubtful.clear()
        self.stale.clear()
        self.losing = False
        self.alone.clear()
        self.done.clear()
        self.planned = False

    @property
    def awaited(self) -> list[BrokerId]:
        """Whose answer is missing."""
        have: set[BrokerId] | dict[BrokerId, list[Held]]
        have = self.done if self.planned else self.closed
        return [each for each in self.members if each not in have]

    def blank(self) -> set[BrokerId]:
        """Who lacks something below S: its disk was lost.  [S004:9.10]"""
        return {
            member
            for member, committed in self.committed.items()
            if missing(committed, self.start, union(run[:2] for run in self.closed[member]))
        }

    def held_end(self) -> int:
        """One behind the highest offset that anybody has.  [R7]"""
        return max([self.start, *(held[-1][1] for held in self.closed.values() if held)])

    def sift(self) -> None:
        """Leave out what lies behind something of a later epoch: that epoch's original did not find
        it.  Power failures bring such back, of journals that were not synced."""
        least: dict[int, int] = {}
        for held in self.closed.values():
            for first, _, epoch in held:
                least[epoch] = min(least.get(epoch, first), first)
        if len(least) < 2:
            return
        for member, held in self.closed.items():
            stale = [
                run
                for run in held
                if any(epoch > run[2] and first < run[1] for epoch, first in least.items())
            ]
            if stale:
                self.stale.setdefault(member, []).extend(stale)
                self.closed[member] = [run for run in held if run not in stale]

    def reach(self) -> int:
        """One behind the last offset up to which those that answered lack nothing."""
        have = union(run[:2] for held in self.closed.values() for run in held)
        end = max([self.start, *(behind for _, behind in have)])
        gaps = missing(self.start, end, have)
        return gaps[0][0] if gaps else end

    def holes(self) -> list[Span]:
        """What nobody who promised has.  [R4]"""
        have = union(run[:2] for held in self.closed.values() for run in held)
        return missing(self.start, self.end, have)

    def epoch_behind(self, offset: int, epoch: int) -> int:
        """Of the next batch that somebody has from this offset on; else the round's own."""
        behind = [
            (first, of)
            for held in self.closed.values()
            for first, end, of in held
            if end > offset and first < self.end
        ]
        return min(behind)[1] if behind else epoch

    def plan(self, epoch: int, sealed: list[Span]) -> Plan:
        """Say for each member what it lacks, and who has it; `sealed` are the holes."""
        seals = [(first, end, self.epoch_behind(end, epoch)) for first, end in sealed]
        have = {member: union(run[:2] for run in held) for member, held in self.closed.items()}
        pulls: dict[BrokerId, list[Pull]] = {}
        members = list(self.members)
        for place, member in enumerate(members):
            lacking = missing(self.start, self.end, union([*have[member], *sealed]))
            wanted: list[Pull] = []
            others = members[place + 1 :] + members[:place]
            others.sort(key=lambda other, member=member: (member, other) in self.avoid)  # type: ignore[misc]
            for source in others:
                if not lacking:
                    break
                found = common(lacking, have[source])
                wanted += [(source, first, end) for first, end in found]
                lacking = without(lacking, union(found))
            assert not lacking, f"{member} lacks {lacking}, which nobody has"
            pulls[member] = sorted(wanted, key=lambda pull: pull[1])
        return Plan(seals, pulls)


class Joining:
    """A replica outside the in-sync set that has what was committed a while ago.  [R8]"""

    def __init__(self, end: int, until: Instant) -> None:
        self.end = end
        """It has everything below."""
        self.until = until
        """No round opens before, so that it can catch up."""
        self.sent = -1
