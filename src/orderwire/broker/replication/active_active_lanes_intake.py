"""How requests come into a replica's lane, or into the lane of another.  [S004:6.2]"""

from typing import TYPE_CHECKING

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.flush import Flush
from orderwire.broker.log import Admitted, Appended, Refused
from orderwire.broker.log.admission import admit
from orderwire.broker.log.producers import ProducerTable
from orderwire.broker.replication.effects import Answer, Effects, Tell
from orderwire.broker.replication.lane_messages import (
    UNDECIDED,
    LaneBind,
    LaneBound,
    LaneForward,
    LaneForwarded,
)
from orderwire.broker.replication.lane_producers import Request
from orderwire.broker.replication.lane_waiting import Waiting
from orderwire.broker.replication.view import BrokerId
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import Instant

if TYPE_CHECKING:
    from orderwire.broker.replication.active_active_lanes import ActiveActiveLanes

_ANY = ProducerTable()
"""Knows no producer: sequences are judged at the cut."""


class LaneIntake:
    """The part of a replica that takes requests."""

    def __init__(self, replica: "ActiveActiveLanes") -> None:
        self._replica = replica

    def produce(self, token: int, records: Buffer, acks: int, now: Instant) -> Effects:
        """Append to our lane, or hand on what belongs to another."""
        admitted = self._admitted(records, acks)
        if isinstance(admitted, Refused | Appended):
            return [Answer(token, admitted)]
        request = Request(None, token, acks, admitted, b"")
        if not admitted.sequenced:
            return self._append(request, records, now)
        producer_id, epoch, batch = admitted.sequenced[0]
        found = self._replica.log.producers.check(
            producer_id, epoch, batch.first_sequence, batch.last_sequence
        )
        if isinstance(found, Appended) and found.last_offset < self._replica.high_watermark:
            return [Answer(token, found)]
        if isinstance(found, Refused) and found.error is ErrorCode.INVALID_PRODUCER_EPOCH:
            return [Answer(token, found)]
        return self._route(producer_id, batch.first_sequence, request, records, now)

    def _admitted(self, records: Buffer, acks: int) -> Admitted | Appended | Refused:
        if not self._replica.is_open:
            return Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this replica is not in sync")
        settings = self._replica.settings
        in_sync = len(self._replica.isr)
        if acks == -1 and in_sync < settings.min_insync_replicas:
            return Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{in_sync} replicas are in sync, {settings.min_insync_replicas} are needed",
            )
        pending = self._replica.pending_bytes
        waiting = len(self._replica.waiting) + self._replica.producers.waiting
        if (
            pending + len(records) > settings.pending_bytes_max
            or waiting >= settings.waiting_requests_max
        ):
            return Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{pending} bytes and {waiting} requests wait for their order already",
            )
        view = records if not isinstance(records, bytes) else memoryview(records)
        return admit(view, 0, self._replica.log.config, _ANY, internal=False)

    def _route(
        self, producer_id: int, sequence: int, request: Request, records: Buffer, now: Instant
    ) -> Effects:
        """Find the lane of an idempotent producer."""
        producers = self._replica.producers
        if producer_id in producers.asked:  # behind what waits already
            request.records = bytes(records)
            producers.asked[producer_id].append(request)
            return []
        owner = producers.bound.get(producer_id)
        if self._replica.original is not None:
            owner = producers.decide(producer_id, self._replica.me, self._replica.isr)
        elif owner is None and sequence == 0:
            producers.bind(producer_id, self._replica.me)
            owner = self._replica.me
        elif owner is None or owner not in self._replica.isr:
            return self._ask(producer_id, request, records)
        if owner == self._replica.me:
            return self._append(request, records, now)
        return self._hand_on(BrokerId(owner), request, records)

    def _ask(self, producer_id: int, request: Request, records: Buffer) -> Effects:
        original = self._replica.office.original
        if original is None or original not in self._replica.links:
            refused = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the original is not there to ask")
            return [Answer(request.token, refused)]
        request.records = bytes(records)
        self._replica.producers.asked[producer_id] = [request]
        return [Tell(original, LaneBind(self._replica.known_epoch, producer_id))]

    def _hand_on(self, owner: BrokerId, request: Request, records: Buffer) -> Effects:
        if owner not in self._replica.links:
            refused = Refused(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"the producer's lane is {owner}'s: no link"
            )
            return [Answer(request.token, refused)]
        number = self._replica.producers.forward(request.token, owner)
        return [Tell(owner, LaneForward(number, request.acks, bytes(records)))]

    def _append(self, request: Request, records: Buffer, now: Instant) -> Effects:
        """Take a request's batches into our lane, in one write."""
        admitted = request.admitted
        position = self._replica.store.lane.append(records)
        if self._replica.settings.flush is Flush.MESSAGE:
            self._replica.store.lane.sync()
        self._replica.waiting.add(
            Waiting(
                position,
                position + len(records),
                request.asker,
                request.token,
                request.acks == -1 or bool(admitted.sequenced),
                admitted.next_offset,
            )
        )
        return self._replica.taken(len(records), now)

    def refuse_asked(self) -> Effects:
        """The original that was asked will not answer any more."""
        effects: Effects = []
        refused = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "the original is another")
        for requests in self._replica.producers.asked.values():
            effects += [Answer(each.token, refused) for each in requests if each.token != -1]
        self._replica.producers.asked.clear()
        return effects

    def bind(self, source: BrokerId, message: LaneBind, now: Instant) -> Effects:
        """As the original, say which lane a producer belongs to."""
        original = self._replica.original
        owner = UNDECIDED
        if original is not None and message.epoch == original.epoch:
            owner = self._replica.producers.decide(message.producer_id, source, self._replica.isr)
        return [Tell(source, LaneBound(message.epoch, message.producer_id, owner))]

    def bound(self, source: BrokerId, message: LaneBound, now: Instant) -> Effects:
        """Let what waited for the original's answer go where it says."""
        requests = self._replica.producers.asked.pop(message.producer_id, [])
        decided = message.broker != UNDECIDED
        if decided:
            self._replica.producers.bind(message.producer_id, message.broker)
        effects: Effects = []
        for request in requests:
            if request.token == -1:
                continue
            if decided and message.broker != self._replica.me:
                effects += self._hand_on(BrokerId(message.broker), request, request.records)
            elif decided and self._replica.is_open:
                effects += self._append(request, request.records, now)
            else:
                refused = Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "not here, or not yet")
                effects.append(Answer(request.token, refused))
        return effects

    def forward(self, source: BrokerId, message: LaneForward, now: Instant) -> Effects:
        """Take what another replica was sent for our lane."""
        admitted = self._admitted(message.records, message.acks)
        if isinstance(admitted, Refused | Appended):
            return [Tell(source, LaneForwarded(message.number, admitted))]
        request = Request(source, message.number, message.acks, admitted, b"")
        if admitted.sequenced:
            self._replica.producers.bind(admitted.sequenced[0][0], self._replica.me)
        return self._append(request, message.records, now)

    def forwarded(self, source: BrokerId, message: LaneForwarded, now: Instant) -> Effects:
        """Answer what was handed on."""
        found = self._replica.producers.forwarded.pop(message.number, None)
        if found is None or found[1] != source:
            return []
        return [Answer(found[0], message.result)]

    def disconnected(self, broker: BrokerId) -> Effects:
        """What was handed on over this link is not known to be there."""
        replica = self._replica
        replica.waiting.forget_asker(broker)
        effects: Effects = []
        refused = Refused(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, f"the link to {broker} broke")
        for number, (token, to) in list(replica.producers.forwarded.items()):
            if to == broker:
                del replica.producers.forwarded[number]
                effects.append(Answer(token, refused))
        return effects
