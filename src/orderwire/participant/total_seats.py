"""Which member of a group with one order is which participant.

Members have numbers of their own, which views give and take.  Every member greets each other before
anything else, in the order of all, so that who is handed a message knows whose it is.
"""

from collections.abc import Iterable
from typing import NamedTuple

from orderwire.kernel import ProcessId, members_of
from orderwire.ordering.total.pdu import Member
from orderwire.participant.total_payload import Greeting


class Seat(NamedTuple):
    """A member and the participant that it is."""

    member: Member
    participant: ProcessId
    name: str


class Seats:
    """The seats of a group, as far as its messages have been read."""

    def __init__(self) -> None:
        self._members: dict[ProcessId, Member] = {}
        """The view of what is read now."""
        self._seats: dict[ProcessId, Seat] = {}
        """By the member's number."""
        self._greeted: set[Member] = set()
        """Members that our greeting will come to before all that we send from now on."""
        self._of: dict[ProcessId, Seat] = {}
        """By participant: its newest seat, if we have greeted it."""
        self._masks: dict[int, int] = {}
        self._masks_view = -1

    def install(self, members: Iterable[Member]) -> list[Seat]:
        """Go on to the next view; return who has left."""
        self._members = {member.process: member for member in members}
        left = [
            seat
            for process, seat in sorted(self._seats.items())
            if self._members.get(process) != seat.member
        ]
        for seat in left:
            del self._seats[seat.member.process]
            if self._of.get(seat.participant) == seat:
                del self._of[seat.participant]
        self._greeted &= set(self._members.values())
        self._masks.clear()
        return left

    @property
    def strangers(self) -> list[Member]:
        """Return the members of this view that we have not greeted."""
        return [m for m in self._members.values() if m not in self._greeted]

    def greeted(self, members: Iterable[Member]) -> None:
        """Our greeting to these is under way."""
        self._greeted.update(members)
        for member in members:
            seat = self._seats.get(member.process)
            if seat is not None and seat.member == member:
                self._of[seat.participant] = seat
        self._masks.clear()

    def greet(self, process: ProcessId, greeting: Greeting) -> Seat | None:
        """A member has said who it is; return its seat, if that is new."""
        member = self._members.get(process)
        before = self._seats.get(process)
        if member is None or (before is not None and before.member == member):
            return None
        seat = Seat(member, greeting.participant, greeting.name)
        self._seats[process] = seat
        if member in self._greeted:
            self._of[seat.participant] = seat
        self._masks.clear()
        return seat

    def at(self, process: ProcessId) -> Seat | None:
        """Return the seat of this member."""
        return self._seats.get(process)

    @property
    def names(self) -> list[str]:
        """Names of the participants that have seats, ascending."""
        return sorted(seat.name for seat in self._seats.values())

    @property
    def participants(self) -> frozenset[ProcessId]:
        """Return the participants that can be written to."""
        return frozenset(self._of)

    def mask(self, participants: int, view: int, members: Iterable[Member]) -> int:
        """Return the members that these participants are, both as masks.

        `view` is the number of the view that is installed, with these members: it may be ahead of
        the one that is read, and who is in it no more is left out.
        """
        if view != self._masks_view:
            self._masks.clear()
            self._masks_view = view
        mask = self._masks.get(participants)
        if mask is None:
            there = set(members)
            mask = 0
            for each in members_of(participants):
                seat = self._of.get(each)
                if seat is not None and seat.member in there:
                    mask |= 1 << seat.member.process
            self._masks[participants] = mask
        return mask
