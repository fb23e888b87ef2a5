"""Scripted runs of discovery: who starts, crashes, leaves and changes when, and what must hold.

The format is that of `tests/vectors/discovery/README.md`, kind `script`.  Times in seconds.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.messages import Broadcast, JoinAck, Status
from orderwire.discovery.ring import RangePolicy
from orderwire.discovery.settings import (
    LITERAL,
    BootstrapSettings,
    DiscoverySettings,
    Mechanisms,
)
from orderwire.kernel import NS_PER_S, stream
from orderwire.sim.discovery_world import DiscoveryWorld, Faults, Posted

RUN_EVENTS_MAX = 100_000


class ScriptError(ValueError):
    """The script is not in the documented format."""


class ScriptParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Setting of a script."""

    id_space: int = msgspec.field(name="M")
    delay: float | tuple[float, float] = 0.001
    seed: int | str = 0
    pair_delay: dict[str, float] = {}
    mode: str = "full"
    hb: tuple[float, float] | None = None
    t_fail: float | None = None
    t_ae: tuple[float, float] | float | None = None
    t_lease: float | None = None
    t_arq: float | None = None
    t_pull: float | None = None
    t_ask: float | None = None
    lease: float | None = None
    loss: float = 0.0
    policy: str | None = None
    bidirectional: bool = False
    ae: bool | None = None
    pull: bool | None = None
    server_sync: bool | None = None
    heartbeats: bool | None = None
    detect: bool | None = None
    probe: bool | None = None
    arq: bool | None = None
    reroute: bool | None = None


class ScriptEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that happens."""

    at: float
    do: str
    who: str | None = None
    id: int | None = None
    silent: bool = False
    data: str | None = None
    lost: bool = False
    recovery: float | None = None
    group: list[str] = []


class ViewsAt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the views are like at a time."""

    at: float
    exact: bool = False
    ignore_extra: bool = False
    absent: list[int] = []
    present: list[int] = []


class Times(msgspec.Struct, frozen=True, kw_only=True, rename={"sender": "frm"}):
    """When one participant sends its own messages of a type."""

    t: str
    sender: str
    at: list[float]
    after: float = 0.0
    until: float = float("inf")
    tol: float = 0.01


class GoneAt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a leaver is gone."""

    who: str
    after: float = 0.0
    before: float = float("inf")


class GoneEverywhere(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By when nobody lists an id any more."""

    id: int
    by: float


class MessageCount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a message is sent."""

    t: str
    min: int = 0
    max: int | None = None


class ScriptExpectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must hold.  One check, or a list of them, of each kind."""

    views_at: ViewsAt | list[ViewsAt] = []
    messages_after: float = 0.0
    messages_before: float = float("inf")
    messages: list[dict[str, Any]] | None = None
    times: Times | list[Times] = []
    gone: GoneAt | list[GoneAt] = []
    gone_everywhere: GoneEverywhere | list[GoneEverywhere] = []
    split_at: float | list[float] = []
    unique_ids: bool = False
    holder: dict[str, str] = {}
    count: MessageCount | list[MessageCount] = []


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario."""

    params: ScriptParams
    events: list[ScriptEvent]
    expect: ScriptExpectation


def read_script(raw: Any) -> Script:
    """Return the script of a JSON object.  Raises ScriptError."""
    try:
        script = msgspec.convert(raw, Script, strict=False)
    except msgspec.ValidationError as error:
        raise ScriptError(f"malformed script: {error}") from error
    if len(script.events) > RUN_EVENTS_MAX:
        raise ScriptError(f"{len(script.events)} events, at most {RUN_EVENTS_MAX}")
    return script


def message_name(message: Any) -> str:
    """Return the paper's name of a message: JOIN_ACK of JoinAck."""
    name = type(message).__name__
    special = {"SyncReply": "SYNC_REP", "RequestId": "REQUEST_ID", "IdReply": "ID"}
    if name in special:
        return special[name]
    return "".join(f"_{c}" if c.isupper() and at else c for at, c in enumerate(name)).upper()


def settings_of(params: ScriptParams) -> DiscoverySettings:
    """Return the participants' settings."""
    if params.mode not in ("paper", "full"):
        raise ScriptError(f"mode {params.mode!r}; expected 'paper' or 'full'")
    printed = params.mode == "paper"
    mechanisms = LITERAL if printed else Mechanisms()
    switched = {
        name: value
        for name in ("ae", "pull", "server_sync", "heartbeats", "detect", "probe", "arq", "reroute")
        if (value := getattr(params, name)) is not None
    }
    changes: dict[str, Any] = {
        "mechanisms": msgspec.structs.replace(mechanisms, **switched),
        "policy": RangePolicy.SUCC if printed else RangePolicy.RANK,
        "both_ways_bytes_max": -1 if params.bidirectional else 0,
    }
    if params.policy is not None:
        changes["policy"] = RangePolicy(params.policy)
    if params.hb is not None:
        changes["heartbeat_min_ns"], changes["heartbeat_max_ns"] = map(_ns, params.hb)
    if params.t_ae is not None:
        both = params.t_ae if isinstance(params.t_ae, tuple) else (params.t_ae, params.t_ae)
        changes["sync_min_ns"], changes["sync_max_ns"] = map(_ns, both)
    for name, field in (
        ("t_fail", "fail_ns"),
        ("t_lease", "lease_ns"),
        ("lease", "lease_ns"),
        ("t_arq", "ack_ns"),
        ("t_pull", "pull_ns"),
        ("t_ask", "ask_ns"),
    ):
        value = getattr(params, name)
        if value is not None:
            changes[field] = _ns(value)
    return DiscoverySettings(**changes)


