"""What a consumer group is made of: settings, members, commands, results, durable records."""

from enum import Enum
from typing import TypeAlias

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.kernel import NS_PER_MS, NS_PER_S, Instant


class GroupSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits and delays of the group coordinator."""

    initial_rebalance_delay_ns: int = 300 * NS_PER_MS
    """How long an empty group waits for more members before its first generation."""
    session_timeout_min_ns: int = 1 * NS_PER_S
    """Shortest session timeout a member may ask for."""
    session_timeout_max_ns: int = 1_800 * NS_PER_S
    """Longest session timeout a member may ask for."""
    new_member_timeout_ns: int = 300 * NS_PER_S
    """A member in its first join is not expired earlier than this."""
    group_members_max: int = 1_000
    """Members of one group, those still waiting to come back with their id included."""
    groups_max: int = 10_000
    """Groups of one broker."""
    offsets_retention_ns: int = 7 * 86_400 * NS_PER_S
    """How long an empty group keeps its offsets."""
    offset_metadata_bytes_max: int = 4_096
    """Longest text a client may store with an offset, in UTF-8 bytes."""


class GroupState(Enum):
    """States of a classic group, under the names that DescribeGroups and ListGroups answer."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


class JoinGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A member asks to enter the next generation."""

    group_id: str
    member_id: str
    instance_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    session_timeout_ns: int
    rebalance_timeout_ns: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    """(name, metadata) in the member's order of preference."""
    id_required: bool = False
    """JoinGroup v4 and later: a member without an id is told one and has to ask again."""
    skip_assignment_known: bool = False
    """JoinGroup v9 and later: a replaced static leader can be told not to assign."""


class SyncGroup(msgspec.Struct, frozen=True, kw_only=True):
    """A member asks for its assignment; the leader brings those of all."""

    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()


class MemberInfo(msgspec.Struct, frozen=True):
    """One member, as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


class JoinResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to JoinGroup."""

    error: ErrorCode
    member_id: str = ""
    generation: int = -1
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[MemberInfo, ...] = ()


class SyncResult(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to SyncGroup."""

    error: ErrorCode
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


class LeaveResult(msgspec.Struct, frozen=True):
    """What became of one leaving member."""

    member_id: str
    instance_id: str | None
    error: ErrorCode


class CommittedOffset(msgspec.Struct, frozen=True, gc=False):
    """How far a group has read one partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_at: Instant
    expires_at: Instant | None = None
    """Set by OffsetCommit v2-4 only; otherwise the broker's retention counts."""


class MemberRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member as it is kept on disk."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ns: int
    rebalance_timeout_ns: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class GroupRecord(msgspec.Struct, frozen=True, kw_only=True, tag="group"):
    """The last generation of a group that every member may rely on."""

    group_id: str
    generation: int
    protocol_type: str
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberRecord, ...]
    since: Instant
    """When the group entered this state."""


class GroupDeleted(msgspec.Struct, frozen=True, tag="group-deleted"):
    """The group and all its offsets are gone."""

    group_id: str


class OffsetRecord(msgspec.Struct, frozen=True, tag="offset"):
    """One committed offset."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset


class OffsetDeleted(msgspec.Struct, frozen=True, tag="offset-deleted"):
    """One committed offset is gone: expired, or its topic was deleted."""

    group_id: str
    topic: str
    partition: int


DurableRecord: TypeAlias = GroupRecord | GroupDeleted | OffsetRecord | OffsetDeleted
"""What the coordinator's journal holds."""


class Answer(msgspec.Struct, frozen=True):
    """Answer the request behind this token; after every `Persist` before it is durable."""

    token: int
    result: JoinResult | SyncResult


class Persist(msgspec.Struct, frozen=True):
    """Write this record to the journal."""

    record: DurableRecord


GroupEffect: TypeAlias = Answer | Persist
GroupEffects: TypeAlias = list[GroupEffect]
