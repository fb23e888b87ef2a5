"""Traces of discovery made up in bulk, for those who audit the auditor.

Participants begin within a stretch of time, learn each other and each other's newer MAPs after a
drawn latency, and forget who leaves or crashes; all that as it should be.  Then some of it does not
happen, or happens too late, as `DomainFaults` says.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from orderwire.trace.discovery_events import LEFT, SILENT
from orderwire.trace.events import NO_ORDER, DiscoveryRun, RunSettings
from orderwire.trace.schema import arrow_schema
from orderwire.verify.kernels.columns import (
    ADOPT,
    BOOT,
    END,
    EXPIRE,
    GONE,
    HEAR,
    I64,
    KINDS,
    LEARN,
    LEAVE,
    POST,
    START,
    UPDATE,
)

CHUNK_EVENTS = 131_072
_REASONS = ("", SILENT, LEFT, "JOIN", "JOIN_ACK", "UPDATE", "HEARTBEAT")
_SILENT, _LEFT, _JOIN, _JOIN_ACK, _UPDATE, _HEARTBEAT = range(1, len(_REASONS))
_NS_PER_MS = 1_000_000
_HEARTBEAT_NS = 1_250 * _NS_PER_MS
_HEARTBEAT_BYTES = 60


class DomainFaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much goes wrong, as ratios of what could."""

    unheard: float = 0.0
    """Pairs of which one never learns the other."""
    outdated: float = 0.0
    """Newer MAPs that somebody never learns."""
    immortal: float = 0.0
    """Ends that somebody never notices."""
    risen: float = 0.0
    """Ends after which somebody learns the dead one again, much too late."""
    stale: float = 0.0
    """Pairs learnt from evidence much older than T_fail."""


class DomainSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What domain to make up."""

    participants: int
    """That begin at the start; those that come back are more lives of the same."""
    window_ns: int = 500 * _NS_PER_MS
    """They begin within so long."""
    latency_ns: int = 20 * _NS_PER_MS
    """Mean time from when both are there until one learns the other."""
    updates: int = 1
    """Newer MAPs of each participant."""
    crash_ratio: float = 0.1
    leave_ratio: float = 0.1
    """Of the participants; half of those that go come back."""
    heartbeats: int = 0
    """Broadcasts of each participant that only tell that it lives."""
    map_bytes: int = 368
    seed: int = 1
    run_id: str = "domain"
    protocol: str = "fdp"
    faults: DomainFaults = DomainFaults()

    def run_settings(self) -> RunSettings:
        """Return the settings that every process's START event tells."""
        return RunSettings(
            algorithm=NO_ORDER,
            members=self.participants,
            discovery=DiscoveryRun(protocol=self.protocol),
        )


@dataclass(frozen=True, slots=True)
class _Lives:
    process: I64
    boot: I64
    adopt: I64
    end: I64
    """TIME of its end; after the run's for those that stay."""
    crash: I64
    id: I64
    incarnation: I64


_COLUMNS = ("process", "kind", "time", "source", "number", "age", "reason", "bytes", "id", "inc")
_Rows = dict[str, I64]


def synthetic_domain(settings: DomainSettings) -> pa.Table:
    """Return the whole trace, sorted by time."""
    return pa.Table.from_batches(list(synthetic_domain_batches(settings)), arrow_schema())


def synthetic_domain_batches(settings: DomainSettings) -> Iterator[pa.RecordBatch]:
    """Yield the trace in the order of time, `CHUNK_EVENTS` a batch."""
    rows = _ordered(list(_all_rows(settings)))
    detail = msgspec.json.encode(settings.run_settings()).decode()
    kinds, reasons = pa.array(KINDS, pa.string()), pa.array(_REASONS, pa.string())
    schema = arrow_schema()
    for start in range(0, len(rows["time"]), CHUNK_EVENTS):
        part = {name: values[start : start + CHUNK_EVENTS] for name, values in rows.items()}
        count = len(part["time"])
        has_peer = ~np.isin(part["kind"], [START, END, BOOT, UPDATE, LEAVE, GONE])
        has_incarnation = np.isin(part["kind"], [ADOPT, LEARN, EXPIRE])
        first = pa.array((part["kind"] == START).astype(np.int64))
        evidence = np.where(np.isin(part["kind"], [LEARN, EXPIRE]), part["time"] - part["age"], -1)
        empty = pa.array(np.zeros(count, np.int64))
        columns: Mapping[str, object] = {
            "run_id": pa.array([settings.run_id], pa.string()).take(empty),
            "process": part["process"].astype(np.int32),
            "position": part["position"],
            "kind": kinds.take(pa.array(part["kind"])),
            "time_ns": part["time"],
            "clock_ns": part["time"],
            "source": part["source"].astype(np.int32),
            "number": part["number"],
            "stamp_ns": np.full(count, -1),
            "arrived_ns": evidence,
            "destinations": pa.array([b""], pa.binary()).take(empty),
            "reason": reasons.take(pa.array(part["reason"])),
            "control_bytes": np.zeros(count, np.int32),
            "payload_bytes": part["bytes"].astype(np.int32),
            "detail": pa.array(["", detail], pa.string()).take(first),
            "vector_clock": pa.nulls(count, pa.list_(pa.int64())),
            "lifetime_ns": pa.nulls(count, pa.int64()),
            "peer_id": pa.array(part["id"], mask=~has_peer),
            "incarnation": pa.array(part["inc"], mask=~has_incarnation),
            "channel_number": pa.nulls(count, pa.int64()),
        }
        yield pa.record_batch([columns[name] for name in schema.names], schema=schema)


