"""What an active-standby original that may have lost something does first.  [S004:4.8]

Its log is what counts, so it asks the whole in-sync set what they have.  Who has more is to be
elected instead.  When nobody has, and something that was committed is missing, it has written down
that S goes back, before anybody follows.
"""

from orderwire.broker.flush import Flush
from orderwire.broker.replication.active_standby_following import Own
from orderwire.broker.replication.active_standby_messages import Contend, Position
from orderwire.broker.replication.effects import Effects, Tell
from orderwire.broker.replication.office import Office
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.kernel import Instant

_PATIENCE = 4
"""Without `flush` whoever does not answer in so many times `round_timeout_ns` is left out."""


class Recovery:
    """One term's, until it is over."""

    def __init__(self, epoch: int, own: Own, office: Office, timeout_ns: int, now: Instant) -> None:
        self.epoch = epoch
        self.positions: dict[BrokerId, Position] = {}
        """Whoever has answered, in sync or not."""
        self._own = own
        self._office = office
        self._timeout_ns = timeout_ns
        self._until = Instant(now + _PATIENCE * timeout_ns)
        self._losing = False

    @staticmethod
    def is_needed(own: Own, view: PartitionView) -> bool:
        """Whether a replica that is elected may lack what is committed."""
        known = max(view.sync_start, own.kept.high_watermark)
        return view.epoch > 0 and (own.doubtful or known > own.log.end_offset)

    def go_on(self, now: Instant) -> tuple[bool, Effects]:
        """Whether it is over, and what to do; the office may be given up then."""
        own, office = self._own, self._office
        members = [each for each in office.isr if each != office.me]
        found = {each: self.positions[each] for each in members if each in self.positions}
        history, end = own.log.epochs.entries, own.log.end_offset
        mine = Position(self.epoch, 0, own.log.start_offset, end, 0, list(history)).latest
        best = max(found, key=lambda each: found[each].latest, default=None)
        if best is not None and found[best].latest > mine:
            return True, [Tell(best, Contend(self.epoch)), *office.resign()]
        view = office.view
        assert view is not None
        known = [own.kept.high_watermark, view.sync_start]
        highest = max(*known, *(each.known for each in found.values()), 0)
        if len(found) < len(members):
            if own.flush is not Flush.NONE or now < self._until or office.changing:
                return False, []
            self._until = Instant(now + self._timeout_ns)
            return False, office.change(tuple(sorted({office.me, *found})), now)
        if office.unclean:  # our log behind S may be what others never had
            end = own.high_watermark
        doubtful = own.doubtful and all(each.doubtful for each in found.values())
        if highest <= end and not doubtful and not office.unclean:
            return True, []
        told, effects = office.tell_loss(end, highest, now)
        self._losing = not told
        return told, effects

    def next_deadline(self) -> Instant | None:
        """When to go on at the latest."""
        if self._losing:
            return self._office.loss_due
        if self._office.changing:
            return None
        return self._until if self._own.flush is Flush.NONE else None
