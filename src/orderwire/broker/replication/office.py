"""Who is original, and who is in sync, as one replica knows it: election, fencing, changes.

What ZooKeeper says comes in as views; what we want of it goes out as effects.  Every protocol of a
replicated partition uses it.  [R2, R5, R7, S004:4.6]
"""

from collections.abc import Callable

import msgspec

from orderwire.broker.log import PartitionLog
from orderwire.broker.replication.effects import (
    ChangeIsr,
    Effects,
    Elect,
    Lose,
    LostRange,
    Note,
    Resign,
)
from orderwire.broker.replication.kept import Kept
from orderwire.broker.replication.view import BrokerId, PartitionView
from orderwire.kernel import NS_PER_MS, Instant

PRECEDENCE_NS = 250 * NS_PER_MS
"""So long the others leave an election to the preferred original, where they reach it."""


class Leaving(msgspec.Struct, frozen=True):
    """An original gives its office to another once nothing of its own is open."""

    to: BrokerId
    until: Instant
    """Then it stays."""


class Office:
    """One replica's view of a partition's offices."""

    def __init__(
        self, me: BrokerId, retry_ns: int, kept: Kept, reaches: Callable[[BrokerId], bool]
    ) -> None:
        self.me = me
        self._reaches = reaches
        self._kept = kept
        self.view: PartitionView | None = None
        """The newest that we were told."""
        self.epoch: int | None = None
        """We are original of this epoch; None while we are not."""
        self.retry_ns = retry_ns
        """After so long a change is asked for again."""
        self._electing: int | None = None
        self._changing: ChangeIsr | None = None
        self._asked_at: Instant = Instant(0)
        self._wait_until: Instant | None = None
        """Until then the preferred original goes first."""
        self._waited = -1
        """In this epoch it has had its time, or has just gone."""
        self._losing: tuple[Lose, Instant] | None = None
        """A loss that we want written down, and when we asked."""
        self.unclean = False
        """As original: we were put in the place of an in-sync set that is gone, so that what was
        committed behind our S is lost.  [S004:4.8]"""
        self.leaving: Leaving | None = None
        """To whom we give our epoch up."""

    @property
    def isr(self) -> tuple[BrokerId, ...]:
        """The in-sync set; empty while nobody has told us."""
        return self.view.isr if self.view is not None else ()

    @property
    def in_sync(self) -> bool:
        """Whether we are in the in-sync set, as far as we know."""
        return self.view is not None and self.me in self.view.isr

    @property
    def original(self) -> BrokerId | None:
        """Who is, as far as we know."""
        return self.view.original if self.view is not None else None

    @property
    def changing(self) -> bool:
        """Whether a change of the in-sync set may still come true."""
        return self._changing is not None

    def viewed(self, view: PartitionView, now: Instant) -> Effects | None:
        """Take a view; None when it is older than what we know.  `epoch` says what we are now.

        A member that has lost its disk does not contend: what is committed would be gone with it.
        Whoever lets one in again has seen that it has everything; and before the first election
        there is nothing to have.  Nor is there when it was put in the place of those that had.
        [R7, S004:4.8, S004:9.10]  Raises StorageError.
        """
        old = self.view
        if old is not None and _age(view) < _age(old):
            return None
        self.view = view
        effects: Effects = []
        changing = self._changing
        if changing is not None and (
            # A refusal shows as another version, or as another original: a view that was read
            # before the request came through says neither.
            view.version != changing.version
            or view.epoch != changing.epoch
            or view.original != self.me
        ):
            self._changing = None
        if self.epoch is not None and (view.epoch != self.epoch or view.original != self.me):
            self.epoch = self.leaving = None
        electing = self._electing
        if view.original == self.me and self.epoch is None:
            if electing is not None and view.epoch == electing + 1:
                self.epoch, self.unclean = view.epoch, view.unclean
            else:  # of a session or a process that is gone
                effects.append(Resign(view.epoch))
        if view.epoch < 0 or self.me not in view.isr or view.unclean:
            self._kept.settle()
        if old is not None and old.original is not None and old.original == view.preferred:
            self._waited = max(self._waited, old.epoch)
        self._electing = None
        if not self._may_contend(view):
            self._wait_until = None
        elif not self._gives_precedence(view, now):
            effects += self._contend(view)
        return effects

    def _may_contend(self, view: PartitionView) -> bool:
        return view.original is None and self.me in view.isr and not self._kept.is_blank

    def _contend(self, view: PartitionView) -> Effects:
        self._wait_until = None
        self._electing = view.epoch
        return [Elect(view.epoch)]

    def _gives_precedence(self, view: PartitionView, now: Instant) -> bool:
        """Whether another should be elected who can be: so originals go back to where they should
        be when somebody gives one up, or ends.  It costs at most this time."""
        preferred = view.preferred
        if (
            preferred is None
            or preferred == self.me
            or preferred not in view.isr
            or self._waited >= view.epoch
            or not self._reaches(preferred)
        ):
            return False
        if self._wait_until is None:
            self._wait_until = Instant(now + PRECEDENCE_NS)
        return now < self._wait_until

    # Losses.  [S004:4.8]

    def floor(self, high_watermark: int, log: PartitionLog) -> int | None:
        """S + 1 after losses that are news to us; None: it stays.  Raises StorageError.

        A log that has batches of an epoch follows an original of then, whatever we have noted: a
        power failure may have taken the note.
        """
        losses = () if self.view is None else self.view.losses
        kept = self._kept
        heard = max(kept.lost_epoch, kept.moved_epoch, log.epochs.latest)
        new = [loss for loss in losses if loss.epoch > heard]
        if not new:
            if losses:
                kept.lost_epoch = max(kept.lost_epoch, losses[-1].epoch)
            return None
        low = min(loss.start for loss in new)
        kept.lose(new[-1].epoch, min(kept.high_watermark, low, high_watermark))
        return low if low < high_watermark else None

    @property
    def loss_due(self) -> Instant | None:
        """When a loss is to be told again: the request may be lost."""
        return None if self._losing is None else Instant(self._losing[1] + self.retry_ns)

    def tell_loss(self, start: int, end: int, now: Instant) -> tuple[bool, Effects]:
        """As original, have it written that S goes back to `start`; whether it is, and what to ask
        for, or to note."""
        assert self.epoch is not None
        for loss in () if self.view is None else self.view.losses:
            if loss.epoch == self.epoch and loss.start <= start and loss.end >= end:
                self._losing = None
                return True, [Note(LostRange(loss.epoch, loss.start, loss.end, loss.unclean))]
        wish = Lose(self.epoch, start, end, self.unclean)
        asked = self._losing
        if asked is not None and asked[0] == wish and now < asked[1] + self.retry_ns:
            return False, []
        self._losing = wish, now
        return False, [wish]

    def lose(self) -> None:
        """The session has ended, or may have: we are nothing any more."""
        self.epoch = self._electing = self._changing = self._wait_until = self.leaving = None
        self._losing = None

    def leave(self, to: BrokerId, now: Instant) -> bool:
        """As original, begin to give the epoch up to a member that is reached; False: it cannot be
        now.  Who asks ends it by `left`."""
        if self.epoch is None or to == self.me or to not in self.isr or not self._reaches(to):
            return False
        self.leaving = Leaving(to, Instant(now + self.retry_ns // 2))
        return True

    def leaves(self, now: Instant) -> bool:
        """Whether we still want to go, and somebody is there to take over."""
        leaving = self.leaving
        if leaving is None:
            return False
        if now >= leaving.until or leaving.to not in self.isr or not self._reaches(leaving.to):
            self.leaving = None
        return self.leaving is not None

    def resign(self) -> Effects:
        """Give up being original."""
        epoch = self.epoch
        if epoch is None:
            return []
        self.lose()
        return [Resign(epoch)]

    def change(self, isr: tuple[BrokerId, ...], now: Instant) -> Effects:
        """Ask for another in-sync set; nothing while another request is under way."""
        view = self.view
        if self.epoch is None or view is None or self._changing is not None or isr == view.isr:
            return []
        assert self.me in isr, "an original stays in the in-sync set"
        self._changing = ChangeIsr(isr, view.version, self.epoch)
        self._asked_at = now
        return [self._changing]

    def wake(self, now: Instant) -> Effects:
        """Contend, when who is preferred has had its time; ask again for what nobody has answered:
        the request may be lost."""
        view = self.view
        if self._wait_until is not None and now >= self._wait_until and view is not None:
            self._wait_until = None
            self._waited = max(self._waited, view.epoch)
            if self._may_contend(view):
                return self._contend(view)
        changing = self._changing
        if changing is None or now < self._asked_at + self.retry_ns:
            return []
        self._asked_at = now
        return [changing]

    def next_deadline(self) -> Instant | None:
        """When `wake` is next due."""
        due = [self._wait_until, None if self.leaving is None else self.leaving.until]
        if self._changing is not None:
            due.append(Instant(self._asked_at + self.retry_ns))
        return min((each for each in due if each is not None), default=None)


def _age(view: PartitionView) -> tuple[int, int, bool]:
    """Within an epoch an original only goes."""
    return view.epoch, view.version, view.original is None
