"""What of a window of PDUs lies behind the failure line, with the losses that the paper counts.

L PDUs stand on the channel, each from a drawn source to d drawn destinations; each destination
misses it with probability f, and then all stop.  Nothing was acknowledged before: the paper's
formulas, by experiment.  [S003:eq.3] [S003:eq.5]
"""

import msgspec

from orderwire.kernel.chance import stream


class WindowShares(msgspec.Struct, frozen=True, kw_only=True):
    """Means over the windows, as shares of L."""

    behind_cut: float
    """PDUs at an entity that go to it and lie behind the greatest consistent cut: U/L."""
    behind_line: float
    """The same with a line for each source, as ST has it."""
    resent_cut: float
    """PDUs behind that cut at any destination: what go-back broadcasts again."""
    lost: float
    """PDUs that a destination misses: what is broadcast again selectively."""


def measure_windows(
    seed: int, *, members: int, destinations: int, loss: float, pdus: int, windows: int
) -> WindowShares:
    """Draw `windows` windows of `pdus` PDUs each."""
    chance = stream(seed, "windows")
    everybody = range(members)
    behind_cut = behind_line = resent = lost = 0
    for _ in range(windows):
        cut = [pdus] * members
        failed = [False] * members
        for place in range(pdus):
            source = chance.randrange(members)
            chosen = chance.sample(everybody, destinations)
            missed = sum(chance.random() < loss for _ in chosen)
            lost += missed > 0
            # The cut: what a destination lacks, or has behind it, all have behind it.
            if missed or any(cut[each] <= place for each in chosen):
                for each in chosen:
                    cut[each] = min(cut[each], place)
                behind_cut += destinations
                resent += 1
            # The line: from a source's first PDU on that anybody lacks.
            failed[source] = failed[source] or missed > 0
            if failed[source]:
                behind_line += destinations
    total = pdus * windows
    return WindowShares(
        behind_cut=behind_cut / total / members,
        behind_line=behind_line / total / members,
        resent_cut=resent / total,
        lost=lost / total,
    )
