"""Whether a client may: what handlers ask before they do or tell anything."""

from typing import TYPE_CHECKING

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replies import Client, Request
from orderwire.broker.security.acls import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

__all__ = [
    "FORBIDDEN",
    "Operation",
    "ResourceType",
    "may",
    "may_cluster",
    "may_create",
    "may_group",
    "may_produce_somewhere",
    "may_topic",
    "unseen_topic",
]


FORBIDDEN = (ErrorCode.TOPIC_AUTHORIZATION_FAILED,)
"""What is said of a topic that is there."""


def may(
    broker: "Broker", client: Client, operation: Operation, kind: ResourceType, name: str
) -> bool:
    """Whether this client may do this."""
    guard = broker.guard
    return guard is None or guard.permits(client.principal, client.host, operation, kind, name)


def may_topic(broker: "Broker", request: Request, operation: Operation, name: str) -> bool:
    """Whether the client may do this to a topic."""
    return may(broker, request.client, operation, ResourceType.TOPIC, name)


def may_group(broker: "Broker", request: Request, operation: Operation, name: str) -> bool:
    """Whether the client may do this to a consumer group."""
    return may(broker, request.client, operation, ResourceType.GROUP, name)


def may_cluster(broker: "Broker", request: Request, operation: Operation) -> bool:
    """Whether the client may do this to the cluster."""
    return may(broker, request.client, operation, ResourceType.CLUSTER, CLUSTER_NAME)


def may_create(broker: "Broker", request: Request, name: str) -> bool:
    """Whether the client may make this topic."""
    return may_cluster(broker, request, Operation.CREATE) or may_topic(
        broker, request, Operation.CREATE, name
    )


def may_produce_somewhere(broker: "Broker", request: Request) -> bool:
    """Whether the client may be an idempotent producer."""
    guard, client = broker.guard, request.client
    return (
        guard is None
        or may_cluster(broker, request, Operation.IDEMPOTENT_WRITE)
        or guard.permits_some(client.principal, client.host, Operation.WRITE, ResourceType.TOPIC)
    )


def unseen_topic(broker: "Broker", request: Request, name: str) -> ErrorCode:
    """What a client hears of a topic that it names by id: not even that there is one."""
    if may_topic(broker, request, Operation.DESCRIBE, name):
        return ErrorCode.TOPIC_AUTHORIZATION_FAILED
    return ErrorCode.UNKNOWN_TOPIC_ID
