"""The parameters of one point of S003's evaluation, flat, and the point itself.  [S003:sec.4.3]

A point comes from the formulas, from windows that are drawn and looked at once, or from a run of
the protocol over the simulated channel.  PDUs are told as shares of the messages, times in slots:
what one PDU takes on the channel.

What is sent again is told in three units: `broadcast`, PDUs that the group puts on the channel;
`entity`, those that one member is sent and that are for it; `resent`, as the paper compares them,
selective repetition by the first and go-back by the second.
"""

import msgspec

from orderwire.ordering.total.catalog import ALGORITHMS, algorithm
from orderwire.ordering.total.settings import Delivery
from orderwire.sim.selective_total_formulas import repeated_share, sorted_share
from orderwire.sim.selective_total_window import measure_windows
from orderwire.sim.total_order_costs import Load, measure

PHASES = ("formulas", "windows", "run")
MEMBERS_MAX = 100
GO_BACK = "st-go-back"
"""Who sends again all that is behind the failure line; the others send what somebody misses."""


class TotalOrderConfig(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="total-order"
):
    """One point, without its seed."""

    algorithm: str
    """A protocol of the catalog; formulas and windows tell ST from go-back only."""
    phase: str = "run"
    """`formulas`; `windows`: losses in drawn windows, and where the line then lies; `run`: the
    protocol itself, every promise judged."""
    members: int = 10
    """n."""
    share: float = 0.5
    """d/n: a message's destinations, of all members; at least one."""
    loss: float = 0.01
    """f: with what probability a destination misses a message (and in runs a NULL)."""
    spares_control: bool = True
    """Of a run: whether ST's control PDUs are never lost, as in its specification's measurements;
    else every PDU of every protocol may be."""
    control_slots: int = 200
    """Of a run: after how long a control PDU is repeated, and asked again for what is missing."""
    corrected: bool = True
    """Of formulas: whether P_l has its factor d/n once too few, as it must, or as printed."""
    line: str = "source"
    """Of windows: `source`: a line for each source, as ST has it; `cut`: the greatest consistent
    cut, as Figure 6 draws it and formulas count it.  Go-back has the cut."""
    windows: int = 2_000
    """Of n PDUs each, a seed."""
    messages: int = 400
    """Of a run."""
    gap_slots: float = 0.0
    """Of a run: mean time between two messages; 0: all are asked for at once."""
    ack_slots: int = 10
    """T_ack."""
    delivery: str = Delivery.PREACK.value
    window: int = 8

    @property
    def destinations(self) -> int:
        """d."""
        return max(1, round(self.share * self.members))

    def check(self) -> None:
        """Raise ValueError for what makes no sense."""
        deliveries = tuple(each.value for each in Delivery)
        known: list[tuple[str, str, tuple[str, ...]]] = [
            ("protocol", self.algorithm, tuple(ALGORITHMS)),
            ("phase", self.phase, PHASES),
            ("line", self.line, ("source", "cut")),
            ("delivery", self.delivery, deliveries),
        ]
        for what, value, values in known:
            if value not in values:
                raise ValueError(f"{what} {value!r}; there are {', '.join(values)}")
        if not 2 <= self.members <= MEMBERS_MAX:
            raise ValueError(f"{self.members} members; expected 2 … {MEMBERS_MAX}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share {self.share}; expected more than 0, at most 1")
        if not 0 <= self.loss < 1:
            raise ValueError(f"loss {self.loss}; expected at least 0, less than 1")
        if self.control_slots < 1:
            raise ValueError(f"control_slots {self.control_slots}; expected at least 1")
        if self.windows < 1 or self.messages < 1 or self.gap_slots < 0:
            raise ValueError(
                f"{self.windows} windows, {self.messages} messages, a gap of {self.gap_slots};"
                " expected at least one of each, and no gap below 0"
            )

    @property
    def cost(self) -> float:
        """Roughly how long it takes, in microseconds."""
        if self.phase == "formulas":
            return 1_000.0
        if self.phase == "windows":
            return self.windows * self.members * (2.0 + 0.5 * self.destinations)
        return self.messages * self.members * 120.0

    def measure(self, seed: int) -> dict[str, float]:
        """Return the point's measures by name."""
        if self.phase == "formulas":
            return self._formulas()
        if self.phase == "windows":
            return self._windows(seed)
        return self._run(seed)

    def _formulas(self) -> dict[str, float]:
        """[S003:eq.1] [S003:eq.2] [S003:eq.3] [S003:eq.4] [S003:eq.5]"""
        n, d = self.members, self.destinations
        behind = sorted_share(n, d, self.loss, window=n, corrected=self.corrected)
        again = repeated_share(n, d, self.loss, window=n, corrected=self.corrected)
        # U counts at one entity what is for it, R what the group broadcasts.
        broadcast = behind / self._part if self.algorithm == GO_BACK else again
        return {"sorted": behind, **self._sent_again(broadcast)}

    @property
    def _part(self) -> float:
        """What of all messages goes to a member: d/n, with whole destinations."""
        return self.destinations / self.members

    def _sent_again(self, broadcast: float) -> dict[str, float]:
        """Tell it in every unit: each PDU is for d of n members."""
        entity = broadcast * self._part
        resent = entity if self.algorithm == GO_BACK else broadcast
        return {"broadcast": broadcast, "entity": entity, "resent": resent}

    def _windows(self, seed: int) -> dict[str, float]:
        shares = measure_windows(
            seed,
            members=self.members,
            destinations=self.destinations,
            loss=self.loss,
            pdus=self.members,
            windows=self.windows,
        )
        goes_back = self.algorithm == GO_BACK
        is_cut = goes_back or self.line == "cut"
        return {
            "sorted": shares.behind_cut if is_cut else shares.behind_line,
            **self._sent_again(shares.resent_cut if goes_back else shares.lost),
        }

    def _run(self, seed: int) -> dict[str, float]:
        row = measure(
            algorithm(self.algorithm),
            Load(
                members=self.members,
                destinations=self.destinations,
                messages=self.messages,
                gap_slots=self.gap_slots or None,
                loss=self.loss,
                spares_control=self.spares_control,
                control_slots=self.control_slots,
                ack_slots=self.ack_slots,
                delivery=Delivery(self.delivery),
                window=self.window,
                seed=seed,
            ),
        )
        found = {
            "transmissions": row.transmissions,
            "latency_slots": row.latency_slots,
            "slots": row.slots,
            "recoveries": float(row.recoveries),
            "sorted": row.behind,
            "mending": row.mending,
            **self._sent_again(row.repeated),
        }
        if row.recoveries:
            found["control"] = row.control
            found["pause_slots"] = row.pause_slots
        return found
