"""The generated modules: reproducible, small, and right where the oracles do not look."""

import time
from pathlib import Path
from struct import pack

import pytest

from orderwire.broker.wire import generate
from orderwire.broker.wire.apis import API_BY_KEY, APIS, ApiKey
from orderwire.broker.wire.codec import uvarint
from orderwire.broker.wire.generated import consumer_protocol, headers
from orderwire.broker.wire.generated.create_topics import decode_create_topics_request
from orderwire.broker.wire.generated.fetch import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
    encode_fetch_response,
    encode_fetch_response_parts,
)
from orderwire.broker.wire.generated.metadata import (
    MetadataRequest,
    decode_metadata_request,
    encode_metadata_request,
)
from orderwire.broker.wire.generated.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
    decode_produce_request,
    encode_produce_request,
)
from orderwire.broker.wire.parts import FileSlice
from orderwire.kernel.errors import LocalProtocolError, RemoteProtocolError

GENERATED = Path(generate.__file__).parent / "generated"


def test_generating_again_changes_nothing() -> None:
    sources = generate.modules()
    assert sorted(sources) == sorted(path.name for path in GENERATED.glob("*.py"))
    for name, source in sources.items():
        assert (GENERATED / name).read_text("utf-8") == source, f"{name} is out of date"
        assert len(source) < 1 << 20


def test_api_versions_response_header_has_no_tags_in_any_version() -> None:
    api = API_BY_KEY[ApiKey.API_VERSIONS]
    assert [api.response_header_version(version) for version in range(5)] == [0] * 5
    assert [api.request_header_version(version) for version in range(5)] == [1, 1, 1, 2, 2]


def test_flexible_versions_get_the_flexible_headers() -> None:
    produce = API_BY_KEY[ApiKey.PRODUCE]
    assert (produce.request_header_version(8), produce.request_header_version(9)) == (1, 2)
    assert (produce.response_header_version(8), produce.response_header_version(9)) == (0, 1)
    handshake = API_BY_KEY[ApiKey.SASL_HANDSHAKE]
    assert handshake.response_header_version(1) == 0


def test_produce_is_announced_from_0_but_decoded_from_3() -> None:
    produce = API_BY_KEY[ApiKey.PRODUCE]
    assert (produce.advertised_oldest, produce.oldest, produce.newest) == (0, 3, 13)
    assert all(api.advertised_oldest == api.oldest for api in APIS if api is not produce)


def test_client_id_keeps_its_two_byte_length_in_the_flexible_header() -> None:
    header = headers.RequestHeader(18, 3, 7, "me")
    data = headers.encode_request_header(header, 2)
    assert data == pack(">hhih", 18, 3, 7, 2) + b"me\x00"
    assert headers.decode_request_header(memoryview(data), 0, 2) == (header, len(data))


def test_null_and_empty_topics_differ_in_metadata() -> None:
    for version in (1, 9, 13):
        for topics in (None, []):
            data = memoryview(encode_metadata_request(MetadataRequest(topics=topics), version))
            assert decode_metadata_request(data, 0, version)[0].topics == topics


def test_records_stay_views_into_the_callers_buffer() -> None:
    records = bytes(range(200))
    topic = TopicProduceData("t", partition_data=[PartitionProduceData(0, records)])
    for version in (3, 9):
        buffer = bytearray(encode_produce_request(ProduceRequest(topic_data=[topic]), version))
        request, _ = decode_produce_request(memoryview(buffer), 0, version)
        view = request.topic_data[0].partition_data[0].records
        assert isinstance(view, memoryview)
        assert view == records
        view[0] = 99
        assert bytes([99, *range(1, 200)]) in buffer


def test_file_slices_pass_through_as_parts_and_are_refused_as_bytes() -> None:
    part = FileSlice(-1, 0, 1_000)
    partition = PartitionData(0, records=part)
    response = FetchResponse(responses=[FetchableTopicResponse("t", partitions=[partition])])
    parts = encode_fetch_response_parts(response, 12)
    assert part in parts
    with pytest.raises(LocalProtocolError, match="send its parts"):
        encode_fetch_response(response, 12)


def test_unknown_tags_are_stepped_over() -> None:
    data = encode_metadata_request(MetadataRequest(topics=[]), 9)
    assert data[-1] == 0
    tagged = data[:-1] + b"\x01\x09\x03abc"
    assert decode_metadata_request(memoryview(tagged), 0, 9)[1] == len(tagged)


def test_an_absurd_count_is_refused_before_anything_is_allocated() -> None:
    began = time.process_time()
    with pytest.raises(RemoteProtocolError, match="topics announces 2147483647 entries"):
        decode_create_topics_request(memoryview(pack(">i", 2**31 - 1) + bytes(64)), 0, 2)
    with pytest.raises(RemoteProtocolError, match="announces"):
        decode_create_topics_request(memoryview(b"\xff\xff\xff\xff\x0f" + bytes(64)), 0, 5)
    assert time.process_time() - began < 1.0


def test_a_produce_request_of_tiny_entries_is_refused() -> None:
    """Three bytes an entry would become a hundred in objects."""
    count = 200_000
    body = b"\x00" + pack(">hi", 1, 0) + uvarint(count + 1) + b"\x02\x61\x01\x00"[:3] * count
    with pytest.raises(RemoteProtocolError, match=f"topic_data announces {count} entries"):
        decode_produce_request(memoryview(body + bytes(count)), 0, 9)


def test_malformed_text_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError, match="malformed MetadataRequest version 1"):
        decode_metadata_request(memoryview(pack(">ih", 1, 2) + b"\xff\xfe"), 0, 1)


@pytest.mark.parametrize("version", range(4))
def test_consumer_protocol_round_trips(version: int) -> None:
    subscription = consumer_protocol.ConsumerProtocolSubscription(
        topics=["a", "ü"],
        user_data=None,
        owned_partitions=[consumer_protocol.TopicPartition("a", [0, 5])] if version else (),
        generation_id=3 if version >= 2 else -1,
        rack_id="r" if version >= 3 else None,
    )
    data = consumer_protocol.encode_consumer_protocol_subscription(subscription, version)
    again, end = consumer_protocol.decode_consumer_protocol_subscription(
        memoryview(data), 0, version
    )
    assert (again, end) == (subscription, len(data))
