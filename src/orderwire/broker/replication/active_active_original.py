"""The original of an active-active partition: takes requests, assigns offsets, hands out, answers.

It keeps nothing durably: what another original needs to know it collects.  [R1, R6, R7, G16]
"""

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.log import Admitted, Appended, Refused
from orderwire.broker.log.admission import admit
from orderwire.broker.replication.active_active_assigned import (
    Assigned,
    AssignedList,
    AssignedProducers,
    SessionKey,
    sequenced,
)
from orderwire.broker.replication.active_active_member import Member
from orderwire.broker.replication.active_active_messages import (
    Copied,
    OrphanKnown,
    OrphanLater,
    OrphanOffer,
    OrphanPlace,
    RelayAppend,
)
from orderwire.broker.replication.effects import Answer
from orderwire.broker.replication.gaps import retriable
from orderwire.broker.replication.links import Links
from orderwire.broker.replication.office import Office
from orderwire.broker.replication.outbox import Outbox
from orderwire.broker.replication.settings import (
    Coordination,
    Distribution,
    ReplicationSettings,
)
from orderwire.broker.replication.spans import Span
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.batch import BATCH_HEADER, PLACE, BatchHeader, read_header
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import NS_PER_MS, Instant

_SESSIONS_MAX = 100_000
_ROUND_FACTOR = 4
"""A round covers at most so many times the bytes that start one."""
_ROUND_REQUESTS_MAX = 50_000
_ALL = -1
_place = PLACE.pack_into


class _Session:
    """A producer and the replica that stores for it."""

    __slots__ = ("doubts", "member", "stream")

    def __init__(self) -> None:
        self.member: BrokerId | None = None
        self.doubts = 0
        """Requests of it whose fate only a round can tell."""


