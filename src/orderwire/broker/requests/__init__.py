"""One function per API: from a decoded request to a reply."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from orderwire.broker.replies import Outcome, Reply, Request
from orderwire.broker.requests import (
    access,
    cluster,
    configs,
    elections,
    fetch,
    groups,
    offsets,
    produce,
    topics,
)
from orderwire.broker.requests.cluster import unsupported_version
from orderwire.broker.wire.apis import ApiKey
from orderwire.kernel import Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

__all__ = ["HANDLERS", "Handler", "unsupported_version"]

Handler = Callable[["Broker", Request, Instant], Reply | Outcome]

HANDLERS: Mapping[int, Handler] = {
    ApiKey.PRODUCE: produce.produce,
    ApiKey.FETCH: fetch.fetch,
    ApiKey.LIST_OFFSETS: offsets.list_offsets,
    ApiKey.METADATA: cluster.metadata,
    ApiKey.OFFSET_COMMIT: groups.offset_commit,
    ApiKey.OFFSET_FETCH: groups.offset_fetch,
    ApiKey.FIND_COORDINATOR: cluster.find_coordinator,
    ApiKey.JOIN_GROUP: groups.join_group,
    ApiKey.HEARTBEAT: groups.heartbeat,
    ApiKey.LEAVE_GROUP: groups.leave_group,
    ApiKey.SYNC_GROUP: groups.sync_group,
    ApiKey.DESCRIBE_GROUPS: groups.describe_groups,
    ApiKey.LIST_GROUPS: groups.list_groups,
    ApiKey.SASL_HANDSHAKE: access.sasl_handshake,
    ApiKey.SASL_AUTHENTICATE: access.sasl_authenticate,
    ApiKey.API_VERSIONS: cluster.api_versions,
    ApiKey.CREATE_TOPICS: topics.create_topics,
    ApiKey.DELETE_TOPICS: topics.delete_topics,
    ApiKey.DELETE_RECORDS: offsets.delete_records,
    ApiKey.INIT_PRODUCER_ID: cluster.init_producer_id,
    ApiKey.OFFSET_FOR_LEADER_EPOCH: offsets.offset_for_leader_epoch,
    ApiKey.DESCRIBE_CONFIGS: configs.describe_configs,
    ApiKey.CREATE_PARTITIONS: topics.create_partitions,
    ApiKey.DELETE_GROUPS: groups.delete_groups,
    ApiKey.ELECT_LEADERS: elections.elect_leaders,
    ApiKey.INCREMENTAL_ALTER_CONFIGS: configs.incremental_alter_configs,
    ApiKey.DESCRIBE_CLUSTER: cluster.describe_cluster,
    ApiKey.DESCRIBE_ACLS: access.describe_acls,
    ApiKey.CREATE_ACLS: access.create_acls,
    ApiKey.DELETE_ACLS: access.delete_acls,
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: access.describe_users,
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: access.alter_users,
}
"""What answers each API key."""
