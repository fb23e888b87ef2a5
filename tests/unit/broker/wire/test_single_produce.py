"""The hand-written Produce path says what the generated codec says."""

from random import Random
from struct import pack

import pytest

from orderwire.broker.wire.apis import API_BY_KEY, ApiKey
from orderwire.broker.wire.generated.headers import ResponseHeader, encode_response_header
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
    encode_produce_request,
    encode_produce_response,
)
from orderwire.broker.wire.single_produce import (
    NEWEST,
    OLDEST,
    read_single_produce,
    single_produce_frame,
)

VERSIONS = range(OLDEST, NEWEST + 1)


def data(version: int, name: str, records: bytes | None, index: int = 7) -> TopicProduceData:
    partition = PartitionProduceData(index, records)
    if version >= 13:
        return TopicProduceData(topic_id=name.encode()[:16].ljust(16), partition_data=[partition])
    return TopicProduceData(name, partition_data=[partition])


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("size", [1, 61, 126, 127, 128, 300, 70_000])
def test_simple_requests_are_read_as_the_codec_wrote_them(version: int, size: int) -> None:
    for name in ("t", "orders", "x" * 126):
        records = Random(size).randbytes(size)
        topic = data(version, name, records)
        body = encode_produce_request(ProduceRequest(None, -1, 1_500, [topic]), version)
        found = read_single_produce(memoryview(b"head" + body), 4, version)
        assert found is not None
        acks, timeout_ms, named, index, read = found
        expected = topic.topic_id if version >= 13 else name.encode()
        assert (acks, timeout_ms, index) == (-1, 1_500, 7)
        assert (bytes(named), bytes(read)) == (expected, records)


@pytest.mark.parametrize("version", VERSIONS)
def test_everything_else_is_left_to_the_codec(version: int) -> None:
    one = data(version, "t", b"r" * 70)
    partitions = [PartitionProduceData(0, b"r"), PartitionProduceData(1, b"r")]
    others = [
        ProduceRequest("transaction", -1, 1_500, [one]),
        ProduceRequest(None, -1, 1_500, [one, one]),
        ProduceRequest(None, -1, 1_500, []),
        ProduceRequest(None, -1, 1_500, [data(version, "t", None)]),
        ProduceRequest(
            None, -1, 1_500, [TopicProduceData("t", one.topic_id, partition_data=partitions)]
        ),
    ]
    for request in others:
        body = memoryview(encode_produce_request(request, version))
        assert read_single_produce(body, 0, version) is None
    whole = encode_produce_request(ProduceRequest(None, 1, 1_500, [one]), version)
    for cut in range(len(whole)):
        assert read_single_produce(memoryview(whole[:cut]), 0, version) is None
    assert read_single_produce(memoryview(whole + b"\x00"), 0, version) is None
    if version >= 9:
        tagged = whole[:-1] + b"\x01\x05\x01x"
        assert read_single_produce(memoryview(tagged), 0, version) is None


@pytest.mark.parametrize("version", VERSIONS)
def test_flips_never_make_the_reader_fail(version: int) -> None:
    chance = Random(version)
    topic = data(version, "topic", b"r" * 200)
    whole = encode_produce_request(ProduceRequest(None, 1, 1_500, [topic]), version)
    for _ in range(300):
        broken = bytearray(whole)
        broken[chance.randrange(40)] = chance.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        found = read_single_produce(memoryview(broken), 0, version)
        assert found is None or len(found[4]) <= len(whole)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_response_frame_is_the_codecs(version: int) -> None:
    api = API_BY_KEY[ApiKey.PRODUCE]
    for name in ("t", "x" * 126):
        topic = data(version, name, b"")
        answer = PartitionProduceResponse(7, 0, 1 << 40, -1, 99)
        response = ProduceResponse([TopicProduceResponse(name, topic.topic_id, [answer])])
        header = encode_response_header(ResponseHeader(55), api.response_header_version(version))
        body = header + encode_produce_response(response, version)
        named = topic.topic_id if version >= 13 else name.encode()
        assert (
            single_produce_frame(version, 55, named, 7, 1 << 40, 99) == pack(">i", len(body)) + body
        )
