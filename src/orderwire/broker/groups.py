"""The coordinator of all classic consumer groups and their committed offsets.

A core: time is an argument, what must be on disk before a request is answered is an effect
(`Persist`), and what an earlier request waited for is an effect too (`Answer`).  Kafka's rules for
who may commit, who is fenced and what expires are kept; its compacted topic is replaced by records
for a snapshot and a journal.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from random import Random

import msgspec

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.group import ClassicGroup
from orderwire.broker.group_model import (
    Answer,
    CommittedOffset,
    DurableRecord,
    GroupDeleted,
    GroupEffects,
    GroupRecord,
    GroupSettings,
    GroupState,
    JoinGroup,
    JoinResult,
    LeaveResult,
    OffsetDeleted,
    OffsetRecord,
    Persist,
    SyncGroup,
    SyncResult,
)
from orderwire.kernel import Instant

TopicPartition = tuple[str, int]
EXPIRY_EVERY_NS = 60 * 1_000_000_000
"""How often offsets are checked for having outlived their retention."""


class MemberDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A member as DescribeGroups tells it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class GroupDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A group as DescribeGroups tells it."""

    error: ErrorCode = ErrorCode.NONE
    group_id: str
    state: str = GroupState.DEAD.value
    protocol_type: str = ""
    protocol_data: str = ""
    members: tuple[MemberDescription, ...] = ()


