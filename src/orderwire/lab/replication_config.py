"""The parameters of one run of a replicated partition, flat, and the run itself.  [S004:sec.4]"""

from collections.abc import Mapping
from math import ceil

import msgspec
from msgspec.structs import replace

from orderwire.broker.flush import Flush
from orderwire.broker.replication.settings import (
    Coordination,
    Distribution,
    Mode,
    ReplicationSettings,
)
from orderwire.kernel import NS_PER_S
from orderwire.lab.models.s004 import (
    active_active_cost,
    active_standby_cost,
    gain_at_worst,
    loss_at_best,
    messages_through,
    printed_gain_at_worst,
    printed_loss_at_best,
    relay_cost,
    sigma_of,
    speed_up,
    speed_up_with_own_share,
)
from orderwire.sim.replication_cluster import READ_BYTES
from orderwire.sim.replication_costs import Costs
from orderwire.sim.replication_timed import TimedPlan, TimedResult, run_timed

MODES: Mapping[str, Mode] = {mode.value: mode for mode in Mode}
TEXT_BYTES = 152_331
"""Length of the paper's text.  [S004:sec.4]"""
MESSAGE_BYTES = 100
TEXT_MESSAGES = -(-TEXT_BYTES // MESSAGE_BYTES)
REPLICAS_MAX = 16
PHASES = ("produce", "consume", "both", "equations", "gain")
NEVER_NS = 100_000 * NS_PER_S
"""Nobody is too late: every broker works as long as it takes."""


def _ns(microseconds: float) -> int:
    return round(microseconds * 1e3)


class ReplicationConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="replication"
):
    """One run, without its seed."""

    algorithm: str
    """The mode."""
    replicas: int = 2
    """Brokers, each with a replica of every partition."""
    partitions: int = 1
    users: int = 5
    """Producers, and where the phase has them as many consumers, each in a closed loop."""
    phase: str = "produce"
    """`produce`, `consume` (what is there already) or `both` at once; `equations`: what one replica
    spends on replicating, beside what the paper's equations say; `gain`: `produce`, beside
    active-standby that stores every message by itself."""
    messages: int = TEXT_MESSAGES
    """Of each producer."""
    scale: float = 1.0
    """A part of the messages, and of the period: the same run, shorter."""
    acks: int = 1
    flush: str = "message"
    """`message`: each by itself, before its answer, as the paper stores; `group`: what has come
    together; `none`: page caches only."""
    distribution: str = "request"
    coordination: str = "zookeeper"
    sync_s: float = 5.0
    """The period of synchronisation."""
    sync_on_fetch: bool = False
    eager: bool = False
    spread_reads: bool = True
    """Whether consumers read at any replica."""
    fetch_bytes: int = READ_BYTES
    """Most bytes of one answer; at least one message is in it."""
    r_us: float = 8.0
    s_us: float = 2_000.0
    sigma: float = 0.25
    rho: float = 0.2
    link_us: float = 100.0
    client_us: float = 200.0
    zookeeper_us: float = 1_000.0

    def check(self) -> None:
        """Raise ValueError for what makes no sense."""
        known: list[tuple[str, str, tuple[str, ...]]] = [
            ("mode", self.algorithm, tuple(MODES)),
            ("phase", self.phase, PHASES),
            ("flush", self.flush, tuple(each.value for each in Flush)),
            ("distribution", self.distribution, tuple(each.value for each in Distribution)),
            ("coordination", self.coordination, tuple(each.value for each in Coordination)),
        ]
        for what, value, values in known:
            if value not in values:
                raise ValueError(f"{what} {value!r}; there are {', '.join(values)}")
        if not 2 <= self.replicas <= REPLICAS_MAX:
            raise ValueError(f"{self.replicas} replicas; expected 2 … {REPLICAS_MAX}")
        if self.partitions < 1 or self.users < 1 or self.messages < 1:
            raise ValueError(
                f"{self.partitions} partitions, {self.users} users, {self.messages} messages;"
                " expected at least one of each"
            )
        if not 0 < self.scale <= 1:
            raise ValueError(f"scale {self.scale}; expected more than 0, at most 1")
        if self.acks not in (1, -1):
            raise ValueError(f"acks {self.acks}; expected 1 or -1")

    @property
    def sent_each(self) -> int:
        """Messages of each producer."""
        return max(1, round(self.messages * self.scale))

    @property
    def cost(self) -> float:
        """Roughly how long a run takes, in messages stored or read."""
        sent = float(self.sent_each * (1 if self.phase == "consume" else self.users))
        cost = sent * (1 + self.replicas) * (2 if self.phase in ("equations", "gain") else 1)
        if self.phase == "both":
            cost += 0.3 * sent * self.users
        if self.phase == "consume":
            cost += self.users * self.sent_each
        return cost

    def plan(self) -> TimedPlan:
        """Return what the simulator is to do."""
        reading = self.phase == "consume"
        replication = ReplicationSettings(
            flush=Flush(self.flush),
            sync_interval_ns=_ns(self.sync_s * self.scale * 1e6),
            sync_on_fetch=self.sync_on_fetch,
            eager_copy=self.eager,
            distribution=Distribution(self.distribution),
            coordination=Coordination(self.coordination),
            round_timeout_ns=NEVER_NS,
            link_grace_ns=NEVER_NS,
        )
        costs = Costs(
            send_ns=_ns(self.r_us),
            store_ns=_ns(self.s_us),
            sigma=self.sigma,
            rho=self.rho,
            link_ns=_ns(self.link_us),
            client_ns=_ns(self.client_us),
            zookeeper_ns=_ns(self.zookeeper_us),
        )
        return TimedPlan(
            mode=MODES[self.algorithm],
            replication=replication,
            costs=costs,
            brokers=self.replicas,
            partitions=self.partitions,
            producers=self.partitions if reading else self.users,
            messages=self.sent_each,
            value_bytes=MESSAGE_BYTES,
            acks=self.acks,
            consumers=self.users if self.phase == "both" else 0,
            readers=self.users if reading else 0,
            spread_reads=self.spread_reads,
            fetch_bytes=self.fetch_bytes,
        )

    def measure(self, seed: int) -> dict[str, float]:
        """Run it; return its measures by name."""
        if self.phase == "equations":
            return self._equations(seed)
        if self.phase == "gain":
            return self._gain(seed)
        return self.measures(run_timed(self.plan(), seed))

    def measures(self, result: TimedResult) -> dict[str, float]:
        """What figures show of a run."""
        sent = self.users * self.sent_each
        busy = result.busy_ns
        processor = [sum(each.values()) - each["alone"] - each["together"] for each in busy]
        disk = [each["alone"] + each["together"] for each in busy]
        found = {
            "produce_s": result.produce_ns / 1e9,
            "commit_s": result.commit_ns / 1e9,
            "consume_s": (result.read_ns or result.consume_ns) / 1e9,
            "answer_ms": result.answer_ns / 1e6,
            "rounds": float(result.rounds),
            "processor_share": max(processor) / result.commit_ns,
            "disk_share": max(disk) / result.commit_ns,
            "moved": max(result.moved) / sent,
        }
        if self.phase == "both":
            found["end_s"] = max(found["produce_s"], found["consume_s"])
        if self.phase != "consume":
            found["messages_per_s"] = sent / found["produce_s"]
        return found

    def _gain(self, seed: int) -> dict[str, float]:
        """Run this and active-standby with the same acks, costs and clients, one partition.

        `sigma_seen` is the σ that explains the gain by S(n, σ); there is none for a loss beyond it.
        """
        standby = replace(self, algorithm=Mode.ACTIVE_STANDBY.value, partitions=1, flush="message")
        before = self.measures(run_timed(standby.plan(), seed))
        found = self.measures(run_timed(self.plan(), seed))
        gain = before["produce_s"] / found["produce_s"]
        model = speed_up(self.replicas, self.sigma)
        own_share = speed_up_with_own_share(self.replicas, self.sigma)
        mode = MODES[self.algorithm]
        moved = messages_through(
            self.replicas,
            spread=mode is not Mode.ACTIVE_STANDBY or self.partitions >= self.replicas,
            relayed=mode is Mode.ACTIVE_ACTIVE,
        )
        return found | {
            "gain": gain,
            "sigma_seen": sigma_of(self.replicas, min(gain, self.replicas)),
            "model": model,
            "model_own_share": own_share,
            "gain_over_model": gain / model,
            "gain_over_own_share": gain / own_share,
            "moved_ratio": found["moved"] / moved,
        }

    def _equations(self, seed: int) -> dict[str, float]:
        """Run both modes; return what a replica spends on replicating, in ms.

        The mean over those that are not the original, without clients' requests and without what
        active-active hands over, which (1) and (2) leave out; that is `relay_ms`, at the original.
        In active-active a replica's share that it stored when it came is left out too: (2) counts
        the k messages that it lacks.  `_equation` is (1), (2), or what follows from them, with
        a = b = 1; `_printed` what the paper prints.  `_worst`: with a = n − 1, all standbys taken
        together, and b = 2, each message sent and received.
        """
        n, m = self.replicas, self.users * self.sent_each
        r, s = self.r_us / 1e3, self.s_us / 1e3
        standby = replace(self, algorithm=Mode.ACTIVE_STANDBY.value, acks=-1)
        standing = run_timed(standby.plan(), seed).busy_ns
        acting = run_timed(replace(self, algorithm=Mode.ACTIVE_ACTIVE.value).plan(), seed).busy_ns

        def spent(busy: list[dict[str, int]], *kinds: str) -> float:
            return sum(each.get(kind, 0) for each in busy[1:] for kind in kinds) / (n - 1) / 1e6

        as_ms = spent(standing, "copy", "control", "alone", "together")
        aa_ms = spent(acting, "copy", "control", "together")
        relay_ms = acting[0].get("relay", 0) / 1e6
        relay = relay_cost(n, m, r)
        as_worst_ms = as_ms * (n - 1)
        aa_worst = active_active_cost(n, m, r, s, b=2)
        worst = gain_at_worst(n, m, r, s)
        as_equation, aa_equation = active_standby_cost(n, m, r, s), active_active_cost(n, m, r, s)
        return {
            "as_ms": as_ms,
            "as_equation_ms": as_equation,
            "as_ratio": as_ms / as_equation,
            "aa_ms": aa_ms,
            "aa_equation_ms": aa_equation,
            "aa_ratio": aa_ms / aa_equation,
            "aa_messages_ms": spent(acting, "copy", "control"),
            "aa_messages_equation_ms": aa_equation - s * ceil(m * (n - 1) / n),
            "aa_messages_worst_ms": aa_worst - s * ceil(m * (n - 1) / n),
            "aa_messages_worst_ratio": spent(acting, "copy", "control")
            / (aa_worst - s * ceil(m * (n - 1) / n)),
            "aa_storing_ms": spent(acting, "together"),
            "relay_ms": relay_ms,
            "relay_equation_ms": relay,
            "relay_ratio": relay_ms / relay,
            "gain_ms": as_ms - aa_ms,
            "gain_equation_ms": -loss_at_best(n, m, r, s),
            "gain_printed_ms": -printed_loss_at_best(n, m, r, s),
            "gain_share": (as_ms - aa_ms) / as_ms,
            "gain_relayed_ms": as_ms - aa_ms - relay_ms,
            "gain_relayed_share": (as_ms - aa_ms - relay_ms) / as_ms,
            "as_worst_ms": as_worst_ms,
            "as_worst_equation_ms": active_standby_cost(n, m, r, s, a=n - 1),
            "aa_worst_equation_ms": aa_worst,
            "gain_worst_ms": as_worst_ms - aa_ms,
            "gain_worst_equation_ms": worst,
            "gain_worst_ratio": (as_worst_ms - aa_ms) / worst,
            "gain_worst_printed_ms": printed_gain_at_worst(n, m, r, s),
            "printed_worst_ratio": printed_gain_at_worst(n, m, r, s) / worst,
            "printed_ratio": printed_loss_at_best(n, m, r, s) / loss_at_best(n, m, r, s),
        }
