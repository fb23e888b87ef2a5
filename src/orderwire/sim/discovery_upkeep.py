"""What a domain costs once it stands: silence, updates, a join, a goodbye and a crash, on the LAN.

The domain boots, becomes quiet, and is then disturbed by one thing after the other.  Each is
measured by itself; `run_upkeep` returns all of it in one piece.
"""

from collections import Counter
from statistics import fmean
from typing import Any

import msgspec

from orderwire.discovery.commands import Change, Ended, Learnt, WholeMaps
from orderwire.discovery.messages import (
    IdReply,
    Join,
    JoinAck,
    Leave,
    LeaveAck,
    Maps,
    Message,
    Pull,
    Release,
    RequestId,
    Update,
)
from orderwire.kernel import NS_PER_MS, NS_PER_S, ms
from orderwire.sim.discovery_lan import SLICE_NS, DiscoveryScenario, LanRun

SETTLE_NS = 4 * NS_PER_S
"""After news anti-entropy needs a few rounds to slow down."""
STEP_NS = 20 * NS_PER_MS
WAIT_NS = 30 * NS_PER_S
"""How long anything is waited for."""
BROADCAST_BYTES = 72
"""What an UPDATE takes without its change."""
JOINING = (RequestId, IdReply, Join, JoinAck, Pull, Maps)
LEAVING = (Leave, LeaveAck, Release)


class UpkeepPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is done to the domain; the scenario must have a participant to spare for a join."""

    updates: int = 4
    """Participants that change their MAP, one after the other."""
    update_bytes: int = 368
    """Size of an UPDATE, head included."""
    idle_ns: int = 10 * NS_PER_S
    """How long the silence is listened to; 0 leaves it out, and all that comes after."""


class Upkeep(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it.  Times are seconds."""

    boot_s: float
    pairs_missing: int
    """Of the boot; with any, nothing else is measured."""
    update_max_s: float = 0.0
    """Mean over the updates of the time until all have it …"""
    update_mean_s: float = 0.0
    """… and until one of them has it, on average."""
    update_messages: float = 0.0
    idle_messages_per_s: float = 0.0
    """Of one participant: what it sends, and what the server answers it."""
    idle_bytes_per_s: float = 0.0
    """Payload bytes of them."""
    join_s: float = 0.0
    """Until all know the newcomer and it knows all."""
    join_messages: int = 0
    """Of a join, answers and what is fetched included."""
    join_bytes: int = 0
    leave_s: float = 0.0
    """Until all know that it has left."""
    leave_messages: int = 0
    crash_first_s: float = 0.0
    """From a silent crash until the first one notices …"""
    crash_mean_s: float = 0.0
    crash_last_s: float = 0.0
    """… and until all have."""
    events: int = 0


