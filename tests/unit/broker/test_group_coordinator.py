"""The group coordinator: states, timeouts, fencing, offsets, what goes to disk."""

from collections.abc import Iterable
from random import Random
from typing import Any

import pytest

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.group_model import (
    Answer,
    CommittedOffset,
    GroupDeleted,
    GroupEffects,
    GroupRecord,
    GroupSettings,
    JoinGroup,
    JoinResult,
    OffsetDeleted,
    OffsetRecord,
    Persist,
    SyncGroup,
    SyncResult,
)
from orderwire.broker.groups import EXPIRY_EVERY_NS, GroupCoordinator
from orderwire.kernel import NS_PER_S, Instant, ms

SESSION_NS = 10 * NS_PER_S
REBALANCE_NS = 20 * NS_PER_S
DELAY_NS = ms(300)


class World:
    """A coordinator with a clock and a notebook."""

    def __init__(self, **settings: Any) -> None:
        self.settings = GroupSettings(initial_rebalance_delay_ns=DELAY_NS, **settings)
        self.groups = GroupCoordinator(self.settings, Random(1))
        self.now = Instant(1_000 * NS_PER_S)
        self.answers: dict[int, JoinResult | SyncResult] = {}
        self.journal: list[Any] = []
        self._token = 0
        self.groups.start(self.now)

    def apply(self, effects: GroupEffects) -> None:
        for effect in effects:
            if isinstance(effect, Answer):
                assert effect.token not in self.answers, "answered twice"
                self.answers[effect.token] = effect.result
            else:
                assert isinstance(effect, Persist)
                self.journal.append(effect.record)

    def join(self, member: str = "", *, group: str = "g", **fields: Any) -> int:
        self._token += 1
        command = JoinGroup(
            group_id=group,
            member_id=member,
            client_id="c",
            client_host="h",
            session_timeout_ns=fields.pop("session_ns", SESSION_NS),
            rebalance_timeout_ns=REBALANCE_NS,
            protocol_type=fields.pop("protocol_type", "consumer"),
            protocols=fields.pop("protocols", (("range", b"meta"),)),
            **fields,
        )
        self.apply(self.groups.join(command, self._token, self.now))
        return self._token

    def sync(
        self, result: JoinResult, shares: Iterable[tuple[str, bytes]] = (), **fields: Any
    ) -> int:
        self._token += 1
        command = SyncGroup(
            group_id=fields.pop("group", "g"),
            generation=fields.pop("generation", result.generation),
            member_id=result.member_id,
            assignments=tuple(shares),
            **fields,
        )
        self.apply(self.groups.sync(command, self._token, self.now))
        return self._token

    def beat(self, result: JoinResult, instance: str | None = None) -> ErrorCode:
        return self.groups.heartbeat("g", result.member_id, instance, result.generation, self.now)

    def leave(self, *members: tuple[str, str | None]) -> list[ErrorCode]:
        error, results, effects = self.groups.leave("g", members, self.now)
        assert error is ErrorCode.NONE
        self.apply(effects)
        return [result.error for result in results]

    def advance(self, ns: int) -> None:
        """Let time pass, waking at every deadline on the way."""
        until = Instant(self.now + ns)
        while (due := self.groups.next_deadline()) is not None and due <= until:
            self.now = max(self.now, due)
            self.apply(self.groups.wake(self.now))
        self.now = until

    def joined(self, token: int) -> JoinResult:
        result = self.answers[token]
        assert isinstance(result, JoinResult)
        return result

    def synced(self, token: int) -> SyncResult:
        result = self.answers[token]
        assert isinstance(result, SyncResult)
        return result

    def stable(self, count: int, **fields: Any) -> list[JoinResult]:
        """Bring a group of this size to Stable; the first is its leader."""
        tokens = [self.join(**fields) for _ in range(count)]
        self.advance(DELAY_NS * (count + 1))
        results = [self.joined(token) for token in tokens]
        for result in results[1:]:
            self.sync(result)
        shares = [(result.member_id, result.member_id.encode()) for result in results]
        self.sync(results[0], shares)
        return results

    def restart(self) -> "World":
        """A second coordinator that has read the journal."""
        world = World()
        world.now = self.now
        for record in self.journal:
            world.groups.replay(record, world.now)
        return world


def test_first_generation_waits_for_more_members() -> None:
    world = World()
    first = world.join()
    world.advance(DELAY_NS - 1)
    second = world.join()
    assert world.answers == {}
    world.advance(1)  # the delay ends, but the group grew: it is prolonged once more
    assert world.answers == {}
    world.advance(DELAY_NS)
    leader, follower = world.joined(first), world.joined(second)
    assert leader.generation == follower.generation == 1
    assert leader.leader == follower.leader == leader.member_id
    assert [info.member_id for info in leader.members] == [leader.member_id, follower.member_id]
    assert follower.members == ()


