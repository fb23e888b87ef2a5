"""Consumer groups on the wire: membership, offsets, administration."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.group_model import (
    CommittedOffset,
    JoinGroup,
    JoinResult,
    SyncGroup,
    SyncResult,
)
from orderwire.broker.replies import Outcome, Reply, Request, reply
from orderwire.broker.wire.generated.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from orderwire.broker.wire.generated.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsResponse,
)
from orderwire.broker.wire.generated.heartbeat import HeartbeatResponse
from orderwire.broker.wire.generated.join_group import JoinGroupResponse, JoinGroupResponseMember
from orderwire.broker.wire.generated.leave_group import LeaveGroupResponse, MemberResponse
from orderwire.broker.wire.generated.list_groups import ListedGroup, ListGroupsResponse
from orderwire.broker.wire.generated.offset_commit import (
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from orderwire.broker.wire.generated.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from orderwire.broker.wire.generated.sync_group import SyncGroupResponse
from orderwire.kernel import NS_PER_MS, Instant

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_NO_OFFSET = -1


def join_group(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Let a member into a group's next generation."""
    body = request.body
    rebalance_ms = body.rebalance_timeout_ms
    command = JoinGroup(
        group_id=body.group_id,
        member_id=body.member_id,
        instance_id=body.group_instance_id,
        client_id=request.client_id,
        client_host=request.client.host,
        session_timeout_ns=body.session_timeout_ms * NS_PER_MS,
        rebalance_timeout_ns=(rebalance_ms if rebalance_ms >= 0 else body.session_timeout_ms)
        * NS_PER_MS,
        protocol_type=body.protocol_type,
        protocols=tuple((one.name, bytes(one.metadata)) for one in body.protocols),
        id_required=request.version >= 4,
        skip_assignment_known=request.version >= 9,
    )
    broker.park_group(request)
    broker.apply(broker.groups.join(command, request.token, now))
    return Outcome.PARKED


def join_reply(request: Request, result: JoinResult, *, durable: bool) -> Reply:
    """Encode the coordinator's answer to a join."""
    name = result.protocol_name
    response = JoinGroupResponse(
        error_code=result.error,
        generation_id=result.generation,
        protocol_type=result.protocol_type,
        protocol_name=name if name is not None or request.version >= 7 else "",
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=[
            JoinGroupResponseMember(one.member_id, one.instance_id, one.metadata)
            for one in result.members
        ],
    )
    return reply(request, response, durable=durable)


def sync_group(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Give a member its assignment."""
    body = request.body
    command = SyncGroup(
        group_id=body.group_id,
        generation=body.generation_id,
        member_id=body.member_id,
        instance_id=body.group_instance_id,
        protocol_type=body.protocol_type,
        protocol_name=body.protocol_name,
        assignments=tuple((one.member_id, bytes(one.assignment)) for one in body.assignments),
    )
    broker.park_group(request)
    broker.apply(broker.groups.sync(command, request.token, now))
    return Outcome.PARKED


def sync_reply(request: Request, result: SyncResult, *, durable: bool) -> Reply:
    """Encode the coordinator's answer to a sync."""
    response = SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )
    return reply(request, response, durable=durable)