class Original:
    """What being original of one epoch takes."""

    def __init__(
        self,
        epoch: int,
        member: Member,
        office: Office,
        links: Links,
        settings: ReplicationSettings,
        out: Outbox,
    ) -> None:
        self.epoch = epoch
        self.member = member
        self.files = member.files
        self.office = office
        self.links = links
        self.settings = settings
        self.out = out
        self.active = False
        """Whether the recovery round is over.  [R7]"""
        self.next_offset = self.files.end
        """The next to assign; known for sure once recovered."""
        self.recovered_end = self.next_offset
        """What lies below and is not committed yet, we have not assigned ourselves."""
        self.assigned = AssignedList()
        self.producers = AssignedProducers(self.files.log)
        self.round_wanted = False
        """Whether somebody waits for a round.  [R9]"""
        self._round_bytes = _ROUND_FACTOR * settings.sync_max_bytes
        """No round covers more."""
        self._parked_at = -1
        """S at which a consumer's fetch waits."""
        self._sessions: dict[SessionKey, _Session] = {}
        self._streams: dict[BrokerId, int] = {}
        self._turn = 0
        self._orphans: dict[tuple[int, int], int] = {}
        """Offset and epoch that an orphan had → the offset that it has now, not committed yet."""

    @property
    def me(self) -> BrokerId:
        """Our own number."""
        return self.office.me

    def begin(self) -> None:
        """Take requests from now on: everything before is settled.  [R7]"""
        self.active = True
        if self.office.view is not None and self.office.view.losses:
            self.files.log.producers.may_lack()
        self.next_offset = self.recovered_end = self.files.log.end_offset
        self.producers = AssignedProducers(self.files.log)

    def end(self) -> None:
        """Somebody else is original, or nobody: what waits is stored, and may be committed yet.

        "Not leader" would say that it is not: clients would send it a second time.
        """
        self.active = False
        refused = Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, "this broker is original no longer"
        )
        for entry in list(self.assigned):
            self._answer(entry, (1, _ALL), refused)

    # Requests.

    def produce(
        self, token: int, connection: int, records: Buffer, acks: int, now: Instant
    ) -> None:
        """Assign offsets and hand the batches to a replica.  [R1]"""
        result = self._take(token, connection, records, acks, now)
        if result is not None:
            self.out.add(Answer(token, result))

    def _take(
        self, token: int, connection: int, records: Buffer, acks: int, now: Instant
    ) -> Appended | Refused | None:
        refused = self._unready(len(records), acks)
        if refused is not None:
            return refused
        # Clients' buffers may not be writable; what is handed on has to be ours anyway.
        data = bytearray(records)
        base = self.next_offset
        admitted = admit(data, base, self.files.log.config, self.producers, internal=False)
        if isinstance(admitted, Appended):
            return self._again(token, acks, admitted)
        first = read_header(data) if len(data) >= BATCH_HEADER.size else None
        idempotent = first is not None and first.producer_id >= 0 and first.base_sequence >= 0
        key: SessionKey = ("connection", connection)
        if idempotent and first is not None:
            key = ("producer", first.producer_id)
        session = self._session(key)
        if idempotent and session.doubts:
            # What it sent before may or may not be there: a later one must not go ahead.  [I9]
            return Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                "a round has to tell first what became of this producer's earlier requests",
            )
        if isinstance(admitted, Refused):
            return retriable(admitted)
        for at, position, length, _ in admitted.batches:
            _place(data, position, at, length, self.epoch)
        owner = self._owner(session, sticky=idempotent or acks == _ALL)
        entry = Assigned(base, admitted.next_offset, owner, key, len(data), now)
        eager = acks == _ALL and self.settings.eager_copy
        refused = self._hand_over(entry, data, now, eager=eager)
        if refused is not None:
            return refused
        self._assign(entry, admitted, now)
        self.assigned.wait(entry, token, acks)
        if acks == _ALL or self._parked_at == self.files.committed:
            self.round_wanted = True
        if entry.stored and acks == 1:
            self._stored(entry)
        return None

    def _unready(self, size: int, acks: int) -> Refused | None:
        """Why nothing can be taken now."""
        if not self.active:
            return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the partition is being recovered")
        if self.office.leaving is not None:
            return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another becomes original")
        if acks == _ALL and len(self.office.isr) < self.settings.min_insync_replicas:
            return Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(self.office.isr)} replicas are in sync;"
                f" {self.settings.min_insync_replicas} have to be",
            )
        if self.assigned.pending_bytes + size > self.settings.pending_bytes_max:
            self.round_wanted = True
            return Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.assigned.pending_bytes} bytes wait for a round; at most"
                f" {self.settings.pending_bytes_max} may",
            )
        if self.assigned.waiting >= self.settings.waiting_requests_max:
            return Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{self.assigned.waiting} requests wait already",
            )
        return None

    def _again(self, token: int, acks: int, first: Appended) -> Appended | Refused | None:
        """A request that was sent before shares the fate of the first."""
        entry = self.assigned.at(first.base_offset)
        if entry is None and acks == _ALL and first.last_offset >= self.files.committed:
            self.round_wanted = True
            return Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "what was recovered is not committed yet")
        if entry is None or (acks == 1 and entry.stored and not entry.doubt):
            return first
        self.assigned.wait(entry, token, acks)
        self.round_wanted = True
        return None

    def _session(self, key: SessionKey) -> _Session:
        session = self._sessions.pop(key, None)
        if session is None:
            session = _Session()
            while len(self._sessions) >= _SESSIONS_MAX:
                oldest = next(iter(self._sessions))
                del self._sessions[oldest]
        self._sessions[key] = session
        return session

    def _owner(self, session: _Session, *, sticky: bool) -> BrokerId:
        """Who stores for this session: always the same, or whose turn it is.  [R1, G16]"""
        usable = [each for each in self.office.isr if each == self.me or self.links.up(each)]
        sticky = sticky or self.settings.distribution is Distribution.SESSION
        if sticky and session.member in usable:
            assert session.member is not None
            return session.member
        owner = usable[self._turn % len(usable)]
        self._turn += 1
        session.member = owner
        return owner

    def _hand_over(
        self, entry: Assigned, data: bytearray, now: Instant, *, eager: bool
    ) -> Refused | None:
        """Store here, or send away, or both.  [R1, R10]"""
        mine = entry.owner == self.me
        if mine or eager:
            reason = self.member.store(data, now, eager=eager)
            if reason is not None:
                return Refused(ErrorCode.KAFKA_STORAGE_ERROR, reason)
            entry.here = True
            entry.stored = mine or not self._waits_for_owners
            if mine:
                self.member.put_on_disk()
        records = bytes(data)
        if not mine:
            stream = self._streams.setdefault(entry.owner, 0)
            tells = not entry.stored
            self.out.tell(entry.owner, RelayAppend(self.epoch, stream, tells, records))
        if eager:
            # Before the close of a round that may follow at once, so over the same links.
            copy = Copied(self.epoch, records)
            for peer in self.office.isr:
                if peer not in (self.me, entry.owner) and self.links.up(peer):
                    self.out.tell(peer, copy)
        return None

    @property
    def _waits_for_owners(self) -> bool:
        """Whether it counts when an owner has stored what we have a copy of: with `flush=message`,
        and where a watch may overtake what is on its way to it."""
        settings = self.settings
        return settings.flush is Flush.MESSAGE or settings.coordination is Coordination.ZOOKEEPER

    def _assign(self, entry: Assigned, admitted: Admitted, now: Instant) -> None:
        self.next_offset = admitted.next_offset
        for noted in admitted.sequenced:
            entry.producer = noted
            self.producers.note(*noted, now // NS_PER_MS)
        self.assigned.add(entry)
        if self.assigned.pending_bytes >= self.settings.sync_max_bytes:
            self.round_wanted = True

    # What becomes of them.

    def stored(self, source: BrokerId, base: int) -> None:
        """A member has stored what it was given: acks=1 is answered.  [S004:4.4]"""
        entry = self.assigned.at(base)
        if entry is not None and entry.owner == source:
            self._stored(entry)

    def _stored(self, entry: Assigned) -> None:
        entry.stored = True
        self.assigned.closed(entry)
        if not entry.doubt:
            self._answer(entry, (1,), Appended(entry.base, entry.end - 1))

    def refused(self, source: BrokerId, base: int, stream: int) -> None:
        """A member has not: what else is on its way to it, it refuses as well.  [G16]"""
        if self._streams.get(source) == stream:
            self._streams[source] = stream + 1
        entry = self.assigned.at(base)
        if entry is not None and entry.owner == source and not entry.stored:
            self._doubt(entry)

    def lost(self, member: BrokerId) -> None:
        """A member is out of reach, or of the in-sync set: what it alone has is in doubt."""
        for entry in list(self.assigned):
            if entry.owner == member and not entry.doubt:
                self._doubt(entry)

    def _doubt(self, entry: Assigned) -> None:
        """Only a round can tell now, or our own copy."""
        self.round_wanted = True
        if entry.here:
            self.member.put_on_disk()
            entry.owner = self.me
            self._stored(entry)
            return
        entry.doubt = True
        self.assigned.closed(entry)
        if entry.session is not None:
            self._session(entry.session).doubts += 1

    def _decided(self, entry: Assigned) -> None:
        if entry.doubt:
            entry.doubt = False
            if entry.session is not None:
                session = self._session(entry.session)
                session.doubts = max(session.doubts - 1, 0)

    def planned(self, start: int, end: int, seals: list[Span], now: Instant) -> None:
        """A round has found out who has what: the rest will be sealed.  [R4]"""
        failed: list[Assigned] = []
        for entry in self.assigned.below(end):
            if any(first < entry.end and entry.base < behind for first, behind in seals):
                failed.append(entry)
            elif entry.stored or self.settings.flush is not Flush.MESSAGE:
                # But who has it may be gone before the others have: in doubt it stays.
                entry.stored = True
                self.assigned.closed(entry)
                self._answer(entry, (1,), Appended(entry.base, entry.end - 1))
        refused = Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            "the replica that had it is out of reach, and nobody else has it",
        )
        back: set[int] = set()
        for entry in failed:
            self._decided(entry)
            # Who was told that it is stored does not send it again: its successor may come.
            if entry.producer is not None and not entry.answered:
                back.add(entry.producer[0])
            self._answer(entry, (1, _ALL), refused)
            self.assigned.remove(entry)
        for producer_id in back:
            stay = self.assigned.of_producer(producer_id)
            self.producers.go_back(producer_id, stay, now // NS_PER_MS)

    def committed(self, committed: int) -> None:
        """S has moved: everything below is on every in-sync replica.  [R6]"""
        producers: set[int] = set()
        below = self.assigned.below(committed)
        if below:
            most = _ROUND_FACTOR * self.settings.sync_max_bytes
            self._round_bytes = min(2 * self._round_bytes, most)
        for entry in below:
            self._decided(entry)
            if entry.producer is not None:
                producers.add(entry.producer[0])
            self._answer_all(entry)
            self.assigned.remove(entry)
        for producer_id in producers:
            if not self.assigned.busy(producer_id):
                self.producers.settle(producer_id)

    def _answer_all(self, entry: Assigned) -> None:
        """acks=all is told only now.  [I1]"""
        self._answer(entry, (1, _ALL), Appended(entry.base, entry.end - 1))

    def give_up(self) -> None:
        """We lack something that is committed, and nobody shows it to us: who has it is to be
        original.  We do not contend again before we have it.  [R7, S004:9.10]"""
        self.files.kept.lose_log()
        self.out.extend(self.office.resign())

    def too_few(self) -> None:
        """The in-sync set is below its minimum: nobody can say when S moves on.  [S004:4.4]"""
        refused = Refused(
            ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            f"{len(self.office.isr)} replicas are in sync;"
            f" {self.settings.min_insync_replicas} have to be",
        )
        for entry in list(self.assigned):
            self._answer(entry, (_ALL,), refused)

    def _answer(self, entry: Assigned, acks: tuple[int, ...], result: Appended | Refused) -> None:
        for token in self.assigned.due(entry, acks):
            entry.answered = entry.answered or isinstance(result, Appended)
            self.out.add(Answer(token, result))

    def round_end(self) -> int:
        """E + 1 of a round that opens now: what is assigned, but no more than it can copy in its
        time."""
        size = 0
        limit = self._round_bytes
        for number, entry in enumerate(self.assigned):
            size += entry.size
            if size > limit or number >= _ROUND_REQUESTS_MAX:
                return entry.end
        return self.next_offset

    def late(self, end: int) -> None:
        """A round to here took too long: the next covers half of that, and those behind it twice as
        much each, or else who comes back is never done."""
        covered = sum(entry.size for entry in self.assigned if entry.base < end)
        self._round_bytes = max(min(covered, self._round_bytes) // 2, 1)

    def answered_below(self, end: int) -> bool:
        """Whether it is known of every request below what became of it."""
        oldest = self.assigned.oldest_open
        return oldest is None or oldest.base >= end

    def wanted(self) -> None:
        """A consumer's fetch waits at S: with what is assigned, or with what comes next.  [R9]"""
        if self.settings.sync_on_fetch:
            self._parked_at = self.files.committed
            if self.next_offset > self.files.committed:
                self.round_wanted = True

    def next_slow(self) -> Instant | None:
        """When a member has had a batch for too long without a word.  [R5]"""
        oldest = self.assigned.oldest_open
        return None if oldest is None else Instant(oldest.at + self.settings.round_timeout_ns)

    def slow(self, now: Instant) -> set[BrokerId]:
        """Members that have."""
        late = now - self.settings.round_timeout_ns
        return {entry.owner for entry in self.assigned.open_since(late)} - {self.me}

    # Orphans.

    def orphan(self, source: BrokerId, offer: OrphanOffer, now: Instant) -> None:
        """Give orphans new offsets, up to the first that is there already, or may be.  [R8]"""
        self._orphans = {
            each: at for each, at in self._orphans.items() if self.assigned.at(at) is not None
        }
        start = self.next_offset
        bases: list[int] = []
        for packed in offer.headers:
            header = BatchHeader(*BATCH_HEADER.unpack(packed))
            base = self._place_orphan(source, offer, header, start, now)
            if base is None:
                break
            if base < 0:  # as −1 − the offset
                if not bases:
                    self.out.tell(source, OrphanKnown(self.epoch, offer.number, -1 - base))
                    return
                break
            bases.append(base)
        self.round_wanted = self.round_wanted or self.active
        if bases:
            self.out.tell(source, OrphanPlace(self.epoch, offer.number, bases))
        else:
            self.out.tell(source, OrphanLater(self.epoch, offer.number))

    def _place_orphan(
        self, source: BrokerId, offer: OrphanOffer, header: BatchHeader, start: int, now: Instant
    ) -> int | None:
        """Where it stands now; −1 − the offset where it stood before; None when it has to wait."""
        base = self.next_offset
        identity = (header.base_offset, header.leader_epoch)
        committed = self.files.committed
        if (
            identity in self._orphans
            or not self.active
            or source not in self.office.isr
            # It has looked through all that is committed: what is not, we know ourselves,
            # but for what we recovered and too few are in sync to commit: the orphan may be there.
            or offer.committed != committed
            or committed < self.recovered_end
            or (header.base_offset >= committed and start > committed)
            or self._unready(header.size_bytes, 1) is not None
        ):
            return None
        noted = sequenced(header, base + 1)
        if noted is not None:
            producer_id, producer_epoch, batch = noted
            verdict = self.producers.check(
                producer_id, producer_epoch, batch.first_sequence, batch.last_sequence
            )
            if isinstance(verdict, Appended) and verdict.base_offset >= committed:
                return None
            # What was told to be stored and then sealed is remembered, and is not there.
            if isinstance(verdict, Appended) and self._is_at(header, verdict.base_offset):
                return -1 - verdict.base_offset
        end = base + 1 + header.last_offset_delta + 1
        entry = Assigned(base, end, source, None, header.size_bytes, now)
        self._orphans[identity] = base
        self._assign(entry, Admitted([], end, [] if noted is None else [noted]), now)
        return base

    def _is_at(self, header: BatchHeader, base: int) -> bool:
        """Whether the same batch of the same producer is committed there."""
        found = self.files.committed_at(base)
        return found is not None and (
            (found.producer_id, found.producer_epoch, found.base_sequence)
            == (header.producer_id, header.producer_epoch, header.base_sequence)
        )