def test_initial_delay_ends_with_the_rebalance_timeout_at_the_latest() -> None:
    world = World()
    first = world.join()
    for _ in range(100):
        world.join()
        world.advance(DELAY_NS)
    assert world.joined(first).generation == 1


def test_member_without_id_is_told_one_and_comes_back() -> None:
    world = World()
    told = world.joined(world.join(id_required=True))
    assert told.error is ErrorCode.MEMBER_ID_REQUIRED
    assert told.member_id
    token = world.join(told.member_id, id_required=True)
    world.advance(DELAY_NS * 2)
    assert world.joined(token).member_id == told.member_id


def test_handed_out_id_lapses_after_the_session_timeout() -> None:
    world = World()
    told = world.joined(world.join(id_required=True))
    world.advance(SESSION_NS)
    token = world.join(told.member_id, id_required=True)
    assert world.joined(token).error is ErrorCode.UNKNOWN_MEMBER_ID


def test_assignments_are_kept_on_disk_before_they_are_told() -> None:
    world = World()
    tokens = [world.join(), world.join()]
    world.advance(DELAY_NS * 3)
    first, second = (world.joined(token) for token in tokens)
    waiting = world.sync(second)
    assert waiting not in world.answers
    command = SyncGroup(
        group_id="g",
        generation=1,
        member_id=first.member_id,
        assignments=((first.member_id, b"A"), (second.member_id, b"B")),
    )
    effects = world.groups.sync(command, 99, world.now)
    assert isinstance(effects[0], Persist)
    assert isinstance(effects[0].record, GroupRecord)
    world.apply(effects)
    assert world.synced(waiting).assignment == b"B"
    assert world.synced(99).assignment == b"A"


def test_silent_member_is_removed_and_the_others_are_told() -> None:
    world = World()
    first, second = world.stable(2)
    world.advance(SESSION_NS - 1)
    assert world.beat(first) is ErrorCode.NONE
    world.advance(1)
    assert world.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.beat(second) is ErrorCode.UNKNOWN_MEMBER_ID
    again = world.joined(world.join(first.member_id))
    assert again.generation == 2
    assert [info.member_id for info in again.members] == [first.member_id]


def test_member_that_does_not_rejoin_in_time_is_left_out() -> None:
    world = World()
    first, second = world.stable(2)
    third = world.join()
    assert world.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    token = world.join(first.member_id)
    for _ in range(20):
        world.advance(REBALANCE_NS // 20)
        world.beat(second)
    assert world.joined(token).generation == 2
    assert world.joined(third).generation == 2
    assert world.beat(second) is ErrorCode.UNKNOWN_MEMBER_ID


def test_leader_that_never_syncs_is_removed() -> None:
    world = World()
    tokens = [world.join(), world.join()]
    world.advance(DELAY_NS * 3)
    leader, follower = (world.joined(token) for token in tokens)
    waiting = world.sync(follower)
    for _ in range(20):
        world.advance(REBALANCE_NS // 20)
        world.beat(leader)
    assert world.synced(waiting).error is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.beat(leader) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.joined(world.join(follower.member_id)).leader == follower.member_id


def test_wrong_generation_member_and_state_are_told_apart() -> None:
    world = World()
    (only,) = world.stable(1)
    assert world.groups.heartbeat("g", only.member_id, None, 7, world.now) is (
        ErrorCode.ILLEGAL_GENERATION
    )
    assert world.groups.heartbeat("g", "x", None, 1, world.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.groups.heartbeat("no", "x", None, 1, world.now) is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.groups.heartbeat("", "x", None, 1, world.now) is ErrorCode.INVALID_GROUP_ID
    assert world.synced(world.sync(only, generation=2)).error is ErrorCode.ILLEGAL_GENERATION
    wrong = world.sync(only, protocol_name="sticky")
    assert world.synced(wrong).error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"group": ""}, ErrorCode.INVALID_GROUP_ID),
        ({"session_ns": 1}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"session_ns": 10**15}, ErrorCode.INVALID_SESSION_TIMEOUT),
        ({"protocols": ()}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": ""}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocol_type": "connect"}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"protocols": (("sticky", b""),)}, ErrorCode.INCONSISTENT_GROUP_PROTOCOL),
        ({"member": "made-up"}, ErrorCode.UNKNOWN_MEMBER_ID),
        ({"member": "made-up", "group": "new"}, ErrorCode.UNKNOWN_MEMBER_ID),
    ],
)
def test_joins_that_are_refused(fields: dict[str, Any], error: ErrorCode) -> None:
    world = World()
    world.stable(1)
    assert world.joined(world.join(**fields)).error is error


