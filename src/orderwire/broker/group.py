"""One classic consumer group: who is in it, which generation, who reads what.

The states are Kafka's: Empty → PreparingRebalance → CompletingRebalance → Stable → …  A join or a
sync that has to wait keeps its token; the effects of a later call answer it.
"""

from collections.abc import Iterable
from random import Random

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.group_member import Member
from orderwire.broker.group_model import (
    Answer,
    CommittedOffset,
    GroupEffects,
    GroupRecord,
    GroupSettings,
    GroupState,
    JoinGroup,
    JoinResult,
    LeaveResult,
    MemberInfo,
    Persist,
    SyncGroup,
    SyncResult,
)
from orderwire.kernel import Instant


class ClassicGroup:
    """The state machine of one group.  Never raises: what a member did wrong is its answer."""

    def __init__(
        self, group_id: str, settings: GroupSettings, chance: Random, now: Instant
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.leader: str | None = None
        self.members: dict[str, Member] = {}
        self.pending: dict[str, Instant] = {}
        """Ids that were handed out and not yet used, with the instant they lapse."""
        self.offsets: dict[tuple[str, int], CommittedOffset] = {}
        self.since = now
        self.durable: GroupRecord | None = None
        """The last generation that went to disk; a rebalance under way is not part of it."""
        self._static: dict[str, str] = {}
        self._settings = settings
        self._chance = chance
        self._join_deadline: Instant | None = None
        self._sync_deadline: Instant | None = None
        self._initial_left_ns: int | None = None
        """While the first generation is delayed: by how much more the delay may grow."""
        self._initial_grew = False

    @classmethod
    def restore(
        cls, record: GroupRecord, settings: GroupSettings, chance: Random, now: Instant
    ) -> "ClassicGroup":
        """Rebuild a group from disk; every member has a full session to be heard again."""
        group = cls(record.group_id, settings, chance, record.since)
        group.durable = record
        group.generation = record.generation
        group.protocol_type = record.protocol_type
        group.protocol_name = record.protocol_name
        group.leader = record.leader
        for kept in record.members:
            request = JoinGroup(
                group_id=record.group_id,
                member_id=kept.member_id,
                instance_id=kept.instance_id,
                client_id=kept.client_id,
                client_host=kept.client_host,
                session_timeout_ns=kept.session_timeout_ns,
                rebalance_timeout_ns=kept.rebalance_timeout_ns,
                protocol_type=record.protocol_type,
                protocols=kept.protocols,
            )
            member = Member(kept.member_id, request)
            member.assignment = kept.assignment
            member.is_new = False
            member.deadline = Instant(now + kept.session_timeout_ns)
            group._add(member)
        group.state = GroupState.STABLE if group.members else GroupState.EMPTY
        return group

    # -- requests ---------------------------------------------------------------------------

    def join(self, request: JoinGroup, token: int, now: Instant) -> GroupEffects:
        """Let a member enter the next generation; its answer may come with a later call."""
        effects: GroupEffects = []
        error = self._join_error(request)
        if error is not ErrorCode.NONE:
            return [Answer(token, JoinResult(error=error, member_id=request.member_id))]
        if not request.member_id:
            self._join_without_id(request, token, now, effects)
        elif self.pending.pop(request.member_id, None) is not None:
            self._enter(request.member_id, request, token, now, effects)
        else:
            self._join_again(self.members[request.member_id], request, token, now, effects)
        return effects

    def sync(self, request: SyncGroup, token: int, now: Instant) -> GroupEffects:
        """Give a member its assignment, now or when the leader has brought it."""
        effects: GroupEffects = []
        error = self.member_error(request.member_id, request.instance_id, request.generation)
        if error is ErrorCode.NONE and self._contradicts(request):
            error = ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if error is ErrorCode.NONE and self.state is GroupState.PREPARING_REBALANCE:
            error = ErrorCode.REBALANCE_IN_PROGRESS
        if error is not ErrorCode.NONE:
            return [Answer(token, SyncResult(error=error))]
        member = self.members[request.member_id]
        member.must_sync = False
        self._heard(member, now)
        if self.state is GroupState.STABLE:
            return [Answer(token, self._sync_result(member))]
        self._replace_sync_token(member, token, effects)
        if member.member_id == self.leader:
            self._assign(dict(request.assignments), now, effects)
        return effects

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now: Instant
    ) -> ErrorCode:
        """Note that a member lives; REBALANCE_IN_PROGRESS tells it to join again."""
        error = self.member_error(member_id, instance_id, generation)
        if error is not ErrorCode.NONE:
            return error
        self._heard(self.members[member_id], now)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def leave(
        self, leaving: Iterable[tuple[str, str | None]], now: Instant
    ) -> tuple[tuple[LeaveResult, ...], GroupEffects]:
        """Take members out, by id or, for a static one, by its instance id alone."""
        effects: GroupEffects = []
        results: list[LeaveResult] = []
        left = False
        for member_id, instance_id in leaving:
            error = ErrorCode.NONE
            known = member_id
            if instance_id is not None:
                known = self._static.get(instance_id, "")
                if known and member_id and known != member_id:
                    error = ErrorCode.FENCED_INSTANCE_ID
            if error is ErrorCode.NONE:
                if self.pending.pop(known, None) is not None:
                    left = True
                elif known in self.members:
                    self._remove(self.members[known], effects)
                    left = True
                else:
                    error = ErrorCode.UNKNOWN_MEMBER_ID
            results.append(LeaveResult(member_id, instance_id, error))
        if left:
            self._after_removal(now, effects)
        return tuple(results), effects

    def wake(self, now: Instant) -> GroupEffects:
        """Act on every deadline at or before `now`."""
        effects: GroupEffects = []
        self._expire_members(now, effects)
        if self._sync_deadline is not None and self._sync_deadline <= now:
            self._sync_deadline = None
            silent = [member for member in self.members.values() if member.must_sync]
            for member in silent:
                self._remove(member, effects)
            if silent:
                self._after_removal(now, effects)
        if self._join_deadline is not None and self._join_deadline <= now:
            self._end_of_joining(now, effects)
        return effects

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        due = [member.deadline for member in self.members.values() if not member.is_waiting]
        due += self.pending.values()
        if self._join_deadline is not None:
            due.append(self._join_deadline)
        if self._sync_deadline is not None:
            due.append(self._sync_deadline)
        return min(due, default=None)

    # -- checks -----------------------------------------------------------------------------

    def member_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Say whether this is a member of this generation."""
        if instance_id is not None:
            known = self._static.get(instance_id)
            if known is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if known != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        if member_id not in self.members:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if generation != self.generation:
            return ErrorCode.ILLEGAL_GENERATION
        return ErrorCode.NONE

    def commit_error(self, member_id: str, instance_id: str | None, generation: int) -> ErrorCode:
        """Say whether this caller may commit offsets now."""
        if generation < 0 and not member_id and not self.members:
            return ErrorCode.NONE
        error = self.member_error(member_id, instance_id, generation)
        if error is ErrorCode.NONE and self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return error

    def _join_error(self, request: JoinGroup) -> ErrorCode:
        known = request.member_id
        if known and known not in self.pending:
            if request.instance_id is not None:
                error = self.member_error(known, request.instance_id, self.generation)
                if error is not ErrorCode.NONE:
                    return error
            if known not in self.members:
                return ErrorCode.UNKNOWN_MEMBER_ID
        if not request.protocol_type or not request.protocols:
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        others = [m for m in self.members.values() if m.member_id != known]
        if others:
            names = {name for name, _ in request.protocols}
            for member in others:
                names &= {name for name, _ in member.protocols}
            if request.protocol_type != self.protocol_type or not names:
                return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if not known and len(self.members) + len(self.pending) >= self._settings.group_members_max:
            return ErrorCode.GROUP_MAX_SIZE_REACHED
        return ErrorCode.NONE

    def _contradicts(self, request: SyncGroup) -> bool:
        return (
            request.protocol_type is not None and request.protocol_type != self.protocol_type
        ) or (request.protocol_name is not None and request.protocol_name != self.protocol_name)

    # -- joining ----------------------------------------------------------------------------

    def _join_without_id(
        self, request: JoinGroup, token: int, now: Instant, effects: GroupEffects
    ) -> None:
        member_id = (
            f"{request.instance_id or request.client_id}-{self._chance.getrandbits(128):032x}"
        )
        if request.instance_id is not None and request.instance_id in self._static:
            self._replace_static(member_id, request, token, now, effects)
        elif request.instance_id is None and request.id_required:
            self.pending[member_id] = Instant(now + request.session_timeout_ns)
            effects.append(
                Answer(token, JoinResult(error=ErrorCode.MEMBER_ID_REQUIRED, member_id=member_id))
            )
        else:
            self._enter(member_id, request, token, now, effects)

    def _enter(
        self, member_id: str, request: JoinGroup, token: int, now: Instant, effects: GroupEffects
    ) -> None:
        if not self.members:
            self.protocol_type = request.protocol_type
        member = Member(member_id, request)
        member.join_token = token
        member.deadline = Instant(
            now + max(self._settings.new_member_timeout_ns, request.session_timeout_ns)
        )
        self._add(member)
        self._initial_grew = True
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(now, effects)
        else:
            self._prepare_rebalance(now, effects)

    def _join_again(
        self, member: Member, request: JoinGroup, token: int, now: Instant, effects: GroupEffects
    ) -> None:
        unchanged = member.protocols == request.protocols
        if unchanged and (
            self.state is GroupState.COMPLETING_REBALANCE
            or (self.state is GroupState.STABLE and member.member_id != self.leader)
        ):
            self._heard(member, now)
            effects.append(Answer(token, self._join_result(member)))
            return
        member.take(request)
        self._replace_join_token(member, token, effects)
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(now, effects)
        else:
            self._prepare_rebalance(now, effects)

    def _replace_static(
        self, member_id: str, request: JoinGroup, token: int, now: Instant, effects: GroupEffects
    ) -> None:
        """Let a restarted static member take its own place; the old incarnation is fenced."""
        assert request.instance_id is not None
        old = self.members.pop(self._static[request.instance_id])
        if old.join_token is not None:
            refusal = JoinResult(error=ErrorCode.FENCED_INSTANCE_ID, member_id=old.member_id)
            effects.append(Answer(old.join_token, refusal))
        if old.sync_token is not None:
            refused = SyncResult(error=ErrorCode.FENCED_INSTANCE_ID)
            effects.append(Answer(old.sync_token, refused))
        before = self.protocol_name
        was_leader = self.leader == old.member_id
        member = Member(member_id, request)
        member.assignment = old.assignment
        member.is_new = False
        member.must_sync = old.must_sync
        self._add(member)
        self._heard(member, now)
        if was_leader:
            self.leader = member_id
        if self.state is GroupState.STABLE and self._select_protocol() == before:
            self._persist(effects)
            effects.append(Answer(token, self._replaced_result(member, old, was_leader, request)))
            return
        member.join_token = token
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(now, effects)
        else:
            self._prepare_rebalance(now, effects)

    def _replaced_result(
        self, member: Member, old: Member, was_leader: bool, request: JoinGroup
    ) -> JoinResult:
        """Answer without a rebalance: the assignment stands, so nobody may assign anew."""
        if not was_leader:
            return self._join_result(member)
        if request.skip_assignment_known:
            return JoinResult(
                error=ErrorCode.NONE,
                member_id=member.member_id,
                generation=self.generation,
                protocol_type=self.protocol_type,
                protocol_name=self.protocol_name,
                leader=member.member_id,
                skip_assignment=True,
                members=self._infos(),
            )
        return JoinResult(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=old.member_id,
        )

    # -- generations ------------------------------------------------------------------------

    def _prepare_rebalance(self, now: Instant, effects: GroupEffects) -> None:
        for member in self.members.values():
            member.must_sync = False
            if self.state is GroupState.COMPLETING_REBALANCE:
                member.assignment = b""
            if member.sync_token is not None:
                refusal = SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS)
                effects.append(Answer(member.sync_token, refusal))
                member.sync_token = None
                self._heard(member, now)
        was_empty = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        self.since = now
        self._sync_deadline = None
        timeout_ns = self._rebalance_timeout_ns()
        delay_ns = min(self._settings.initial_rebalance_delay_ns, timeout_ns)
        if was_empty and delay_ns > 0:
            self._initial_left_ns = timeout_ns - delay_ns
            self._initial_grew = False
            self._join_deadline = Instant(now + delay_ns)
            return
        self._initial_left_ns = None
        self._join_deadline = Instant(now + timeout_ns)
        self._complete_if_all_joined(now, effects)

    def _complete_if_all_joined(self, now: Instant, effects: GroupEffects) -> None:
        if self._initial_left_ns is not None and self.members:
            return
        if self.pending or any(m.join_token is None for m in self.members.values()):
            return
        self._complete_join(now, effects)

    def _end_of_joining(self, now: Instant, effects: GroupEffects) -> None:
        left_ns = self._initial_left_ns
        if left_ns is not None and left_ns > 0 and self._initial_grew:
            delay_ns = min(self._settings.initial_rebalance_delay_ns, left_ns)
            self._initial_left_ns = left_ns - delay_ns
            self._initial_grew = False
            self._join_deadline = Instant(now + delay_ns)
            return
        self._complete_join(now, effects)

    def _complete_join(self, now: Instant, effects: GroupEffects) -> None:
        self._initial_left_ns = None
        self._join_deadline = None
        for member in list(self.members.values()):
            if member.join_token is None and member.instance_id is None:
                self._remove(member, effects)
        if not self.members:
            self._become_empty(now, effects)
            return
        joined = [m for m in self.members.values() if m.join_token is not None]
        if not joined:  # only static members, all absent: give them another rebalance timeout
            self._join_deadline = Instant(now + self._rebalance_timeout_ns())
            return
        if self.leader is None or self.members[self.leader].join_token is None:
            self.leader = joined[0].member_id
        self.generation += 1
        self.protocol_name = self._select_protocol()
        self.state = GroupState.COMPLETING_REBALANCE
        self.since = now
        self._sync_deadline = Instant(now + self._rebalance_timeout_ns())
        for member in joined:
            assert member.join_token is not None
            effects.append(Answer(member.join_token, self._join_result(member)))
            member.join_token = None
            member.is_new = False
            member.must_sync = True
            self._heard(member, now)

    def _assign(self, assignments: dict[str, bytes], now: Instant, effects: GroupEffects) -> None:
        for member in self.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self.state = GroupState.STABLE
        self.since = now
        self._persist(effects)
        for member in self.members.values():
            if member.sync_token is not None:
                effects.append(Answer(member.sync_token, self._sync_result(member)))
                member.sync_token = None
                self._heard(member, now)

    def _become_empty(self, now: Instant, effects: GroupEffects) -> None:
        self.generation += 1
        self.protocol_name = None
        self.leader = None
        self.state = GroupState.EMPTY
        self.since = now
        self._persist(effects)

    def _select_protocol(self) -> str:
        """Return the protocol all members speak that most of them prefer; ties by first vote."""
        candidates = set.intersection(
            *({name for name, _ in member.protocols} for member in self.members.values())
        )
        votes: dict[str, int] = {}
        for member in self.members.values():
            choice = next(name for name, _ in member.protocols if name in candidates)
            votes[choice] = votes.get(choice, 0) + 1
        return max(votes, key=lambda name: votes[name])

    # -- members ----------------------------------------------------------------------------

    def _add(self, member: Member) -> None:
        self.members[member.member_id] = member
        if member.instance_id is not None:
            self._static[member.instance_id] = member.member_id

    def _remove(self, member: Member, effects: GroupEffects) -> None:
        del self.members[member.member_id]
        if member.instance_id is not None:
            del self._static[member.instance_id]
        if self.leader == member.member_id:
            self.leader = next(iter(self.members), None)
        if member.join_token is not None:
            gone = JoinResult(error=ErrorCode.UNKNOWN_MEMBER_ID, member_id=member.member_id)
            effects.append(Answer(member.join_token, gone))
        if member.sync_token is not None:
            lost = SyncResult(error=ErrorCode.UNKNOWN_MEMBER_ID)
            effects.append(Answer(member.sync_token, lost))

    def _after_removal(self, now: Instant, effects: GroupEffects) -> None:
        if self.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self._prepare_rebalance(now, effects)
        elif self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(now, effects)

    def _expire_members(self, now: Instant, effects: GroupEffects) -> None:
        silent = [m for m in self.members.values() if not m.is_waiting and m.deadline <= now]
        lapsed = [member_id for member_id, until in self.pending.items() if until <= now]
        for member in silent:
            self._remove(member, effects)
        for member_id in lapsed:
            del self.pending[member_id]
        if silent or lapsed:
            self._after_pending(silent, now, effects)

    def _after_pending(self, silent: list[Member], now: Instant, effects: GroupEffects) -> None:
        if silent or self.state is GroupState.PREPARING_REBALANCE:
            self._after_removal(now, effects)

    def _heard(self, member: Member, now: Instant) -> None:
        member.deadline = Instant(now + member.session_timeout_ns)

    def _replace_join_token(self, member: Member, token: int, effects: GroupEffects) -> None:
        if member.join_token is not None:  # asked again over another connection
            superseded = JoinResult(
                error=ErrorCode.REBALANCE_IN_PROGRESS, member_id=member.member_id
            )
            effects.append(Answer(member.join_token, superseded))
        member.join_token = token

    def _replace_sync_token(self, member: Member, token: int, effects: GroupEffects) -> None:
        if member.sync_token is not None:
            superseded = SyncResult(error=ErrorCode.REBALANCE_IN_PROGRESS)
            effects.append(Answer(member.sync_token, superseded))
        member.sync_token = token

    def _rebalance_timeout_ns(self) -> int:
        return max((m.rebalance_timeout_ns for m in self.members.values()), default=0)

    # -- answers and records ----------------------------------------------------------------

    def _join_result(self, member: Member) -> JoinResult:
        assert self.leader is not None
        return JoinResult(
            error=ErrorCode.NONE,
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader,
            members=self._infos() if member.member_id == self.leader else (),
        )

    def _infos(self) -> tuple[MemberInfo, ...]:
        return tuple(
            MemberInfo(m.member_id, m.instance_id, m.metadata_of(self.protocol_name))
            for m in self.members.values()
        )

    def _sync_result(self, member: Member) -> SyncResult:
        return SyncResult(
            error=ErrorCode.NONE,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )

    def _persist(self, effects: GroupEffects) -> None:
        self.durable = GroupRecord(
            group_id=self.group_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.leader,
            members=tuple(member.record() for member in self.members.values()),
            since=self.since,
        )
        effects.append(Persist(self.durable))