class _UpkeepRun(LanRun):
    """A run that is told what happens after the boot."""

    def __init__(self, scenario: DiscoveryScenario, plan: UpkeepPlan, seed: int) -> None:
        self._form = _Change(max(1, plan.update_bytes - BROADCAST_BYTES))
        super().__init__(scenario, seed)
        self._plan = plan
        self.domain.listeners.append(self._note)
        self._subject = ""
        self._versions: dict[str, int] = {}
        """By receiver: when the subject's newest MAP was learned."""
        self._ends: dict[str, int] = {}
        """By receiver: when it took note of the subject's end."""
        self._subject_id = -1

    def form(self) -> WholeMaps:
        """Return how changes are told."""
        return self._form

    def _note(self, now_ns: int, address: str, indication: Any) -> None:
        if type(indication) is Learnt and indication.addr == self._subject:
            self._versions.setdefault(address, now_ns)
        elif type(indication) is Ended and indication.id == self._subject_id:
            self._ends.setdefault(address, now_ns)

    def _watch(self, host: int) -> int:
        """Look at this participant from now on; return the time."""
        self._subject = self.names[host]
        core: Any = self.domain.processes[self._subject].core
        self._subject_id = core.id if core.id is not None else -1
        self._versions.clear()
        self._ends.clear()
        return self.world.now_ns

    def _await(self, seen: dict[str, int], count: int) -> list[int]:
        """Let time pass until so many have seen it; return when each did."""
        until_ns = self.world.now_ns + WAIT_NS
        while len(seen) < count and self.world.now_ns < until_ns:
            self.world.run(self.world.now_ns + STEP_NS)
        return sorted(seen.values())

    def _since(self, sent: Counter[type[Message]], kinds: tuple[Any, ...]) -> int:
        return sum(self.sent[kind] - sent[kind] for kind in kinds)

    def upkeep(self) -> Upkeep:
        """Boot, and do what the plan says."""
        self.boot()
        boot_s = self.world.now_ns / NS_PER_S
        found: dict[str, Any] = {}
        if not self.pairs_left:
            self.world.run(self.world.now_ns + SETTLE_NS)
            found |= self._updates()
            if self._plan.idle_ns:
                found |= self._idle() | self._join() | self._goodbye() | self._crash()
        return Upkeep(
            boot_s=boot_s, pairs_missing=self.pairs_left, events=self.world.events, **found
        )

    def _updates(self) -> dict[str, Any]:
        count = self._plan.updates
        last, mean, messages = [], [], 0
        for turn in range(count):
            host = turn * self.n // count
            began_ns = self._watch(host)
            change = Change(map=bytes(self.scenario.population.map_bytes(host)))
            sent = self.sent.copy()
            self.domain.command(self._subject, change)
            seen = self._await(self._versions, self.n - 1)
            messages += self._since(sent, (Update,))
            last.append((seen[-1] - began_ns) / NS_PER_S)
            mean.append((fmean(seen) - began_ns) / NS_PER_S)
            self.world.run(self.world.now_ns + ms(200))
        if not count:
            return {}
        return {
            "update_max_s": fmean(last),
            "update_mean_s": fmean(mean),
            "update_messages": messages / count,
        }

    def _idle(self) -> dict[str, Any]:
        self.world.run(self.world.now_ns + SETTLE_NS)
        idle_ns = self._plan.idle_ns
        sent, size = self.sent.copy(), self.sent_bytes.copy()
        self.world.run(self.world.now_ns + idle_ns)
        kinds = list(self.sent)
        per_second = self.n * idle_ns / NS_PER_S
        return {
            "idle_messages_per_s": self._since(sent, tuple(kinds)) / per_second,
            "idle_bytes_per_s": sum(self.sent_bytes[kind] - size[kind] for kind in kinds)
            / per_second,
        }

    def _join(self) -> dict[str, Any]:
        host, began_ns = self.n, self.world.now_ns
        sent, size = self.sent.copy(), self.sent_bytes.copy()
        self.starts_ns[host] = began_ns
        self.pairs_left = 2 * self.n
        self.start(host)
        until_ns = began_ns + WAIT_NS
        while self.pairs_left and self.world.now_ns < until_ns:
            self.world.run(self.world.now_ns + SLICE_NS)
        done_ns = self.learned_ns
        self.world.run(self.world.now_ns + NS_PER_S)
        return {
            "join_s": (done_ns - began_ns) / NS_PER_S,
            "join_messages": self._since(sent, JOINING),
            "join_bytes": sum(self.sent_bytes[kind] - size[kind] for kind in JOINING),
        }

    def _goodbye(self) -> dict[str, Any]:
        began_ns = self._watch(self.n)
        sent = self.sent.copy()
        self.domain.leave(self._subject)
        seen = self._await(self._ends, self.n)
        self.world.run(self.world.now_ns + NS_PER_S)
        return {
            "leave_s": (seen[-1] - began_ns) / NS_PER_S if seen else 0.0,
            "leave_messages": self._since(sent, LEAVING),
        }

    def _crash(self) -> dict[str, Any]:
        host = self.n // 2
        began_ns = self._watch(host)
        self.domain.crash(self._subject, silent=True)
        self.lan.down(host, silent=True)
        seen = self._await(self._ends, self.n - 1)
        return {
            "crash_first_s": (seen[0] - began_ns) / NS_PER_S,
            "crash_mean_s": (fmean(seen) - began_ns) / NS_PER_S,
            "crash_last_s": (seen[-1] - began_ns) / NS_PER_S,
        }


class _Change(WholeMaps):
    """A change of a given size."""

    def __init__(self, size_bytes: int) -> None:
        self._change = bytes(size_bytes)

    def difference(self, old: bytes, new: bytes) -> bytes:
        """Return that many bytes."""
        return self._change


def run_upkeep(scenario: DiscoveryScenario, plan: UpkeepPlan, seed: int) -> Upkeep:
    """Run one scenario; the same seed gives the same run."""
    return _UpkeepRun(scenario, plan, seed).upkeep()