def test_protocol_is_the_one_all_speak_and_most_prefer() -> None:
    world = World()
    tokens = [
        world.join(protocols=(("a", b"1"), ("b", b"2"), ("c", b"3"))),
        world.join(protocols=(("c", b""), ("b", b""), ("a", b""))),
        world.join(protocols=(("c", b""), ("b", b""))),
    ]
    world.advance(DELAY_NS * 4)
    assert {world.joined(token).protocol_name for token in tokens} == {"c"}
    assert world.joined(tokens[0]).members[0].metadata == b"3"


def test_leaving_member_starts_a_rebalance_and_the_last_one_empties_the_group() -> None:
    world = World()
    first, second = world.stable(2)
    assert world.leave((second.member_id, None)) == [ErrorCode.NONE]
    assert world.beat(first) is ErrorCode.REBALANCE_IN_PROGRESS
    assert world.leave((first.member_id, None), ("x", None)) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
    ]
    assert world.groups.describe("g").state == "Empty"
    assert isinstance(world.journal[-1], GroupRecord)
    assert world.journal[-1].members == ()


def test_static_member_takes_its_place_again_without_a_rebalance() -> None:
    world = World()
    (before,) = world.stable(1, instance_id="i")
    after = world.joined(world.join(instance_id="i", skip_assignment_known=True))
    assert after.error is ErrorCode.NONE
    assert after.generation == before.generation
    assert after.member_id != before.member_id
    assert after.skip_assignment
    assert world.synced(world.sync(after)).assignment == before.member_id.encode()
    assert world.beat(before, "i") is ErrorCode.FENCED_INSTANCE_ID
    assert world.leave((before.member_id, "i")) == [ErrorCode.FENCED_INSTANCE_ID]
    assert world.leave(("", "i")) == [ErrorCode.NONE]


def test_static_leader_of_an_old_client_is_not_made_to_assign_anew() -> None:
    world = World()
    first = world.join(instance_id="i")
    world.advance(DELAY_NS * 2)
    before = world.joined(first)
    world.sync(before, [(before.member_id, b"all")])
    after = world.joined(world.join(instance_id="i"))
    assert after.leader == before.member_id
    assert after.members == ()


def test_replaced_static_member_that_waits_is_fenced() -> None:
    world = World()
    waiting = world.join(instance_id="i")
    token = world.join(instance_id="i")
    world.advance(DELAY_NS * 3)
    assert world.joined(waiting).error is ErrorCode.FENCED_INSTANCE_ID
    assert world.joined(token).error is ErrorCode.NONE


def test_group_size_is_limited_waiting_ids_included() -> None:
    world = World(group_members_max=2)
    world.join(id_required=True)
    world.join()
    refused = world.joined(world.join(id_required=True))
    assert refused.error is ErrorCode.GROUP_MAX_SIZE_REACHED


def test_number_of_groups_is_limited() -> None:
    world = World(groups_max=1)
    world.join()
    assert world.joined(world.join(group="h")).error is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.groups.commit_error("h", "", None, -1) is ErrorCode.COORDINATOR_NOT_AVAILABLE


def committed(world: World, offset: int, **fields: Any) -> CommittedOffset:
    return CommittedOffset(offset, 0, fields.pop("metadata", ""), world.now, **fields)


def commit(world: World, group: str, member: str, offset: CommittedOffset) -> ErrorCode:
    errors, effects = world.groups.commit(group, member, {("t", 0): offset}, world.now)
    world.apply(effects)
    return errors["t", 0]


def test_who_may_commit() -> None:
    world = World()
    may = world.groups.commit_error
    assert may("g", "", None, -1) is ErrorCode.NONE
    assert may("g", "m", None, 3) is ErrorCode.ILLEGAL_GENERATION
    token = world.join()
    world.advance(DELAY_NS * 2)
    only = world.joined(token)
    assert may("g", only.member_id, None, 1) is ErrorCode.REBALANCE_IN_PROGRESS
    world.sync(only)
    assert may("g", only.member_id, None, 1) is ErrorCode.NONE
    assert may("g", only.member_id, None, 2) is ErrorCode.ILLEGAL_GENERATION
    assert may("g", "", None, -1) is ErrorCode.UNKNOWN_MEMBER_ID
    world.join()
    assert may("g", only.member_id, None, 1) is ErrorCode.NONE  # while the group prepares