def _ns(seconds: float) -> int:
    return round(seconds * NS_PER_S)


class ScriptRun:
    """One run of a script, with the moments at which something is looked at."""

    def __init__(self, script: Script) -> None:
        self.script = script
        params = script.params
        settings = settings_of(params)
        bootstrap = BootstrapSettings(
            id_space=params.id_space,
            lease_ns=settings.lease_ns,
        )
        self.world = DiscoveryWorld(
            settings,
            bootstrap,
            params.seed,
            self._delays(params),
            faults=Faults(loss_ratio=params.loss),
            literal=params.mode == "paper",
            record=True,
        )
        self.names: dict[int, str] = {}
        self.failures: list[str] = []
        self.checks = 0

    @staticmethod
    def _delays(params: ScriptParams) -> Callable[[str, str], int]:
        pairs = {}
        for pair, seconds in params.pair_delay.items():
            source, _, to = pair.partition(">")
            if not to:
                raise ScriptError(f"pair_delay {pair!r}; expected 'from>to'")
            pairs[source, to] = _ns(seconds)
        chance = stream(params.seed, "script/delays")
        if isinstance(params.delay, tuple):
            low, high = (_ns(each) for each in params.delay)
        else:
            low = high = _ns(params.delay)

        def delay(source: str, to: str) -> int:
            fixed = pairs.get((source, to))
            if fixed is not None:
                return fixed
            return low if low == high else chance.randint(low, high)

        return delay

    def run(self) -> None:
        """Run the script and check what it expects."""
        world = self.world
        world.server_up()
        for event in self.script.events:
            world.at(_ns(event.at), self._act(event))
        moments = sorted(self._moments(), key=lambda each: each[0])
        for time_ns, look in moments:
            world.run(time_ns)
            look()
        end = max([_ns(event.at) for event in self.script.events] + [world.world.now_ns])
        for until in self._ends():
            end = max(end, _ns(until))
        world.run(end + NS_PER_S // 10)
        self._check_messages()
        self._check_rest()

    def _ends(self) -> Iterator[float]:
        expect = self.script.expect
        if expect.messages_before != float("inf"):
            yield expect.messages_before
        for each in _several(expect.times):
            if each.until != float("inf"):
                yield each.until
        for each in _several(expect.gone):
            if each.before != float("inf"):
                yield each.before

    # -- events -----------------------------------------------------------------------------

    def _act(self, event: ScriptEvent) -> Callable[[], None]:
        world = self.world
        if event.do in ("server_down", "server_up", "partition", "heal"):
            acts: dict[str, Callable[[], None]] = {
                "server_down": world.server_down,
                "server_up": lambda: world.server_up(
                    lost=event.lost,
                    recovery_ns=None if event.recovery is None else _ns(event.recovery),
                ),
                "partition": lambda: world.partition(set(event.group)),
                "heal": world.heal,
            }
            return acts[event.do]
        who = event.who
        if who is None:
            raise ScriptError(f"event {event.do!r} at {event.at} names nobody")
        if event.do == "start":
            return lambda: self._start(who, event)
        acts = {
            "restart": lambda: self._restart(who, event),
            "crash": lambda: world.crash(who, silent=event.silent),
            "leave": lambda: world.leave(who),
            "update": lambda: world.change(who, (event.data or "").encode()),
            "mute_relay": lambda: self._mute(who),
        }
        if event.do not in acts:
            raise ScriptError(f"unknown event {event.do!r} at {event.at}")
        return acts[event.do]

    def _start(self, who: str, event: ScriptEvent) -> None:
        data = f"{who} {event.at}" if event.data is None else event.data
        self.world.start(who, data.encode(), wish=event.id)

    def _restart(self, who: str, event: ScriptEvent) -> None:
        if who in self.world.processes:
            self.world.crash(who)
        self._start(who, event)

    def _mute(self, who: str) -> None:
        core = self.world.processes[who].core
        assert isinstance(core, FdpNode)
        core.broadcasts.muted = True

    # -- checks -----------------------------------------------------------------------------

    def _check(self, good: bool, why: str) -> None:
        self.checks += 1
        if not good:
            self.failures.append(why)

    def _moments(self) -> Iterator[tuple[int, Callable[[], None]]]:
        expect = self.script.expect
        for views in _several(expect.views_at):
            yield _ns(views.at), partial(self._check_views, views)
        for gone in _several(expect.gone_everywhere):
            yield _ns(gone.by), partial(self._check_listed, gone.id, gone.by, False)
        for at in _several(expect.split_at):
            yield _ns(at), partial(self._check_split, at)

    def _check_split(self, at: float) -> None:
        wrong = self.world.faults_of_views(ignore_extra=True)
        self._check(bool(wrong), f"the views are whole at {at} s, expected a split")

    def _check_views(self, views: ViewsAt) -> None:
        if views.exact:
            wrong = self.world.faults_of_views(ignore_extra=views.ignore_extra)
            self._check(not wrong, f"views at {views.at} s: {'; '.join(wrong[:5])}")
        for identity in views.absent:
            self._check_listed(identity, views.at, False)
        for identity in views.present:
            self._check_listed(identity, views.at, True)

    def _check_listed(self, identity: int, at: float, listed: bool) -> None:
        for address, node in self.world.nodes().items():
            if node.id == identity:
                continue
            entry = node.roster.entries.get(identity)
            found = entry is not None and entry.status is Status.LIVE
            self._check(
                found is listed,
                f"{address} {'lists' if found else 'does not list'} {identity} at {at} s",
            )

    def _check_messages(self) -> None:
        expect = self.script.expect
        low, high = _ns(expect.messages_after), expect.messages_before * NS_PER_S
        window = [each for each in self.world.posted if low <= each.time_ns <= high]
        if expect.messages is not None:
            self._check_multiset(window, expect.messages)
        for count in _several(expect.count):
            found = sum(message_name(each.message) == count.t for each in window)
            most = float("inf") if count.max is None else count.max
            self._check(
                count.min <= found <= most,
                f"{found} {count.t}, expected from {count.min} to {most}",
            )
        for times in _several(expect.times):
            self._check_times(times)

    def _check_multiset(self, window: list[Posted], expected: list[dict[str, Any]]) -> None:
        names = {each["t"] for each in expected}
        found = [self._fields(each) for each in window if message_name(each.message) in names]
        left = list(found)
        for each in expected:
            match = next((one for one in left if _fits(one, each)), None)
            self._check(match is not None, f"{each} is not sent; sent are {left[:10]}")
            if match is not None:
                left.remove(match)
        self._check(not left, f"sent beside what is expected: {left[:10]}")

    @staticmethod
    def _fields(posted: Posted) -> dict[str, Any]:
        message = posted.message
        fields: dict[str, Any] = {
            "t": message_name(message),
            "frm": posted.source,
            "to": posted.to,
            "at": posted.time_ns / NS_PER_S,
        }
        for name in ("hop", "hi", "direction", "seq", "base", "src", "inc"):
            if hasattr(message, name):
                fields["dir" if name == "direction" else name] = getattr(message, name)
        if isinstance(message, Broadcast):
            fields |= {"src": message.row.id, "ver": message.row.ver, "hb": message.row.hb}
        if isinstance(message, JoinAck):
            maps = message.maps
            fields["maps"] = None if maps is None else sorted(each.row.id for each in maps)
        return fields

    def _check_times(self, times: Times) -> None:
        low, high = times.after * NS_PER_S, times.until * NS_PER_S
        found = sorted(
            {
                each.time_ns / NS_PER_S
                for each in self.world.posted
                if message_name(each.message) == times.t
                and each.source == times.sender
                and getattr(each.message, "hop", 1) == 1
                and low <= each.time_ns <= high
            }
        )
        good = len(found) == len(times.at) and all(
            abs(one - other) <= times.tol for one, other in zip(found, times.at, strict=True)
        )
        self._check(good, f"{times.sender} sends {times.t} at {found}, expected {times.at}")

    def _check_rest(self) -> None:
        expect = self.script.expect
        for gone in _several(expect.gone):
            at_ns = self.world.gone_ns.get(gone.who)
            good = at_ns is not None and gone.after <= at_ns / NS_PER_S <= gone.before
            when = "never" if at_ns is None else f"at {at_ns / NS_PER_S} s"
            self._check(good, f"{gone.who} is gone {when}, not in {gone.after} … {gone.before} s")
        nodes = self.world.nodes()
        if expect.unique_ids:
            often = Counter(node.id for node in nodes.values())
            twice = [identity for identity, times in often.items() if times > 1]
            self._check(not twice, f"ids held more than once: {twice}")
        for identity, who in expect.holder.items():
            holders = [address for address, node in nodes.items() if node.id == int(identity)]
            self._check(holders == [who], f"id {identity} is held by {holders}, not by {who}")


def _several(given: Any) -> list[Any]:
    return given if isinstance(given, list) else [given]


def _fits(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(
        found.get(name, "nothing") == (sorted(value) if name == "maps" and value else value)
        for name, value in expected.items()
    )


def check_script(raw: Any) -> list[str | None]:
    """Run a script; return one entry per check: None, or why it failed.  Raises ScriptError."""
    run = ScriptRun(read_script(raw))
    run.run()
    return [*run.failures, *[None] * (run.checks - len(run.failures))]