def _all_rows(settings: DomainSettings) -> Iterator[_Rows]:
    chance = np.random.default_rng(settings.seed)
    promise = DiscoveryRun()
    last_begin = settings.window_ns + 3 * promise.settle_ns
    run_end = last_begin + 3 * promise.settle_ns
    lives = _draw_lives(settings, chance, last_begin, run_end)
    everyone = np.arange(settings.participants)
    yield _rows(everyone, START, everyone * 0)
    yield _rows(everyone, END, everyone * 0 + run_end)
    yield _rows(lives.process, BOOT, lives.boot)
    yield _rows(
        *(lives.process, ADOPT, lives.adopt),
        id=lives.id,
        inc=lives.incarnation,
        number=lives.id * 0 + 1,
    )
    ended = lives.end < run_end
    crashed = ended & (lives.crash == 1)
    yield _rows(lives.process[ended & ~crashed], LEAVE, lives.end[ended & ~crashed])
    yield _rows(*(lives.process[crashed], GONE, lives.end[crashed]), source=lives.process[crashed])
    count = len(lives.process)
    observer, owner = np.divmod(np.arange(count * count), count)
    joined = np.maximum(lives.adopt[observer], lives.adopt[owner])
    latency = 1_000 + chance.exponential(settings.latency_ns, len(owner)).astype(np.int64)
    latency = np.minimum(latency, promise.margin_ns // 2)
    learnt = joined + latency
    both = np.minimum(lives.end[observer], lives.end[owner])
    met = (lives.process[observer] != lives.process[owner]) & (learnt < both)
    faults = settings.faults
    met &= chance.random(len(met)) >= faults.unheard
    observer, owner, learnt, latency = observer[met], owner[met], learnt[met], latency[met]
    stale = chance.random(len(owner)) < faults.stale
    told = {"id": lives.id[owner], "inc": lives.incarnation[owner]}
    watcher = lives.process[observer]
    one = np.ones(len(owner), np.int64)
    age = np.where(stale, promise.fail_ns + promise.margin_ns + 1_000, 0)
    yield _rows(watcher, LEARN, learnt, **told, number=one, age=age)
    by_join = lives.adopt[owner] > lives.adopt[observer]
    hop = 1 + (chance.random(len(owner)) * np.log2(max(2, count))).astype(np.int64)
    message = np.where(by_join, _JOIN, _JOIN_ACK)
    hop = np.where(by_join, hop, 0)
    sent = np.maximum(joined[met], learnt - latency)
    yield from _carried(lives, owner, observer, sent, learnt, message, hop, settings.map_bytes)
    for version in range(2, settings.updates + 2):
        changes = settings.window_ns + promise.settle_ns * (version - 1) // settings.updates
        at = changes + chance.integers(0, 100 * _NS_PER_MS, count)
        yield from _changes(
            settings, chance, lives, (observer, owner, learnt, latency), at, version
        )
    for beat in range(settings.heartbeats):
        at = lives.adopt + beat * _HEARTBEAT_NS
        alive = (at[owner] > learnt) & (
            at[owner] + latency < np.minimum(lives.end[observer], lives.end[owner])
        )
        o, w = owner[alive], observer[alive]
        yield from _carried(
            *(lives, o, w, at[o], at[o] + latency[alive]),
            np.full(len(o), _HEARTBEAT),
            hop[alive] + (hop[alive] == 0),
            _HEARTBEAT_BYTES,
        )
    notices = lives.end[owner] + np.where(lives.crash[owner] == 1, promise.fail_ns, 0) + latency
    noticed = (notices < lives.end[observer]) & (lives.end[owner] < run_end)
    noticed &= chance.random(len(noticed)) >= faults.immortal
    risen = noticed & (chance.random(len(noticed)) < faults.risen)
    o, w, when = owner[noticed], observer[noticed], notices[noticed]
    crash = lives.crash[o] == 1
    yield _rows(
        *(lives.process[w], EXPIRE, when),
        id=lives.id[o],
        inc=lives.incarnation[o],
        reason=np.where(crash, _SILENT, _LEFT),
        age=np.where(crash, promise.fail_ns, 0),
    )
    again = lives.end[owner] + promise.fail_ns + 2 * promise.margin_ns
    risen &= again < lives.end[observer]
    o, w = owner[risen], observer[risen]
    yield _rows(
        *(lives.process[w], LEARN, again[risen]),
        id=lives.id[o],
        inc=lives.incarnation[o],
        number=np.ones(len(o), np.int64),
        age=again[risen] - lives.end[o],
    )


def _draw_lives(
    settings: DomainSettings, chance: np.random.Generator, last_begin: int, run_end: int
) -> _Lives:
    """Draw who begins when and who goes; half of those that go come back, with a new id."""
    count = settings.participants
    process = np.arange(count)
    boot = 1 + chance.integers(0, settings.window_ns, count)
    fate = chance.random(count)
    goes = fate < settings.crash_ratio + settings.leave_ratio
    crash = (fate < settings.crash_ratio).astype(np.int64)
    settled = settings.window_ns + 2 * DiscoveryRun().settle_ns
    ends = settled + chance.integers(0, settings.window_ns, count)
    end = np.where(goes, ends, run_end)
    back = np.flatnonzero(goes & (chance.random(count) < 0.5))
    process = np.concatenate([process, process[back]])
    boot = np.concatenate([boot, end[back] + 200 * _NS_PER_MS])
    end = np.concatenate([end, np.full(len(back), run_end)])
    crash = np.concatenate([crash, np.zeros(len(back), np.int64)])
    adopt = boot + 2 * _NS_PER_MS + chance.integers(0, 5 * _NS_PER_MS, len(boot))
    assert int(adopt.max(initial=0)) < last_begin
    # Ids use all of 64 bits; incarnations are issued in the order of adoption.
    ids = chance.integers(-(2**63), 2**63 - 1, len(boot))
    incarnation = np.empty(len(boot), np.int64)
    incarnation[np.argsort(adopt, kind="stable")] = 1 + np.arange(len(boot))
    return _Lives(process, boot, adopt, end, crash, ids, incarnation)


def _changes(
    settings: DomainSettings,
    chance: np.random.Generator,
    lives: _Lives,
    pairs: tuple[I64, I64, I64, I64],
    at: I64,
    version: int,
) -> Iterator[_Rows]:
    """Yield one newer MAP of each life that is there, and who learns it."""
    observer, owner, learnt, latency = pairs
    changes = (lives.adopt < at) & (at < lives.end)
    which = np.flatnonzero(changes)
    yield _rows(lives.process[which], UPDATE, at[which], number=np.full(len(which), version))
    hears = at[owner] + latency
    heard = changes[owner] & (learnt < hears)
    heard &= hears < np.minimum(lives.end[observer], lives.end[owner])
    # Who is learnt after the change is learnt with the MAP of the start: catch up at once.
    late = changes[owner] & (learnt >= at[owner])
    hears = np.where(late, learnt + 1, hears)
    heard |= late & (hears < np.minimum(lives.end[observer], lives.end[owner]))
    kept = heard & (chance.random(len(heard)) >= settings.faults.outdated)
    o, w = owner[kept], observer[kept]
    yield _rows(
        *(lives.process[w], LEARN, hears[kept]),
        id=lives.id[o],
        inc=lives.incarnation[o],
        number=np.full(len(o), version),
    )
    update = np.full(len(o), _UPDATE)
    hop = 1 + (chance.random(len(o)) * np.log2(max(2, len(lives.process)))).astype(np.int64)
    sent = np.minimum(at[o], hears[kept])
    yield from _carried(lives, o, w, sent, hears[kept], update, hop, settings.map_bytes // 4)


def _carried(
    lives: _Lives,
    owner: I64,
    observer: I64,
    sent: I64,
    heard: I64,
    message: I64,
    hop: I64,
    size_bytes: int,
) -> Iterator[_Rows]:
    """Yield the message that brought something, from the owner to the observer."""
    size = np.full(len(owner), size_bytes)
    to, sender = lives.id[observer], lives.id[owner]
    told = {"reason": message, "number": hop, "bytes": size}
    yield _rows(lives.process[owner], POST, sent, id=to, **told)
    yield _rows(lives.process[observer], HEAR, heard, id=sender, **told)


def _rows(process: I64, kind: int, time: I64, **more: I64) -> _Rows:
    count = len(process)
    usual = {"source": -1, "number": -1}
    rows = {name: np.full(count, usual.get(name, 0), np.int64) for name in _COLUMNS}
    rows |= {"process": process, "kind": np.full(count, kind, np.int64), "time": time}
    return rows | more


def _ordered(parts: list[_Rows]) -> _Rows:
    """Return all rows by time, each with its position in its process's timeline."""
    rows = {name: np.concatenate([part[name] for part in parts]) for name in _COLUMNS}
    # At equal times a timeline begins with START, hears before it learns, and ends with END.
    rank = np.zeros(len(KINDS), np.int64)
    for at, kind in enumerate((START, BOOT, ADOPT, UPDATE, HEAR, LEARN, EXPIRE, POST)):
        rank[kind] = at
    rank[[LEAVE, GONE]], rank[END] = len(KINDS), len(KINDS) + 1
    order = np.lexsort((rank[rows["kind"]], rows["time"]))
    rows = {name: values[order] for name, values in rows.items()}
    process = rows["process"]
    grouped = np.argsort(process, kind="stable")
    sizes = np.bincount(process)
    position = np.empty(len(process), np.int64)
    first = np.repeat(np.cumsum(sizes) - sizes, sizes)
    position[grouped] = np.arange(len(process)) - first
    return rows | {"position": position}