def heartbeat(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Note that a member lives."""
    body = request.body
    error = broker.groups.heartbeat(
        body.group_id, body.member_id, body.group_instance_id, body.generation_id, now
    )
    return reply(request, HeartbeatResponse(error_code=error))


def leave_group(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Take members out of a group."""
    body = request.body
    leaving: list[tuple[str, str | None]] = [(body.member_id, None)]
    if request.version >= 3:
        leaving = [(one.member_id, one.group_instance_id) for one in body.members]
    error, results, effects = broker.groups.leave(body.group_id, leaving, now)
    broker.apply(effects)
    if request.version < 3:
        return reply(request, LeaveGroupResponse(error_code=error or results[0].error))
    members = [MemberResponse(one.member_id, one.instance_id, one.error) for one in results]
    return reply(request, LeaveGroupResponse(error_code=error, members=members))


def offset_commit(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Store how far a group has read; answered when that is as durable as the data."""
    body = request.body
    whole = broker.groups.commit_error(
        body.group_id, body.member_id, body.group_instance_id, body.generation_id_or_member_epoch
    )
    lapse = body.retention_time_ms
    expires = Instant(now + lapse * NS_PER_MS) if lapse >= 0 else None
    accepted: dict[tuple[str, int], CommittedOffset] = {}
    if whole is ErrorCode.NONE:
        for topic in body.topics:
            for one in topic.partitions:
                if broker.partition(topic.name, one.partition_index) is not None:
                    accepted[topic.name, one.partition_index] = CommittedOffset(
                        one.committed_offset,
                        one.committed_leader_epoch,
                        one.committed_metadata or "",
                        now,
                        expires,
                    )
    errors: dict[tuple[str, int], ErrorCode] = {}
    if accepted:
        errors, effects = broker.groups.commit(body.group_id, body.member_id, accepted, now)
        broker.apply(effects)
    missing = whole if whole is not ErrorCode.NONE else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    response = OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic.name,
                [
                    OffsetCommitResponsePartition(
                        one.partition_index,
                        errors.get((topic.name, one.partition_index), missing),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )
    return reply(request, response, durable=bool(accepted))


def offset_fetch(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Tell how far groups have read."""
    body = request.body
    if request.version >= 8:
        groups = [_fetched_group(broker, group) for group in body.groups]
        return reply(request, OffsetFetchResponse(groups=groups))
    kept = broker.groups.offsets_of(body.group_id)
    if body.topics is None:
        wanted = _all_topics(kept)
    else:
        wanted = {topic.name: list(topic.partition_indexes) for topic in body.topics}
    topics = []
    for name, indexes in wanted.items():
        found = [
            OffsetFetchResponsePartition(index, *_position(kept.get((name, index))))
            for index in indexes
        ]
        topics.append(OffsetFetchResponseTopic(name, found))
    return reply(request, OffsetFetchResponse(topics=topics))


def _fetched_group(broker: "Broker", group: OffsetFetchRequestGroup) -> OffsetFetchResponseGroup:
    kept = broker.groups.offsets_of(group.group_id)
    if group.topics is None:
        wanted = _all_topics(kept)
    else:
        wanted = {topic.name: list(topic.partition_indexes) for topic in group.topics}
    topics = []
    for name, indexes in wanted.items():
        found = [
            OffsetFetchResponsePartitions(index, *_position(kept.get((name, index))))
            for index in indexes
        ]
        topics.append(OffsetFetchResponseTopics(name, found))
    return OffsetFetchResponseGroup(group.group_id, topics)


def _all_topics(kept: Mapping[tuple[str, int], CommittedOffset]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(kept):
        topics.setdefault(name, []).append(index)
    return topics


def _position(committed: CommittedOffset | None) -> tuple[int, int, str]:
    if committed is None:
        return _NO_OFFSET, -1, ""
    return committed.offset, committed.leader_epoch, committed.metadata


def describe_groups(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Describe groups; one that does not exist is Dead."""
    described = [broker.groups.describe(group_id) for group_id in request.body.groups]
    response = DescribeGroupsResponse(
        groups=[
            DescribedGroup(
                error_code=group.error,
                group_id=group.group_id,
                group_state=group.state,
                protocol_type=group.protocol_type,
                protocol_data=group.protocol_data,
                members=[
                    DescribedGroupMember(
                        member_id=member.member_id,
                        group_instance_id=member.instance_id,
                        client_id=member.client_id,
                        client_host=f"/{member.client_host}",
                        member_metadata=member.metadata,
                        member_assignment=member.assignment,
                    )
                    for member in group.members
                ],
            )
            for group in described
        ]
    )
    return reply(request, response)


def list_groups(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """List all groups, or those in some states."""
    listed = [ListedGroup(*one) for one in broker.groups.overview(request.body.states_filter)]
    return reply(request, ListGroupsResponse(groups=listed))


def delete_groups(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Delete empty groups."""
    results = []
    for group_id in request.body.groups_names:
        error, effects = broker.groups.delete(group_id)
        broker.apply(effects)
        results.append(DeletableGroupResult(group_id, error))
    return reply(request, DeleteGroupsResponse(results=results), durable=True)
