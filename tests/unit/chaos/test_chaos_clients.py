"""What a client's own log tells of messages that nothing numbers."""

from random import Random

from orderwire.chaos.clients import Producing, Sent


def producer_with(*partitions: int) -> Producing:
    """One that has sent a message to each of these partitions, and waits for the last."""
    producer = Producing("p3", "", "chaos", 2, Random(1), acks=1, idempotent=False, pause_s=1.0)
    for number, partition in enumerate(partitions):
        session = producer._session(partition)
        producer.sent.append(Sent(f"p3-{number}", partition, session, 1, 1.0))
    return producer


def produced(broker: int) -> str:
    """A line of librdkafka 2.16."""
    return (
        f"PRODUCE [thrd:127.0.0.1:1/{broker}]: 127.0.0.1:1/{broker}: chaos [0]: Produce MessageSet"
        " with 1 message(s) (138 bytes, ApiVersion 10, MsgVersion 2, MsgId 0, BaseSeq -1)"
    )


def test_another_broker_is_another_session() -> None:
    producer = producer_with(0)
    producer._told(produced(1))
    producer._told(produced(1))
    assert producer.sent[0].session == "p3.0.0.0"
    producer.sent.append(Sent("p3-1", 0, producer._session(0), 1, 1.0))
    producer._told(produced(2))
    assert [one.session for one in producer.sent] == ["p3.0.0.0", "p3.0.0.1"]
    assert producer._session(0) == "p3.0.0.1"
    assert producer._session(1) == "p3.0.1.0"


def test_a_client_says_what_it_sends_again() -> None:
    producer = producer_with(0, 0)
    producer._told(
        "MSGSET [thrd:127.0.0.1:1/1]: 127.0.0.1:1/1: chaos [0]: MessageSet with 1 message(s) (MsgId"
        " 0, BaseSeq -1) encountered error: Local: Broker handle destroyed without termination"
        " (actions Refresh,MsgNotPersisted)"
    )
    producer._told("MSGSET [thrd:x/1]: x/1: chaos [0]: MessageSet with 1 message(s) delivered")
    assert [one.sent_again for one in producer.sent] == [False, True]
