"""Who saw whom when: what the demo tells of discovery."""

import msgspec

VIEW = "view"
"""What a member says when its view has changed, and …"""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """… the view: since when the member wants to be in the domain, and who is there now."""

    member: str
    since: float
    """Seconds of the machine's clock."""
    time: float
    there: dict[str, int]
    """Name → incarnation of every other participant."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What came of it; seconds, None where it did not happen."""

    participants: int
    known_s: float | None
    """From the last member's start until every member knew all others."""
    restart_known_s: float | None
    """From the restart of the guest that was killed until every member knew it."""


class Sightings:
    """All that the members said of their views."""

    def __init__(self, members: list[str], guest: str) -> None:
        self._members = members
        self._guest = guest
        self._all: list[Sighting] = []
        self._restarted_at: float | None = None

    def add(self, answer: dict[str, object]) -> None:
        """Take what a member said."""
        self._all.append(msgspec.convert(answer, Sighting))

    def restarted(self, at: float) -> None:
        """Note when the guest was started again."""
        self._restarted_at = at

    @property
    def guests(self) -> dict[str, int]:
        """Member → incarnation of the guest that it saw last."""
        return {
            each.member: each.there[self._guest] for each in self._all if self._guest in each.there
        }

    def found(self) -> Found:
        """Sum up."""
        return Found(
            participants=len(self._members) + 1,
            known_s=self._known_s(),
            restart_known_s=self._restart_known_s(),
        )

    def _known_s(self) -> float | None:
        complete: dict[str, float] = {}
        for each in self._all:
            others = set(self._members) - {each.member}
            if each.member not in complete and others <= each.there.keys():
                complete[each.member] = each.time
        if len(complete) < len(self._members):
            return None
        return round(max(complete.values()) - max(each.since for each in self._all), 3)

    def _restart_known_s(self) -> float | None:
        began = self._restarted_at
        if began is None:
            return None
        seen: dict[str, float] = {}
        before = {
            each.member: each.there[self._guest]
            for each in self._all
            if self._guest in each.there and each.time < began
        }
        for each in self._all:
            inc = each.there.get(self._guest, 0)
            if each.time >= began and inc > before.get(each.member, 0):
                seen.setdefault(each.member, each.time)
        if len(seen) < len(self._members):
            return None
        return round(max(seen.values()) - began, 3)
