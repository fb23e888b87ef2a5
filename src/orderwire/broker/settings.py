"""Everything about one broker that its owner may choose."""

import msgspec

from orderwire.broker.flush import Flush
from orderwire.broker.group_model import GroupSettings
from orderwire.broker.topics import TopicSettings
from orderwire.kernel import NS_PER_S


class BrokerSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings of one broker."""

    node_id: int = 1
    """The broker's number in the cluster."""
    flush: Flush = Flush.GROUP
    """When produce requests and offset commits are answered."""
    topics: TopicSettings = TopicSettings()
    """Defaults and limits of topics."""
    groups: GroupSettings = GroupSettings()
    """Limits and delays of consumer groups."""
    retention_check_ns: int = 30 * NS_PER_S
    """How often old segments are looked for."""
    checkpoint_ns: int = 60 * NS_PER_S
    """With flush=none: how often logs are synced all the same, so that recovery stays short."""
    scrub_bytes_per_s: int = 4 << 20
    """How fast old records are read again, to see whether they are what was written; 0: never."""
    scrub_pause_ns: int = 3_600 * NS_PER_S
    """From the end of one such pass to the next."""
    replication: int = 3
    """In a cluster: copies of a topic whose creator did not say, as soon as there are so many
    brokers."""
    preferred_after_ns: int = 30 * NS_PER_S
    """In a cluster: a partition's preferred original that has been in sync for so long takes it
    back; 0: only when somebody asks for it."""
    group_partitions: int = 4
    """In a cluster: partitions of the internal topic, each kept by one coordinator."""
    commit_wait_ns: int = 30 * NS_PER_S
    """In a cluster: how long what changes a group waits to be kept."""
    produce_wait_max_ns: int = 300 * NS_PER_S
    """Longest a produce request waits for replicas, whatever the client allows."""
    redirect_ns: int = 300 * NS_PER_S
    """For so long a consumer that was sent elsewhere and came back is served: as long as clients
    keep metadata."""
    fetch_bytes_max: int = 64 << 20
    """Most record bytes in one fetch response, whatever the client asks for."""
    fetch_wait_max_ns: int = 60 * NS_PER_S
    """Longest a fetch is parked, whatever the client asks for."""
    fetch_partitions_max: int = 10_000
    """Most partitions in one fetch request."""
