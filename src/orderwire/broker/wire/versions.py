"""Which APIs and versions Orderwire speaks: the only hand-written input of the generator."""

import msgspec


class ServedApi(msgspec.Struct, frozen=True):
    """One row: the API's name, and the versions we encode and decode."""

    name: str
    """As in the protocol definitions, without Request or Response."""
    oldest: int
    newest: int
    advertised_oldest: int | None = None
    """What ApiVersions announces when it differs from `oldest`."""


SERVED = (
    # librdkafka before 2.3 switches compression off when Produce is not announced from 0
    # (KAFKA-18659); versions 0–2 are announced and answered with UNSUPPORTED_VERSION.
    ServedApi("Produce", 3, 13, advertised_oldest=0),
    ServedApi("Fetch", 4, 17),
    ServedApi("ListOffsets", 1, 7),
    ServedApi("Metadata", 0, 13),
    ServedApi("OffsetCommit", 2, 9),
    ServedApi("OffsetFetch", 1, 9),
    ServedApi("FindCoordinator", 0, 4),
    ServedApi("JoinGroup", 0, 9),
    ServedApi("Heartbeat", 0, 4),
    ServedApi("LeaveGroup", 0, 5),
    ServedApi("SyncGroup", 0, 5),
    ServedApi("DescribeGroups", 0, 5),
    ServedApi("ListGroups", 0, 4),
    ServedApi("SaslHandshake", 0, 1),
    ServedApi("ApiVersions", 0, 4),
    ServedApi("CreateTopics", 2, 7),
    ServedApi("DeleteTopics", 1, 6),
    ServedApi("DeleteRecords", 0, 2),
    ServedApi("InitProducerId", 0, 4),
    ServedApi("OffsetForLeaderEpoch", 2, 4),
    ServedApi("DescribeConfigs", 1, 4),
    ServedApi("SaslAuthenticate", 0, 2),
    ServedApi("CreatePartitions", 0, 3),
    ServedApi("DeleteGroups", 0, 2),
    ServedApi("ElectLeaders", 0, 2),
    ServedApi("IncrementalAlterConfigs", 0, 1),
    ServedApi("DescribeCluster", 0, 1),
    ServedApi("DescribeAcls", 1, 3),
    ServedApi("CreateAcls", 1, 3),
    ServedApi("DeleteAcls", 1, 3),
    ServedApi("DescribeUserScramCredentials", 0, 0),
    ServedApi("AlterUserScramCredentials", 0, 0),
)

DATA_MESSAGES = ("ConsumerProtocolSubscription", "ConsumerProtocolAssignment")
"""Messages that travel inside others: the classic consumer groups' metadata and assignment."""

ELEMENT_BYTES = {"TopicProduceData": 64, "PartitionProduceData": 64}
"""What an entry of these takes in earnest: each holds a record batch, whose header has 61 bytes.

A Produce request may be as large as the broker allows.  Entries of a few bytes each would turn
into many times its size in objects, so many of them are refused.
"""
ELEMENT_SLACK_BYTES = 64 << 10
"""How much smaller than that all entries of an array together may be."""
