"""What the demo measured of its replicas, and how the report shows it."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from orderwire.cli.demo.audits import audit_told, checks_table
from orderwire.report.html import Section, Table
from orderwire.verify.replication_audit import HistoryReport
from orderwire.verify.verdict import Verdict

Places = dict[tuple[str, int], dict[int, dict[str, Any]]]
"""What each broker says of each partition."""
Carried = Mapping[tuple[str, int], Mapping[int, tuple[int, int]]]
"""By partition and broker: bytes that producers handed in, and that consumers got."""


class FoundPartition(msgspec.Struct, frozen=True, kw_only=True):
    """One partition, as it was in the end."""

    topic: str
    partition: int
    original: int | None
    epoch: int
    isr: list[int]
    took_over_s: float | None
    """From the kill until a broker said that another one is original; None where the killed one was
    not."""
    taken_bytes: list[int]
    """What producers handed in at each broker, in all its lives."""
    sent_bytes: list[int]
    """What consumers got from each broker, in all its lives."""


class FoundReplicas(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the replicas; goes into the demo's JSON."""

    mode: str
    replicas: int
    killed: int | None
    """The broker that was killed: the original of the text's partition."""
    took_over_s: float | None
    """From the kill until every partition had an original that lives."""
    in_sync_s: float | None
    """From its new start until it was in sync in every partition."""
    partitions: int
    equal: bool
    """Whether in the end every replica of every partition had committed as much."""
    places: list[FoundPartition]
    history: str
    """File with the history of the text's partition."""


def found_partitions(
    places: Places, before: Carried, took_over_s: Mapping[tuple[str, int], float], replicas: int
) -> list[FoundPartition]:
    """Sum up: what the brokers say now, and what the killed one had said of its counts before."""
    found = []
    for (topic, partition), said in sorted(places.items()):
        newest = max(said.values(), key=lambda one: int(one["epoch"]))
        earlier = before.get((topic, partition), {})
        taken, sent = (
            [
                int(said.get(broker, {}).get(name, 0)) + earlier.get(broker, (0, 0))[at]
                for broker in range(replicas)
            ]
            for at, name in enumerate(("taken_bytes", "sent_bytes"))
        )
        found.append(
            FoundPartition(
                topic=topic,
                partition=partition,
                original=newest["original"],
                epoch=newest["epoch"],
                isr=sorted(newest["isr"]),
                took_over_s=took_over_s.get((topic, partition)),
                taken_bytes=taken,
                sent_bytes=sent,
            )
        )
    return found


def replicas_told(found: FoundReplicas, audit: HistoryReport) -> dict[str, Any]:
    """What the demo's JSON tells of the replicas."""
    told: dict[str, Any] = msgspec.to_builtins(found)
    told["audit"] = audit_told(audit)
    return told


def replicas_hold(told: Mapping[str, Any]) -> bool:
    """Whether the replicas kept what they promise."""
    return bool(told["equal"]) and told["audit"]["verdict"] == Verdict.VALID.value


def replica_sections(told: Mapping[str, Any]) -> list[Section]:
    """The report's part on replicas, from what the JSON tells."""
    brokers = range(told["replicas"])
    columns = ["topic", "partition", "original", "epoch", "in sync", "gap s"]
    columns += [f"{what} at {broker}" for what in ("written", "read") for broker in brokers]
    rows: list[list[object]] = []
    for one in told["places"]:
        gap = one["took_over_s"]
        rows.append(
            [
                one["topic"],
                str(one["partition"]),
                "none" if one["original"] is None else str(one["original"]),
                str(one["epoch"]),
                " ".join(map(str, one["isr"])),
                "–" if gap is None else f"{gap:.2f}",
                *shares(one["taken_bytes"]),
                *shares(one["sent_bytes"]),
            ]
        )
    return [
        Section(
            title="What the replicas did",
            text=f"{told['replicas']} {told['mode']} brokers; {_killed(told)} Gap: from the kill"
            " until another was original. Written and read: which broker took and gave what share"
            " of the bytes.",
            table=Table(columns, rows),
        ),
        Section(
            title="What the replicas' audit checked",
            text="The text's partition: its producer's and a reader's history, the brokers' notes"
            " and their files.",
            table=checks_table(told["audit"]),
        ),
    ]


def shares(counts: Sequence[int]) -> list[str]:
    """Each one's part of the whole."""
    whole = sum(counts)
    return [f"{count / whole:.0%}" if whole else "–" for count in counts]


def _killed(told: Mapping[str, Any]) -> str:
    if told["killed"] is None or told["took_over_s"] is None or told["in_sync_s"] is None:
        return "none was killed."
    return (
        f"broker {told['killed']} was killed, others had taken over {told['took_over_s']:.2f} s"
        f" later, and it was in sync {told['in_sync_s']:.2f} s after its new start."
    )
