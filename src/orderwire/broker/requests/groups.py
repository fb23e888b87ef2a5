"""Consumer groups on the wire: membership, offsets, administration."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from orderwire.broker.coordinators import Coordinator, kept_by_all
from orderwire.broker.error_codes import RETRIED_AT_ONCE, ErrorCode
from orderwire.broker.group_model import (
    CommittedOffset,
    JoinGroup,
    JoinResult,
    SyncGroup,
    SyncResult,
)
from orderwire.broker.groups import GroupDescription
from orderwire.broker.replies import RETRY_DELAY_NS, Outcome, Reply, Request, reply
from orderwire.broker.requests.permission import Operation, may_group, may_topic
from orderwire.broker.wire.apis import ApiKey
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
    OffsetCommitRequest,
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
_MAY_NOT = ErrorCode.TOPIC_AUTHORIZATION_FAILED


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
    at = _coordinator(broker, request, Operation.READ, body.group_id)
    if isinstance(at, ErrorCode):
        refused = join_response(request, JoinResult(error=at, member_id=body.member_id))
        return _elsewhere(request, refused)
    at.expect(request)
    at.apply(at.groups.join(command, request.token, now), now)
    return Outcome.PARKED


def _coordinator(
    broker: "Broker", request: Request, operation: Operation, group_id: str
) -> Coordinator | ErrorCode:
    """Return who may be asked for a group, or why this client may not, or not here."""
    if not may_group(broker, request, operation, group_id):
        return ErrorCode.GROUP_AUTHORIZATION_FAILED
    return broker.coordinator(group_id)


def _elsewhere(request: Request, response: msgspec.Struct) -> Reply:
    """Send the client to another coordinator, not at once."""
    return reply(request, response, delay_ns=RETRY_DELAY_NS)


def group_response(
    request: Request, result: JoinResult | SyncResult | None
) -> tuple[msgspec.Struct, Callable[[ErrorCode], msgspec.Struct]]:
    """Return the response to a join or sync, and what makes the one of a failure."""

    def failed(error: ErrorCode) -> msgspec.Struct:
        if request.api.key == ApiKey.JOIN_GROUP:
            return join_response(request, JoinResult(error=error))
        return sync_response(SyncResult(error=error))

    if isinstance(result, JoinResult):
        return join_response(request, result), failed
    if isinstance(result, SyncResult):
        return sync_response(result), failed
    return failed(ErrorCode.NOT_COORDINATOR), failed


def join_response(request: Request, result: JoinResult) -> JoinGroupResponse:
    """Say the coordinator's answer to a join."""
    name = result.protocol_name
    return JoinGroupResponse(
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
    at = _coordinator(broker, request, Operation.READ, body.group_id)
    if isinstance(at, ErrorCode):
        return _elsewhere(request, sync_response(SyncResult(error=at)))
    at.expect(request)
    at.apply(at.groups.sync(command, request.token, now), now)
    return Outcome.PARKED


def sync_response(result: SyncResult) -> SyncGroupResponse:
    """Say the coordinator's answer to a sync."""
    return SyncGroupResponse(
        error_code=result.error,
        protocol_type=result.protocol_type,
        protocol_name=result.protocol_name,
        assignment=result.assignment,
    )


def heartbeat(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Note that a member lives."""
    body = request.body
    at = _coordinator(broker, request, Operation.READ, body.group_id)
    if isinstance(at, ErrorCode):
        return _elsewhere(request, HeartbeatResponse(error_code=at))
    error = at.groups.heartbeat(
        body.group_id, body.member_id, body.group_instance_id, body.generation_id, now
    )
    return reply(request, HeartbeatResponse(error_code=error))


def leave_group(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Take members out of a group."""
    body = request.body
    leaving: list[tuple[str, str | None]] = [(body.member_id, None)]
    if request.version >= 3:
        leaving = [(one.member_id, one.group_instance_id) for one in body.members]
    at = _coordinator(broker, request, Operation.READ, body.group_id)
    if isinstance(at, ErrorCode):
        return _elsewhere(request, LeaveGroupResponse(error_code=at))
    error, results, effects = at.groups.leave(body.group_id, leaving, now)
    at.apply(effects, now)
    if request.version < 3:
        return reply(request, LeaveGroupResponse(error_code=error or results[0].error))
    members = [MemberResponse(one.member_id, one.instance_id, one.error) for one in results]
    return reply(request, LeaveGroupResponse(error_code=error, members=members))


def offset_commit(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Store how far a group has read; answered when that is as durable as the data."""
    body = request.body
    at = _coordinator(broker, request, Operation.READ, body.group_id)
    if isinstance(at, ErrorCode):
        return _elsewhere(request, _commit_response(body, {}, at))
    whole = at.groups.commit_error(
        body.group_id, body.member_id, body.group_instance_id, body.generation_id_or_member_epoch
    )
    lapse = body.retention_time_ms
    expires = Instant(now + lapse * NS_PER_MS) if lapse >= 0 else None
    accepted: dict[tuple[str, int], CommittedOffset] = {}
    hidden = {
        topic.name
        for topic in body.topics
        if not may_topic(broker, request, Operation.READ, topic.name)
    }
    if whole is ErrorCode.NONE:
        for topic in body.topics:
            if topic.name in hidden:
                continue
            for one in topic.partitions:
                if broker.exists(topic.name, one.partition_index):
                    accepted[topic.name, one.partition_index] = CommittedOffset(
                        one.committed_offset,
                        one.committed_leader_epoch,
                        one.committed_metadata or "",
                        now,
                        expires,
                    )
    errors: dict[tuple[str, int], ErrorCode] = {}
    if accepted:
        errors, effects = at.groups.commit(body.group_id, body.member_id, accepted, now)
        at.apply(effects, now)
    missing = whole if whole is not ErrorCode.NONE else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if whole is ErrorCode.NONE:
        errors |= {
            (topic.name, one.partition_index): _MAY_NOT
            for topic in body.topics
            if topic.name in hidden
            for one in topic.partitions
        }
    response = _commit_response(body, errors, missing)
    if not accepted:
        return reply(request, response)
    return at.kept(request, response, lambda error: _commit_response(body, {}, error), now)


def _commit_response(
    body: OffsetCommitRequest, errors: Mapping[tuple[str, int], ErrorCode], otherwise: ErrorCode
) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                topic.name,
                [
                    OffsetCommitResponsePartition(
                        one.partition_index,
                        errors.get((topic.name, one.partition_index), otherwise),
                    )
                    for one in topic.partitions
                ],
            )
            for topic in body.topics
        ]
    )


def offset_fetch(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Tell how far groups have read."""
    body = request.body
    if request.version >= 8:
        groups: list[OffsetFetchResponseGroup] = []
        keeping: list[Coordinator] = []
        for group in body.groups:
            answer = _fetched_group(broker, request, group)
            at = broker.coordinator(group.group_id)
            if not answer.error_code and not isinstance(at, ErrorCode) and at.is_keeping:
                keeping.append(at)
            groups.append(answer)
        if keeping:
            return kept_by_all(
                broker,
                keeping,
                request,
                OffsetFetchResponse(groups=groups),
                lambda error: OffsetFetchResponse(
                    groups=[
                        OffsetFetchResponseGroup(group.group_id, error_code=error)
                        for group in body.groups
                    ]
                ),
                now,
            )
        hasty = any(group.error_code in RETRIED_AT_ONCE for group in groups)
        delay_ns = RETRY_DELAY_NS if hasty else 0
        return reply(request, OffsetFetchResponse(groups=groups), delay_ns=delay_ns)
    at = _coordinator(broker, request, Operation.DESCRIBE, body.group_id)

    def failed(error: ErrorCode) -> OffsetFetchResponse:
        asked = [
            OffsetFetchResponseTopic(
                topic.name,
                [
                    OffsetFetchResponsePartition(index, -1, -1, "", error)
                    for index in topic.partition_indexes
                ],
            )
            for topic in body.topics or ()
        ]
        return OffsetFetchResponse(topics=asked, error_code=error)

    if isinstance(at, ErrorCode):
        return _elsewhere(request, failed(at))
    kept = _seen(broker, request, at.groups.offsets_of(body.group_id))
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
    response = OffsetFetchResponse(topics=topics)
    return at.kept(request, response, failed, now) if at.is_keeping else reply(request, response)


def _seen(
    broker: "Broker", request: Request, kept: Mapping[tuple[str, int], CommittedOffset]
) -> Mapping[tuple[str, int], CommittedOffset]:
    """Leave out the topics that the client may not know of."""
    return {
        place: one
        for place, one in kept.items()
        if may_topic(broker, request, Operation.DESCRIBE, place[0])
    }


def _fetched_group(
    broker: "Broker", request: Request, group: OffsetFetchRequestGroup
) -> OffsetFetchResponseGroup:
    at = _coordinator(broker, request, Operation.DESCRIBE, group.group_id)
    if isinstance(at, ErrorCode):
        return OffsetFetchResponseGroup(group.group_id, error_code=at)
    kept = _seen(broker, request, at.groups.offsets_of(group.group_id))
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
    described = [_description(broker, request, group_id) for group_id in request.body.groups]
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


def _description(broker: "Broker", request: Request, group_id: str) -> GroupDescription:
    at = _coordinator(broker, request, Operation.DESCRIBE, group_id)
    if isinstance(at, ErrorCode):
        return GroupDescription(error=at, group_id=group_id)
    return at.groups.describe(group_id)


def list_groups(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """List all groups, or those in some states."""
    listed = [
        ListedGroup(*one)
        for at in broker.coordinators()
        for one in at.groups.overview(request.body.states_filter)
        if may_group(broker, request, Operation.DESCRIBE, one[0])
    ]
    return reply(request, ListGroupsResponse(groups=listed))


def delete_groups(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Delete empty groups."""
    names = list(request.body.groups_names)
    results = []
    changed: list[Coordinator] = []
    for group_id in names:
        at = _coordinator(broker, request, Operation.DELETE, group_id)
        if isinstance(at, ErrorCode):
            results.append(DeletableGroupResult(group_id, at))
            continue
        error, effects = at.groups.delete(group_id)
        if effects:
            at.apply(effects, now)
            changed.append(at)
        results.append(DeletableGroupResult(group_id, error))
    response = DeleteGroupsResponse(results=results)
    if not changed:
        return reply(request, response)
    return kept_by_all(
        broker,
        changed,
        request,
        response,
        lambda error: DeleteGroupsResponse(
            results=[DeletableGroupResult(one, error) for one in names]
        ),
        now,
    )
