"""What `orderwire cluster status` lays out."""

from typing import Any

from orderwire.cli.cluster import lines


def said(broker: int, high: int, **more: Any) -> dict[str, Any]:
    place = {
        "topic": "t",
        "partition": 0,
        "mode": "active-active",
        "replicas": [0, 1, 2],
        "epoch": 4,
        "original": 1,
        "isr": [0, 1],
        "high_watermark": high,
        "sync_start": high - 1,
        "sync_end": high - 1,
        "orphans": 2,
        **more,
    }
    return {"broker": broker, "partitions": [place]}


def test_a_partition_is_shown_as_its_original_says() -> None:
    head, row = lines([said(0, 90), said(1, 100, sync_end=120, rounds=7, sealed=3), said(2, 40)])
    assert " ".join(row.split()) == "t 0 active-active 4 1 0,1 99 120 0:10 1:0 2:60 7 3 6 0,1,2"
    for word in (
        "EPOCH",
        "ISR",
        "SYNCSTART",
        "SYNCEND",
        "LAG OF EACH",
        "ROUNDS",
        "SEALED",
        "ORPHANS",
    ):
        assert word in head


def test_a_partition_without_an_original_is_shown_by_who_knows_most() -> None:
    _, row = lines([said(0, 90, original=None, epoch=3), said(2, 40, original=None)])
    assert row.split()[3:6] == ["4", "-", "0,1"]
