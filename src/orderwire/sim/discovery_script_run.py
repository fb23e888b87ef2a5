"""Runs of discovery's scripts, with the moments at which something is looked at.

The format is that of `orderwire.sim.discovery_script`.  Times in seconds.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from orderwire.discovery.fdp import FdpNode
from orderwire.discovery.messages import Broadcast, JoinAck, Status
from orderwire.kernel import NS_PER_S, LocalProtocolError, stream
from orderwire.sim.discovery_script import (
    FOR_EVER,
    MessageExpected,
    Script,
    ScriptEvent,
    ScriptParams,
    Times,
    ViewsAt,
    bootstrap_of,
    message_name,
    ns,
    read_script,
    settings_of,
    several,
)
from orderwire.sim.discovery_world import DiscoveryWorld, Faults, Posted
from orderwire.sim.vector_format import VectorError

TIME_TOLERANCE_S = 1e-6
"""Times of messages are sums of delays, told in seconds."""


class ScriptRun:
    """One run of a script, with the moments at which something is looked at."""

    def __init__(self, script: Script) -> None:
        self.script = script
        params = script.params
        settings = settings_of(params)
        self.world = DiscoveryWorld(
            settings,
            bootstrap_of(params, settings),
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
            pairs[source, to] = ns(seconds)
        chance = stream(params.seed, "script/delays")
        if isinstance(params.delay, tuple):
            low, high = (ns(each) for each in params.delay)
        else:
            low = high = ns(params.delay)

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
            world.at(ns(event.at), self._act(event))
        moments = sorted(self._moments(), key=lambda each: each[0])
        for time_ns, look in moments:
            world.run(time_ns)
            look()
        end = max([ns(event.at) for event in self.script.events] + [world.world.now_ns])
        for until in self._ends():
            end = max(end, ns(until))
        world.run(end + NS_PER_S // 10)
        self._check_messages()
        self._check_rest()

    def _ends(self) -> Iterator[float]:
        expect = self.script.expect
        if expect.messages_before != FOR_EVER:
            yield expect.messages_before
        for times in several(expect.times):
            if times.until != FOR_EVER:
                yield times.until
        for gone in several(expect.gone):
            if gone.before != FOR_EVER:
                yield gone.before

    # -- events -----------------------------------------------------------------------------

    def _act(self, event: ScriptEvent) -> Callable[[], None]:
        world = self.world
        who = event.who or ""
        acts: dict[str, Callable[[], None]] = {
            "server_down": world.server_down,
            "server_up": lambda: world.server_up(
                lost=event.lost,
                recovery_ns=None if event.recovery is None else ns(event.recovery),
            ),
            "partition": lambda: world.partition(set(event.group)),
            "heal": world.heal,
            "start": lambda: self._start(who, event),
            "restart": lambda: self._restart(who, event),
            "crash": lambda: world.crash(who, silent=event.silent),
            "leave": lambda: world.leave(who),
            "update": lambda: world.change(who, (event.data or "").encode()),
            "mute_relay": lambda: self._mute(who),
        }
        act = acts[event.do]
        if event.do in ("crash", "leave", "update", "mute_relay"):
            return lambda: self._act_of(event, who, act)
        return act

    def _act_of(self, event: ScriptEvent, who: str, act: Callable[[], None]) -> None:
        """Do what only those who are there can do.  Raises VectorError."""
        what = f"{event.do} of {who} at {event.at} s"
        if who not in self.world.processes:
            raise VectorError(f"{what}: it is not there")
        try:
            act()
        except LocalProtocolError as error:
            raise VectorError(f"{what}: {error}") from error

    def _start(self, who: str, event: ScriptEvent) -> None:
        if who in self.world.nodes():
            raise VectorError(f"start of {who} at {event.at} s: it is there already")
        self._begin(who, event)

    def _restart(self, who: str, event: ScriptEvent) -> None:
        if who in self.world.processes:
            self.world.crash(who)
        self._begin(who, event)

    def _begin(self, who: str, event: ScriptEvent) -> None:
        data = f"{who} {event.at}" if event.data is None else event.data
        self.world.start(who, data.encode(), wish=event.id)

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
        for views in several(expect.views_at):
            yield ns(views.at), partial(self._check_views, views)
        for gone in several(expect.gone_everywhere):
            yield ns(gone.by), partial(self._check_listed, gone.id, gone.by, False)
        for at in several(expect.split_at):
            yield ns(at), partial(self._check_split, at)

    def _check_split(self, at: float) -> None:
        wrong = self.world.faults_of_views(ignore_extra=True, ignore_refused=True)
        self._check(bool(wrong), f"the views are whole at {at} s, expected a split")

    def _check_views(self, views: ViewsAt) -> None:
        if views.exact:
            wrong = self.world.faults_of_views(ignore_extra=views.ignore_extra, ignore_refused=True)
            self._check(not wrong, f"views at {views.at} s: {'; '.join(wrong[:5])}")
        for identity in views.absent:
            self._check_listed(identity, views.at, False)
        for identity in views.present:
            self._check_listed(identity, views.at, True)

    def _check_listed(self, identity: int, at: float, listed: bool) -> None:
        for address, node in self.world.admitted().items():
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
        low, high = ns(expect.messages_after), expect.messages_before * NS_PER_S
        window = [each for each in self.world.posted if low <= each.time_ns <= high]
        if expect.messages is not None:
            self._check_multiset(window, expect.messages)
        for count in several(expect.count):
            found = sum(message_name(each.message) == count.t for each in window)
            most = FOR_EVER if count.max is None else count.max
            self._check(
                count.min <= found <= most,
                f"{found} {count.t}, expected from {count.min} to {most}",
            )
        for times in several(expect.times):
            self._check_times(times)

    def _check_multiset(self, window: list[Posted], expected: list[MessageExpected]) -> None:
        names = {each.t for each in expected}
        found = [self._fields(each) for each in window if message_name(each.message) in names]
        left = list(found)
        for each in (msgspec.to_builtins(one) for one in expected):
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
        for gone in several(expect.gone):
            at_ns = self.world.gone_ns.get(gone.who)
            good = at_ns is not None and gone.after <= at_ns / NS_PER_S <= gone.before
            when = "never" if at_ns is None else f"at {at_ns / NS_PER_S} s"
            self._check(good, f"{gone.who} is gone {when}, not in {gone.after} … {gone.before} s")
        nodes = self.world.nodes()
        if expect.unique_ids:
            often = Counter(node.id for node in nodes.values() if node.id is not None)
            twice = [identity for identity, times in often.items() if times > 1]
            self._check(not twice, f"ids held more than once: {twice}")
        for identity, who in expect.holder.items():
            holders = [address for address, node in nodes.items() if node.id == int(identity)]
            self._check(holders == [who], f"id {identity} is held by {holders}, not by {who}")


def _fits(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(
        name in found and _same(name, found[name], value) for name, value in expected.items()
    )


def _same(name: str, found: Any, value: Any) -> bool:
    if name == "at":
        return bool(abs(found - value) <= TIME_TOLERANCE_S)
    if name == "maps" and value is not None:
        return bool(found == sorted(value))
    return bool(found == value)


def check_script(raw: Any) -> list[str | None]:
    """Run a script; return one entry per check: None, or why it failed.  Raises VectorError."""
    run = ScriptRun(read_script(raw))
    run.run()
    return [*run.failures, *[None] * (run.checks - len(run.failures))]