class GroupCoordinator:
    """All groups of one broker."""

    def __init__(self, settings: GroupSettings, chance: Random) -> None:
        self._settings = settings
        self._chance = chance
        self._groups: dict[str, ClassicGroup] = {}
        self._due: list[tuple[Instant, int, str]] = []
        """Heap of (when, ordinal, group); an entry may be stale, then the group is asked anew."""
        self._armed: dict[str, Instant] = {}
        self._ordinal = 0
        self._next_expiry: Instant | None = None

    # -- membership -------------------------------------------------------------------------

    def join(self, request: JoinGroup, token: int, now: Instant) -> GroupEffects:
        """Answer a JoinGroup, now or through the effects of a later call."""
        error = self._join_refusal(request)
        if error is not ErrorCode.NONE:
            return [Answer(token, JoinResult(error=error, member_id=request.member_id))]
        group = self._groups.get(request.group_id)
        if group is None:
            group = ClassicGroup(request.group_id, self._settings, self._chance, now)
            self._groups[request.group_id] = group
        effects = group.join(request, token, now)
        self._settle(group)
        return effects

    def sync(self, request: SyncGroup, token: int, now: Instant) -> GroupEffects:
        """Answer a SyncGroup, now or when the leader has brought the assignments."""
        group = self._groups.get(request.group_id)
        if group is None:
            return [Answer(token, SyncResult(error=_absent(request.group_id)))]
        effects = group.sync(request, token, now)
        self._settle(group)
        return effects

    def heartbeat(
        self,
        group_id: str,
        member_id: str,
        instance_id: str | None,
        generation: int,
        now: Instant,
    ) -> ErrorCode:
        """Note that a member lives."""
        group = self._groups.get(group_id)
        if group is None:
            return _absent(group_id)
        return group.heartbeat(member_id, instance_id, generation, now)

    def leave(
        self, group_id: str, leaving: Collection[tuple[str, str | None]], now: Instant
    ) -> tuple[ErrorCode, tuple[LeaveResult, ...], GroupEffects]:
        """Take members out of a group."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, (), []
        group = self._groups.get(group_id)
        if group is None:
            unknown = ErrorCode.UNKNOWN_MEMBER_ID
            return ErrorCode.NONE, tuple(LeaveResult(m, i, unknown) for m, i in leaving), []
        results, effects = group.leave(leaving, now)
        self._settle(group)
        return ErrorCode.NONE, results, effects

    def _join_refusal(self, request: JoinGroup) -> ErrorCode:
        settings = self._settings
        if not request.group_id:
            return ErrorCode.INVALID_GROUP_ID
        timeout_ns = request.session_timeout_ns
        if not settings.session_timeout_min_ns <= timeout_ns <= settings.session_timeout_max_ns:
            return ErrorCode.INVALID_SESSION_TIMEOUT
        if request.group_id not in self._groups:
            if request.member_id:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if len(self._groups) >= settings.groups_max:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    # -- offsets ----------------------------------------------------------------------------

    def commit_error(
        self, group_id: str, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode:
        """Say whether this caller may commit offsets for this group now."""
        group = self._groups.get(group_id)
        if group is not None:
            return group.commit_error(member_id, instance_id, generation)
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID
        if generation >= 0:
            return ErrorCode.ILLEGAL_GENERATION
        if len(self._groups) >= self._settings.groups_max:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        return ErrorCode.NONE

    def commit(
        self,
        group_id: str,
        member_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        now: Instant,
    ) -> tuple[dict[TopicPartition, ErrorCode], GroupEffects]:
        """Store offsets of a caller that `commit_error` let pass."""
        group = self._groups.get(group_id)
        if group is None:
            group = ClassicGroup(group_id, self._settings, self._chance, now)
            self._groups[group_id] = group
        elif member_id in group.members:
            member = group.members[member_id]
            member.deadline = Instant(now + member.session_timeout_ns)
        errors: dict[TopicPartition, ErrorCode] = {}
        effects: GroupEffects = []
        limit = self._settings.offset_metadata_bytes_max
        for (topic, partition), committed in offsets.items():
            if len(committed.metadata.encode()) > limit:
                errors[topic, partition] = ErrorCode.OFFSET_METADATA_TOO_LARGE
                continue
            group.offsets[topic, partition] = committed
            effects.append(Persist(OffsetRecord(group_id, topic, partition, committed)))
            errors[topic, partition] = ErrorCode.NONE
        self._settle(group)
        return errors, effects

    def offsets_of(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Return all committed offsets of a group."""
        group = self._groups.get(group_id)
        return {} if group is None else group.offsets

    def forget_topics(self, topics: Collection[str]) -> GroupEffects:
        """Drop all offsets of deleted topics."""
        effects: GroupEffects = []
        for group_id in sorted(self._groups):
            group = self._groups[group_id]
            gone = [key for key in group.offsets if key[0] in topics]
            effects += self._drop_offsets(group, gone)
        return effects

    def clamp_offsets(self, log_ends: Mapping[TopicPartition, int]) -> GroupEffects:
        """After a start: no committed offset may lie beyond the end of what was recovered.

        Such an offset would silently skip whatever is appended next.  Offsets of partitions that
        do not exist are dropped.
        """
        effects: GroupEffects = []
        for group_id in sorted(self._groups):
            group = self._groups[group_id]
            gone = [key for key in group.offsets if key not in log_ends]
            for key, committed in list(group.offsets.items()):
                end = log_ends.get(key)
                if end is not None and committed.offset > end:
                    lower = msgspec.structs.replace(committed, offset=end)
                    group.offsets[key] = lower
                    effects.append(Persist(OffsetRecord(group_id, key[0], key[1], lower)))
            effects += self._drop_offsets(group, gone)
        return effects

    # -- administration ---------------------------------------------------------------------

    def describe(self, group_id: str) -> GroupDescription:
        """Return what is known about a group; state Dead when nothing is."""
        group = self._groups.get(group_id)
        if group is None:
            return GroupDescription(group_id=group_id)
        chosen = group.protocol_name
        return GroupDescription(
            group_id=group_id,
            state=group.state.value,
            protocol_type=group.protocol_type,
            protocol_data=chosen or "",
            members=tuple(
                MemberDescription(
                    member_id=member.member_id,
                    instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    metadata=member.metadata_of(chosen),
                    assignment=member.assignment,
                )
                for member in group.members.values()
            ),
        )

    def overview(self, states: Collection[str] = ()) -> Iterator[tuple[str, str, str]]:
        """Yield (group, protocol type, state), all or those in one of these states."""
        wanted = {state.lower() for state in states}
        for group_id in sorted(self._groups):
            group = self._groups[group_id]
            if not wanted or group.state.value.lower() in wanted:
                yield group_id, group.protocol_type, group.state.value

    def delete(self, group_id: str) -> tuple[ErrorCode, GroupEffects]:
        """Delete an empty group and its offsets."""
        if not group_id:
            return ErrorCode.INVALID_GROUP_ID, []
        group = self._groups.get(group_id)
        if group is None:
            return ErrorCode.GROUP_ID_NOT_FOUND, []
        if group.members or group.pending:
            return ErrorCode.NON_EMPTY_GROUP, []
        self._forget(group)
        return ErrorCode.NONE, [Persist(GroupDeleted(group_id))]

    # -- time -------------------------------------------------------------------------------

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        due = [self._next_expiry] if self._next_expiry is not None else []
        if self._due:
            due.append(self._due[0][0])
        return min(due, default=None)

    def wake(self, now: Instant) -> GroupEffects:
        """Act on every deadline at or before `now`."""
        effects: GroupEffects = []
        while self._due and self._due[0][0] <= now:
            when, _, group_id = heapq.heappop(self._due)
            if self._armed.get(group_id) != when:
                continue
            del self._armed[group_id]
            group = self._groups[group_id]
            effects += group.wake(now)
            self._settle(group)
        if self._next_expiry is not None and self._next_expiry <= now:
            effects += self._expire_offsets(now)
        return effects

    def start(self, now: Instant) -> None:
        """Begin to look for offsets past their retention."""
        self._next_expiry = Instant(now + EXPIRY_EVERY_NS)

    def _expire_offsets(self, now: Instant) -> GroupEffects:
        effects: GroupEffects = []
        for group_id in sorted(self._groups):
            group = self._groups[group_id]
            if group.members or group.pending:
                continue
            gone = [key for key, kept in group.offsets.items() if self._expired(group, kept, now)]
            effects += self._drop_offsets(group, gone)
        self._next_expiry = Instant(now + EXPIRY_EVERY_NS)
        return effects

    def _expired(self, group: ClassicGroup, kept: CommittedOffset, now: Instant) -> bool:
        if kept.expires_at is not None:
            return kept.expires_at <= now
        last_use = max(kept.committed_at, group.since) if group.generation else kept.committed_at
        return last_use + self._settings.offsets_retention_ns <= now

    def _drop_offsets(self, group: ClassicGroup, keys: Iterable[TopicPartition]) -> GroupEffects:
        effects: GroupEffects = []
        for key in keys:
            del group.offsets[key]
            effects.append(Persist(OffsetDeleted(group.group_id, key[0], key[1])))
        if effects and not (group.offsets or group.members or group.pending):
            self._forget(group)
            effects.append(Persist(GroupDeleted(group.group_id)))
        return effects

    def _forget(self, group: ClassicGroup) -> None:
        del self._groups[group.group_id]
        self._armed.pop(group.group_id, None)

    def _settle(self, group: ClassicGroup) -> None:
        """Arm the group's next deadline; drop a group that never became one."""
        if not (group.members or group.pending or group.offsets or group.generation):
            self._forget(group)
            return
        when = group.next_deadline()
        if when is None:
            self._armed.pop(group.group_id, None)
            return
        armed = self._armed.get(group.group_id)
        if armed is None or when < armed:
            self._armed[group.group_id] = when
            self._ordinal += 1
            heapq.heappush(self._due, (when, self._ordinal, group.group_id))

    # -- disk -------------------------------------------------------------------------------

    def replay(self, record: DurableRecord, now: Instant) -> None:
        """Take in one record from disk, in the order they were written."""
        match record:
            case GroupRecord():
                group = ClassicGroup.restore(record, self._settings, self._chance, now)
                before = self._groups.get(record.group_id)
                if before is not None:
                    group.offsets = before.offsets
                self._groups[record.group_id] = group
            case GroupDeleted(group_id):
                self._groups.pop(group_id, None)
                self._armed.pop(group_id, None)
                return
            case OffsetRecord(group_id, topic, partition, committed):
                found = self._groups.get(group_id)
                if found is None:
                    found = ClassicGroup(group_id, self._settings, self._chance, now)
                    self._groups[group_id] = found
                found.offsets[topic, partition] = committed
                group = found
            case OffsetDeleted(group_id, topic, partition):
                kept = self._groups.get(group_id)
                if kept is not None:
                    kept.offsets.pop((topic, partition), None)
                return
        self._settle(group)

    def records(self) -> Iterator[DurableRecord]:
        """Yield records that rebuild everything: the snapshot."""
        for group_id in self.ids():
            yield from self.records_of(group_id)

    def ids(self) -> list[str]:
        """Every group that is known, ascending."""
        return sorted(self._groups)

    def records_of(self, group_id: str) -> Iterator[DurableRecord]:
        """Yield records that rebuild one group, should it be known still."""
        group = self._groups.get(group_id)
        if group is None:
            return
        if group.durable is not None:
            yield group.durable
        for (topic, partition), committed in group.offsets.items():
            yield OffsetRecord(group_id, topic, partition, committed)


def _absent(group_id: str) -> ErrorCode:
    return ErrorCode.UNKNOWN_MEMBER_ID if group_id else ErrorCode.INVALID_GROUP_ID
