"""Which view may follow: the rule of the view service.  [S003:dec.1]

A view contains a majority of every view since the last that a majority of its members has
installed: so somebody in it knows what was handed out.  An id goes to another incarnation only
after all who stay have installed a view without the old one.  Who is alive, and what each has
installed, is the view service's knowledge; nobody else may change a view.
"""

from collections.abc import Mapping, Sequence

import msgspec

from orderwire.kernel import ProcessId
from orderwire.ordering.total.pdu import ChangeView, Member


class RelayAt(msgspec.Struct, frozen=True):
    """A relay, and which incarnation of it."""

    address: str
    incarnation: int


class Entrant(msgspec.Struct, frozen=True):
    """Who lives, in a view or not yet."""

    member: Member
    installed: int = -1
    """The last view that it has installed."""


class StoredView(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The newest view, and what the rule needs of those before."""

    number: int = 0
    members: tuple[Member, ...] = ()
    relay: RelayAt | None = None
    by: int = -1
    """Who proposed it."""
    former: tuple[ChangeView, ...] = ()
    """The views before it since the last that a majority of its members has installed, that one
    included, oldest first."""
    retired: dict[ProcessId, int] = {}
    """Id that is free → the first view without it."""

    def since(self) -> tuple[ChangeView, ...]:
        """Return all views that the next one needs a majority of, this one too."""
        return (*self.former, ChangeView(self.number, self.members)) if self.members else ()


def next_view(
    view: StoredView,
    alive: Mapping[ProcessId, Entrant],
    relays: Sequence[RelayAt],
    me: ProcessId,
    *,
    least: int = 1,
) -> StoredView | None:
    """Return the view that should follow; None when none should, or none may.

    `relays` is in the order of their coming: the first that is alive is used until it is gone.
    `least`: how many must be there before the first view.
    """
    relay = view.relay if view.relay in relays else relays[0] if relays else None
    if relay is None:
        return None
    old = _needed(view.since(), alive)
    if not any(_is_alive(member, alive) for each in old for member in each.members):
        # Nobody is left who was in it: all that it knew is gone, and another group begins.
        if len(alive) < least:
            return None
        first = tuple(sorted(entrant.member for entrant in alive.values()))
        return StoredView(number=view.number + 1, members=first, relay=relay, by=me)
    current = {member.process: member for member in view.members}
    stay = [member for member in view.members if _is_alive(member, alive)]
    settled = min((alive[member.process].installed for member in stay), default=-1)
    retired = dict(view.retired)
    members = list(stay)
    for process, entrant in sorted(alive.items()):
        if process not in current and retired.get(process, -1) <= settled:
            members.append(entrant.member)
            retired.pop(process, None)
    members.sort()
    chosen = tuple(members)
    if chosen == view.members and relay == view.relay:
        return None
    for each in old:
        kept = len(set(each.members) & set(chosen))
        if 2 * kept <= len(each.members):
            return None
    for process in current:
        if current[process] not in chosen:
            retired[process] = view.number + 1
    return StoredView(
        number=view.number + 1, members=chosen, relay=relay, by=me, former=old, retired=retired
    )


def _needed(
    views: tuple[ChangeView, ...], alive: Mapping[ProcessId, Entrant]
) -> tuple[ChangeView, ...]:
    """Return the views since the last that a majority of its members has installed."""
    for index in reversed(range(len(views))):
        each = views[index]
        installed = sum(
            _is_alive(member, alive) and alive[member.process].installed >= each.number
            for member in each.members
        )
        if 2 * installed > len(each.members):
            return views[index:]
    return views


def _is_alive(member: Member, alive: Mapping[ProcessId, Entrant]) -> bool:
    entrant = alive.get(member.process)
    return entrant is not None and entrant.member == member
