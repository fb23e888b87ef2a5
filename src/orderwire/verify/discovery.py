"""Discovery by its definitions: instant by instant, pair by pair, as slow as it is plain.

The linear kernels (`kernels.discovery_*`) must find the same.  The terms are those of
`kernels.discovery_facts`; nothing of it is used here.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from orderwire.trace.events import DiscoveryRun, Event, EventKind, RunSettings

_CHANGES = (
    *(EventKind.BOOT, EventKind.ADOPT, EventKind.UPDATE, EventKind.LEAVE),
    EventKind.GONE,
)
Incarnation = tuple[int, int]
"""(id, incarnation number)."""


class Finding(NamedTuple):
    """A promise of discovery that was not kept."""

    check: str
    kind: str
    process: int
    position: int
    time_ns: int
    of: int
    """The participant concerned, −1 when nobody is."""
    version: int


class Pair(NamedTuple):
    """When a participant's life first listed another's, with a MAP."""

    process: int
    boot_ns: int
    of: int
    of_boot_ns: int
    learnt_ns: int

    @property
    def from_start_ns(self) -> int:
        """Since the other one began."""
        return self.learnt_ns - self.of_boot_ns

    @property
    def from_both_ns(self) -> int:
        """Since both were there."""
        return self.learnt_ns - max(self.boot_ns, self.of_boot_ns)


@dataclass(eq=False)
class Life:
    """A life of a participant."""

    process: int
    position: int
    boot_ns: int
    end_ns: int
    over_ns: int
    """When it had surely ended: later where its trace stops and nobody tells its end."""
    adoptions: list[Event] = field(default_factory=list)
    told: list[tuple[Incarnation, int, int]] = field(default_factory=list)
    """(incarnation, time, version of its MAP)."""
    version: int = 0
    """Largest that it told since it adopted the id it has."""

    def lives(self, time_ns: int) -> bool:
        """Whether the participant is there."""
        return self.boot_ns <= time_ns < self.end_ns

    def member(self, time_ns: int) -> bool:
        """Whether it has an id."""
        return self.lives(time_ns) and any(e.time_ns <= time_ns for e in self.adoptions)

    def tenures(self) -> Iterator[tuple[Event, int, int]]:
        """Yield each adoption of another id or incarnation, from when and until when it holds."""
        for at, event in enumerate(self.adoptions):
            follow = [later.time_ns for later in self.adoptions[at + 1 :]]
            until = min([*follow, self.end_ns])
            if event.time_ns < until:
                yield event, event.time_ns, until


class Domain:
    """One run's discovery."""

    def __init__(self, events: Iterable[Event], settings: RunSettings) -> None:
        self.events = sorted(events, key=lambda event: (event.process, event.position))
        self.settings = settings
        told = settings.discovery
        self.promise = told if isinstance(told, DiscoveryRun) else DiscoveryRun()
        self.end_ns = max((event.time_ns for event in self.events), default=0) + 1
        self.cuts = [(process, time_ns) for process, time_ns in self._cuts()]
        changes = {e.time_ns for e in self.events if e.kind in _CHANGES}
        changes |= {time_ns for _, time_ns in self.cuts if time_ns < self.end_ns}
        self.changes = sorted(changes)
        self.regressions: list[Finding] = []
        self.lives = [life for life in self._lives() if life.boot_ns < life.end_ns]
        self._holders: dict[Incarnation, Life | None] = {}
        """Those that were asked for."""
        self.views = {life: list(self._learnt(life)) for life in self.lives}
        later = (time_ns + self._settle_ns for time_ns in self.changes)
        self.instants = sorted(
            {e.time_ns for e in self.events}
            | {time_ns for _, time_ns in self.cuts if time_ns < self.end_ns}
            | {time_ns for time_ns in later if time_ns < self.end_ns}
        )

    @property
    def _settle_ns(self) -> int:
        return self.promise.settle_ns + 2 * self.settings.epsilon_ns

    def quiet(self, time_ns: int) -> bool:
        """Whether nobody has begun, left, died or changed for long enough."""
        before = [change for change in self.changes if change <= time_ns]
        return bool(before) and before[-1] + self._settle_ns <= time_ns < self.end_ns

    def holder(self, incarnation: Incarnation) -> Life | None:
        """Return the life that had this incarnation first."""
        if incarnation in self._holders:
            return self._holders[incarnation]
        held = [
            (since, at)
            for at, life in enumerate(self.lives)
            for event, since, _ in life.tenures()
            if who(event) == incarnation
        ]
        found = self.lives[min(held)[1]] if held else None
        self._holders[incarnation] = found
        return found

    def over(self, incarnation: Incarnation) -> int:
        """Return when an incarnation that somebody had was surely over."""
        life = self.holder(incarnation)
        assert life is not None
        untils = [until for event, _, until in life.tenures() if who(event) == incarnation]
        return max(life.over_ns if until == life.end_ns else until for until in untils)

    def span(self, incarnation: Incarnation) -> tuple[int, int] | None:
        """Return from when and until when an incarnation lasts."""
        life = self.holder(incarnation)
        if life is None:
            return None
        mine = [tenure for tenure in life.tenures() if who(tenure[0]) == incarnation]
        return min(since for _, since, _ in mine), max(until for _, _, until in mine)

    def newest(self, incarnation: Incarnation, time_ns: int) -> int:
        """Return the largest version of its MAP that was told by then; 0 without any."""
        return max(
            (
                version
                for life in self.lives
                for told, when, version in life.told
                if told == incarnation and when <= time_ns and when < life.end_ns
            ),
            default=0,
        )

    def listed(self, life: Life, time_ns: int) -> dict[int, Event]:
        """Return what this life lists at this time: by id, the event by which it was learnt."""
        view: dict[int, Event] = {}
        for event in self.views[life]:
            if event.time_ns > time_ns:
                break
            peer, _ = who(event)
            if event.kind is EventKind.LEARN:
                view[peer] = event
            elif peer in view and who(view[peer]) == who(event):
                del view[peer]
        return view

    def rightly(self, life: Life, time_ns: int) -> Iterator[tuple[Event, Life]]:
        """Yield what it lists with a MAP while it is there, and whose it is."""
        for event in self.listed(life, time_ns).values():
            span, other = self.span(who(event)), self.holder(who(event))
            if event.number > 0 and span is not None and span[0] <= time_ns < span[1]:
                assert other is not None
                yield event, other

    def wrong(self, event: Event, time_ns: int) -> str:
        """Return what is wrong with listing this at this time, if anything is."""
        span = self.span(who(event))
        if span is None and self.settings.is_open:
            return ""  # Maybe a participant's without a trace.
        if span is None or time_ns >= self.over(who(event)):
            return "ghost"
        if not span[0] <= time_ns < span[1] or event.number <= 0:
            return ""
        newest = self.newest(who(event), time_ns)
        if newest == event.number:
            return ""
        return "outdated" if newest > event.number else "ahead"

    # -- what was not kept ------------------------------------------------------------------

    def findings(self) -> list[Finding]:
        """Return all violations of D1, D3 and D4, sorted."""
        return sorted(
            {
                *self._unlisted(),
                *self._listed_wrongly(),
                *self._without_id(),
                *self._evidence(),
                *self._ids(),
                *self._backwards(),
                *self.regressions,
            }
        )

    def _unlisted(self) -> Iterator[Finding]:
        for life in self.lives:
            told: set[Life] = set()
            for time_ns in self.instants:
                listed = [of for _, of in self.rightly(life, time_ns)]
                for other in self.lives:
                    there = life.member(time_ns) and other.member(time_ns) and other is not life
                    if not there or other in listed:
                        told.discard(other)
                    elif self.quiet(time_ns) and other not in told:
                        told.add(other)
                        yield Finding("D1", "missing", life.process, -1, time_ns, other.process, -1)

    def _listed_wrongly(self) -> Iterator[Finding]:
        for life in self.lives:
            told: set[tuple[int, str]] = set()
            for time_ns in self.instants:
                if not (life.lives(time_ns) and self.quiet(time_ns)):
                    continue
                for event in self.listed(life, time_ns).values():
                    kind = self.wrong(event, time_ns)
                    if kind and (event.position, kind) not in told:
                        told.add((event.position, kind))
                        yield self._at("D1", kind, event, time_ns)

    def _without_id(self) -> Iterator[Finding]:
        for life in self.lives:
            for time_ns in self.instants:
                if self.quiet(time_ns) and life.lives(time_ns) and not life.member(time_ns):
                    yield Finding(
                        *("D1", "no-id", life.process, life.position, time_ns),
                        *(life.process, -1),
                    )
                    break

    def _evidence(self) -> Iterator[Finding]:
        margin = self.promise.margin_ns + 2 * self.settings.epsilon_ns
        for life in self.lives:
            left: set[Incarnation] = set()
            for event in self.views[life]:
                if event.kind is EventKind.EXPIRE:
                    if event.reason == "left":
                        left.add(who(event))
                    continue
                span = self.span(who(event))
                if span is None and self.settings.is_open:
                    continue
                ended = None if span is None else self.over(who(event))
                if ended is not None and ended >= self.end_ns:
                    ended = None
                age_ns = event.clock_ns - event.arrived_ns
                latest = event.time_ns + self.settings.epsilon_ns
                kinds = {
                    "stale": age_ns > self.promise.fail_ns + self.promise.margin_ns,
                    "resurrected": ended is not None
                    and event.time_ns > ended + self.promise.fail_ns + margin,
                    "too-fresh": ended is not None and event.time_ns - age_ns > ended + margin,
                    "after-left": who(event) in left,
                    "invented": event.number > 0
                    and (span is None or self.newest(who(event), latest) < event.number),
                }
                for kind, wrong in kinds.items():
                    if wrong:
                        yield self._at("D3", kind, event, event.time_ns)

    def _ids(self) -> Iterator[Finding]:
        tenures = [tenure for life in self.lives for tenure in life.tenures()]
        for event, since, until in tenures:
            rivals = [t for t in tenures if who(t[0])[0] == who(event)[0] and t[0] is not event]
            if any(t[2] <= since and who(t[0]) >= who(event) for t in rivals):
                yield self._own("not-newer", event, since)
            key = (since, event.process, event.position)
            shared = [
                time_ns
                for time_ns in self.instants
                if since <= time_ns < until
                and self.quiet(time_ns)
                and any(
                    (t[1], t[0].process, t[0].position) < key and time_ns < t[2] for t in rivals
                )
            ]
            if shared:
                yield self._own("shared", event, shared[0])

    def _backwards(self) -> Iterator[Finding]:
        for life in self.lives:
            highest: dict[int, int] = {}
            view: dict[int, Event] = {}
            for event in self.views[life]:
                peer, number = who(event)
                before = view.get(peer)
                if event.kind is EventKind.EXPIRE:
                    if before is not None and who(before) == who(event):
                        del view[peer]
                    continue
                same = before is not None and who(before) == who(event)
                older = same and before is not None and version(event) < version(before)
                unheard_of = self.settings.is_open and self.span(who(event)) is None
                if (older or highest.get(peer, number) > number) and not unheard_of:
                    yield self._at("D4", "backwards", event, event.time_ns)
                highest[peer] = max(number, highest.get(peer, number))
                view[peer] = event

    def _at(self, check: str, kind: str, event: Event, time_ns: int) -> Finding:
        life = self.holder(who(event))
        of = -1 if life is None else life.process
        return Finding(check, kind, event.process, event.position, time_ns, of, version(event))

    def _own(self, kind: str, event: Event, time_ns: int) -> Finding:
        process = event.process
        return Finding("D4", kind, process, event.position, time_ns, process, -1)

    # -- what is measured -------------------------------------------------------------------

    def pairs(self) -> list[Pair]:
        """Return when each life first listed each other one with a MAP, sorted."""
        first: dict[tuple[Life, Life], Pair] = {}
        for life in self.lives:
            for time_ns in self.instants:
                if not life.lives(time_ns):
                    continue
                for _, other in self.rightly(life, time_ns):
                    pair = Pair(life.process, life.boot_ns, other.process, other.boot_ns, time_ns)
                    first.setdefault((life, other), pair)
        return sorted(first.values())

    def pairs_missing(self, time_ns: int) -> int:
        """Return D2: how many pairs live at this time of which one does not list the other."""
        living = [life for life in self.lives if life.lives(time_ns)]
        listed = sum(len(list(self.rightly(life, time_ns))) for life in living)
        return len(living) * (len(living) - 1) - listed

    def listed_as(self, kind: str, time_ns: int) -> int:
        """Return how many listings are `outdated`, or `ghost`s, at this time."""
        return sum(
            self.wrong(event, time_ns) == kind
            for life in self.lives
            if life.lives(time_ns)
            for event in self.listed(life, time_ns).values()
        )

    def pairs_together(self) -> int:
        """Return how many pairs of lives overlap."""
        return sum(
            one is not other and max(one.boot_ns, other.boot_ns) < min(one.end_ns, other.end_ns)
            for one in self.lives
            for other in self.lives
        )

    def traffic(self) -> Counter[tuple[str, int, EventKind, str]]:
        """Count messages and bytes by type, hop count and direction."""
        counts: Counter[tuple[str, int, EventKind, str]] = Counter()
        for event in self.events:
            if event.kind in (EventKind.POST, EventKind.HEAR):
                counts[event.reason, event.number, event.kind, "messages"] += 1
                counts[event.reason, event.number, event.kind, "bytes"] += event.payload_bytes
        return counts

    # -- how it is read ---------------------------------------------------------------------

    def _cuts(self) -> Iterator[tuple[int, int]]:
        """Yield when timelines are over of which nobody tells the end: just after their last event.

        A process begins a new timeline with each START.
        """
        for process in sorted({event.process for event in self.events}):
            mine = [event for event in self.events if event.process == process]
            begun = [event.time_ns for event in mine if event.kind is EventKind.START][1:]
            for since, until in zip([-(2**62), *begun], [*begun, 2**62], strict=True):
                part = [event for event in mine if since <= event.time_ns < until]
                told = any(
                    since <= event.time_ns < until
                    and (
                        (event.kind is EventKind.END and event.process == process)
                        or (event.kind is EventKind.GONE and event.source == process)
                    )
                    for event in self.events
                )
                if part and not told:
                    yield process, max(event.time_ns for event in part) + 1

    def _lives(self) -> Iterator[Life]:
        for process in sorted({event.process for event in self.events}):
            mine = [event for event in self.events if event.process == process]
            elsewhere = [
                event.time_ns
                for event in self.events
                if event.kind is EventKind.GONE
                and event.source == process
                and event.process != process
            ]
            life: Life | None = None
            for event in mine:
                begins = event.kind is EventKind.BOOT
                begins |= event.kind is EventKind.ADOPT and life is None
                ends = event.kind is EventKind.LEAVE
                ends |= event.kind is EventKind.GONE and event.source == process
                if life is not None and (begins or ends):
                    yield self._ended(life, event.time_ns)
                    life = None
                if begins:
                    told = [time_ns for time_ns in elsewhere if time_ns > event.time_ns]
                    end_ns = min([self.end_ns, *told])
                    life = Life(process, event.position, event.time_ns, end_ns, end_ns)
                if life is not None and event.kind in (EventKind.ADOPT, EventKind.UPDATE):
                    self._tell(life, event)
            if life is not None:
                yield self._ended(life, self.end_ns)

    def _ended(self, life: Life, time_ns: int) -> Life:
        """Note that this life is over by then."""
        life.over_ns = min(life.over_ns, time_ns)
        maybe = [t for cut, t in self.cuts if cut == life.process and t > life.boot_ns]
        life.end_ns = min([life.over_ns, *maybe])
        return life

    def _tell(self, life: Life, event: Event) -> None:
        held = who(life.adoptions[-1]) if life.adoptions else None
        if event.kind is EventKind.ADOPT and who(event) != held:
            life.adoptions.append(event)
            life.version = 0
        elif held is None:
            return  # It has no id yet: ADOPT will tell the version.
        again = event.kind is EventKind.ADOPT and event.number == life.version
        if event.number <= life.version and not again:
            self.regressions.append(
                Finding(
                    *("D4", "version", event.process, event.position, event.time_ns),
                    *(event.process, event.number),
                )
            )
        life.version = max(life.version, event.number)
        life.told.append((who(life.adoptions[-1]), event.time_ns, event.number))

    def _learnt(self, life: Life) -> Iterator[Event]:
        """Yield what this life learnt of others and gave up, in its order."""
        lives = [other for other in self.lives if other.process == life.process]
        follow = [other.position for other in lives if other.position > life.position]
        for event in self.events:
            if (
                event.process == life.process
                and event.kind in (EventKind.LEARN, EventKind.EXPIRE)
                and life.position <= event.position < min(follow, default=event.position + 1)
                and event.time_ns < life.end_ns
                and event.peer_id is not None
                and event.incarnation is not None
                and self.holder(who(event)) is not life
            ):
                yield event


def who(event: Event) -> Incarnation:
    """Return the incarnation that an event is about."""
    return event.peer_id or 0, event.incarnation or 0


def version(event: Event) -> int:
    """Return the version of the MAP that was learnt, 0 for none."""
    return max(event.number, 0)
