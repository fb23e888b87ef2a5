"""What clients heard and brokers left becomes a history that means what happened."""

from pathlib import Path

import pytest

from orderwire.broker.wire.batch import place
from orderwire.broker.wire.records import Record, build_batch
from orderwire.chaos.clients import Moved, Sent
from orderwire.chaos.evidence import find, partition_folder
from orderwire.chaos.history import Life, histories
from orderwire.chaos.run import _is_whole
from orderwire.verify.kafka_batches import batches_of
from orderwire.verify.replication import (
    Committed,
    Elected,
    Event,
    Missing,
    by_invariant,
    judge,
)
from orderwire.verify.replication_history import Parts
from orderwire.verify.replication_merge import Noted

TOPIC_ID = "00" * 16


def lives(folder: Path, batches: list[tuple[str, int]]) -> list[Life]:
    """Three brokers with these messages, each in a batch under its producer's epoch."""
    data = b""
    for offset, (name, epoch) in enumerate(batches):
        record = Record(f"<{name}>".encode(), timestamp=1)
        batch = build_batch([record], producer_id=7, producer_epoch=epoch, base_sequence=offset)
        whole = bytearray(batch)
        place(whole, 0, len(whole) - 12, offset, 0)
        data += whole
    found = []
    for broker in range(3):
        where = partition_folder(folder / f"{broker}", TOPIC_ID, 0)
        where.mkdir(parents=True)
        (where / f"{0:020}.log").write_bytes(data)
        log = folder / f"{broker}.log"
        log.write_text("")
        found.append(Life(broker, folder / f"{broker}", log, {0: len(batches)}))
    return found


def broken(folder: Path, batches: list[tuple[str, int]], sent: list[Sent]) -> dict[str, int]:
    read = tuple((offset, name) for offset, (name, _) in enumerate(batches))
    told = histories(
        "t",
        TOPIC_ID,
        1,
        lives(folder, batches),
        {0: (0, 1, 2)},
        sent,
        [Moved("c", 0, 0, len(read), read)],
        [],
        acks_one_lost=False,
    )
    return by_invariant(judge(told[0]))


def heard(name: str, offset: int, *, error: str = "", partition: int = 0) -> Sent:
    session = f"p0.1.{partition}.0"
    return Sent(name, partition, session, -1, 1.0, answered_s=2.0, offset=offset, error=error)


GIVEN_UP = heard("p0-9", -1, error="_MSG_TIMED_OUT", partition=1)
COPIED = [("p0-0", 0), ("p0-1", 0), ("p0-0", 1), ("p0-1", 1), ("p0-2", 1)]
"""What a client leaves that had no answer for two messages when another one's time was over."""


@pytest.mark.parametrize("acknowledged", [0, 2])
def test_a_client_that_gives_up_makes_copies_that_no_broker_can_know(
    tmp_path: Path, acknowledged: int
) -> None:
    sent = [heard("p0-0", acknowledged), heard("p0-1", acknowledged + 1), heard("p0-2", 4)]
    assert broken(tmp_path, COPIED, [*sent, GIVEN_UP]) == {}


def test_a_client_that_has_told_no_failure_made_no_copies(tmp_path: Path) -> None:
    sent = [heard("p0-0", 2), heard("p0-1", 3), heard("p0-2", 4)]
    assert broken(tmp_path, COPIED, sent) == {"I1": 2, "I5": 2}


def test_a_copy_under_the_same_epoch_is_the_brokers(tmp_path: Path) -> None:
    batches = [("p0-0", 0), ("p0-1", 0), ("p0-0", 0)]
    sent = [heard("p0-0", 2), heard("p0-1", 1)]
    assert broken(tmp_path, batches, [*sent, GIVEN_UP]) == {"I1": 1, "I5": 1}


def test_copies_out_of_their_order_are_the_brokers(tmp_path: Path) -> None:
    batches = [("p0-0", 0), ("p0-1", 0), ("p0-1", 1), ("p0-0", 1)]
    sent = [heard("p0-0", 0), heard("p0-1", 1)]
    assert broken(tmp_path, batches, [*sent, GIVEN_UP]) == {"I9": 1}


@pytest.mark.parametrize(("again", "told"), [(True, {}), (False, {"I1": 1, "I5": 1})])
def test_what_a_client_says_it_sent_again_may_stand_there_twice(
    tmp_path: Path, again: bool, told: dict[str, int]
) -> None:
    batches = [("p2-0", 0), ("p2-1", 0), ("p2-0", 0)]
    sent = [heard("p2-0", 2), heard("p2-1", 1)]
    sent[0].sent_again = again
    assert broken(tmp_path, batches, sent) == told


def test_a_cluster_with_orphans_on_their_way_is_not_level() -> None:
    place = {
        "topic": "chaos",
        "partition": 0,
        "epoch": 1,
        "original": 0,
        "isr": [0, 1, 2],
        "high_watermark": 5,
        "end_offset": 5,
    }
    status = {broker: {"partitions": [place | {"orphans": 0}]} for broker in range(3)}
    assert _is_whole(status, 0, level=True)
    status[1] = {"partitions": [place | {"orphans": 1}]}
    assert _is_whole(status, 0, level=False)
    assert not _is_whole(status, 0, level=True)


def test_a_producer_with_one_life_only_needs_no_number_of_it(tmp_path: Path) -> None:
    sent = [
        Sent(name, 0, "text", -1, 1.0, answered_s=2.0, offset=at)
        for at, name in enumerate(["p0-0", "p0-1"])
    ]
    assert broken(tmp_path, [("p0-0", 0), ("p0-1", 0)], sent) == {}


def test_what_brokers_wrote_says_what_their_files_say(tmp_path: Path) -> None:
    sent = [
        *(heard(name, at) for at, name in enumerate(["p0-0", "p0-1"])),
        heard("p0-2", 4),
        GIVEN_UP,
    ]
    read = tuple((offset, name) for offset, (name, _) in enumerate(COPIED))
    left = lives(tmp_path, COPIED)
    data = next(partition_folder(left[0].folder, TOPIC_ID, 0).glob("*.log")).read_bytes()
    batches = tuple(batch for _, _, batch, _ in batches_of(data))
    written = {
        f"{broker}/a": [
            Noted(1, Elected(broker, broker)),
            Noted(2, Committed(broker, 1, 0, 2, batches[:2])),
            Noted(3, Committed(broker, 1, 2, 5, batches[2:])),
        ]
        for broker in range(3)
    }

    def of(parts: Parts | None) -> list[Event]:
        return histories(
            "t",
            TOPIC_ID,
            1,
            left,
            {0: (0, 1, 2)},
            sent,
            [Moved("c", 0, 0, len(read), read)],
            [],
            acks_one_lost=False,
            written=None if parts is None else {0: parts},
        )[0]

    assert judge(of(None)) == judge(of(Parts([], written, []))) == []
    shorter = {writer: noted[:2] for writer, noted in written.items()}
    found = of(Parts([], shorter, []))
    assert any(isinstance(event, Missing) for event in found) or by_invariant(judge(found))


def test_what_a_text_says_between_brackets_names_no_message(tmp_path: Path) -> None:
    value = b"In <module>, <expr> is read from <stdin>."
    batch = build_batch([Record(value, key=b"<text-1-0>")], base_offset=0, leader_epoch=0)
    (tmp_path / f"{0:020}.log").write_bytes(batch)
    found = find(tmp_path, "text-1-")
    assert found.batches[0].messages == ("text-1-0",)
    assert found.messages == {"text-1-0"}