def test_commit_keeps_the_member_alive_and_its_metadata_is_limited() -> None:
    world = World()
    (only,) = world.stable(1)
    world.advance(SESSION_NS - 1)
    assert commit(world, "g", only.member_id, committed(world, 5)) is ErrorCode.NONE
    world.advance(SESSION_NS - 1)
    assert world.beat(only) is ErrorCode.NONE
    long = committed(world, 6, metadata="é" * 2_049)
    assert commit(world, "g", only.member_id, long) is ErrorCode.OFFSET_METADATA_TOO_LARGE
    assert world.groups.offsets_of("g")["t", 0].offset == 5


def test_offsets_of_an_empty_group_expire_and_take_the_group_along() -> None:
    world = World(offsets_retention_ns=1_000 * NS_PER_S)
    (only,) = world.stable(1)
    commit(world, "g", only.member_id, committed(world, 5))
    for _ in range(300):
        world.advance(SESSION_NS - 1)
        world.beat(only)
    assert world.groups.offsets_of("g"), "a group with members keeps its offsets"
    world.leave((only.member_id, None))
    world.advance(1_000 * NS_PER_S - 1)
    assert world.groups.offsets_of("g")
    world.advance(EXPIRY_EVERY_NS + 1)
    assert not world.groups.offsets_of("g")
    assert world.journal[-2:] == [OffsetDeleted("g", "t", 0), GroupDeleted("g")]
    assert list(world.groups.overview()) == []


def test_retention_of_old_commit_requests_is_honoured() -> None:
    world = World()
    commit(world, "g", "", committed(world, 5, expires_at=Instant(world.now + 30 * NS_PER_S)))
    world.advance(2 * EXPIRY_EVERY_NS)
    assert not world.groups.offsets_of("g")


def test_deleting_needs_an_empty_group() -> None:
    world = World()
    (only,) = world.stable(1)
    assert world.groups.delete("g")[0] is ErrorCode.NON_EMPTY_GROUP
    assert world.groups.delete("other")[0] is ErrorCode.GROUP_ID_NOT_FOUND
    world.leave((only.member_id, None))
    error, effects = world.groups.delete("g")
    assert error is ErrorCode.NONE
    assert effects == [Persist(GroupDeleted("g"))]
    assert world.groups.describe("g").state == "Dead"


def test_deleted_topic_takes_its_offsets_along() -> None:
    world = World()
    commit(world, "g", "", committed(world, 5))
    assert world.groups.forget_topics({"other"}) == []
    world.apply(world.groups.forget_topics({"t"}))
    assert not world.groups.offsets_of("g")


def test_restart_keeps_generation_assignment_and_offsets() -> None:
    world = World()
    first, second = world.stable(2)
    commit(world, "g", first.member_id, committed(world, 5))
    after = world.restart()
    assert after.beat(first) is ErrorCode.NONE
    assert after.synced(after.sync(second)).assignment == second.member_id.encode()
    assert after.groups.offsets_of("g")["t", 0].offset == 5
    assert list(after.groups.overview(["stable"])) == [("g", "consumer", "Stable")]
    after.advance(SESSION_NS)
    assert after.groups.describe("g").state == "Empty"


def test_rebalance_under_way_is_not_taken_for_a_generation() -> None:
    """A snapshot in the middle of a rebalance holds the last generation that had assignments."""
    world = World()
    first, _ = world.stable(2)
    world.join(first.member_id)
    world.join()
    records = list(world.groups.records())
    assert [type(record) for record in records] == [GroupRecord]
    assert isinstance(records[0], GroupRecord)
    assert records[0].generation == 1
    assert all(member.assignment for member in records[0].members)


def test_snapshot_equals_what_the_journal_says() -> None:
    world = World()
    first, _ = world.stable(2)
    commit(world, "g", first.member_id, committed(world, 5))
    commit(world, "simple", "", committed(world, 9))
    replayed = world.restart()
    assert list(replayed.groups.records()) == list(world.groups.records())


def test_commits_behind_the_end_of_the_log_are_lowered_after_a_start() -> None:
    """[broker.md §10.17] An offset beyond the recovered end would skip what comes next."""
    world = World()
    commit(world, "g", "", committed(world, 50))
    errors, effects = world.groups.commit(
        "g", "", {("u", 0): committed(world, 3), ("gone", 0): committed(world, 1)}, world.now
    )
    assert set(errors.values()) == {ErrorCode.NONE}
    world.apply(effects)
    lowered = world.groups.clamp_offsets({("t", 0): 20, ("u", 0): 20})
    assert {key: kept.offset for key, kept in world.groups.offsets_of("g").items()} == {
        ("t", 0): 20,
        ("u", 0): 3,
    }
    assert [type(effect.record) for effect in lowered if isinstance(effect, Persist)] == [
        OffsetRecord,
        OffsetDeleted,
    ]
