"""S1: audit by recorded vector clocks, without a common clock and without slices.

Each send may carry, outside the wire budget, how many sends of each process lay in its past.  If at
every process the clocks of what it delivered, with its own count, give the clock of each of its
sends, then by induction along the causal order all clocks are right.
"""

import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import I64, Bools, Columns
from orderwire.verify.kernels.matching import Matches
from orderwire.verify.kernels.replay import steps_of
from orderwire.verify.kernels.violations import no_violations, violations


def recorded_clocks(table: pa.Table, columns: Columns, matches: Matches) -> tuple[I64, Bools]:
    """Return the recorded clock of each send of `matches`, and which sends have a whole one."""
    sends = matches.send_rows
    wanted = pa.table(
        {
            "process": columns.process[sends],
            "position": columns.position[sends],
            "at": np.arange(len(sends)),
        }
    )
    clocks = table.select(["process", "position", "vector_clock"])
    clocks = clocks.filter(pa.compute.is_valid(clocks.column("vector_clock"))).combine_chunks()
    place = {
        key: at
        for at, key in enumerate(
            zip(
                wanted.column("process").to_pylist(),
                wanted.column("position").to_pylist(),
                strict=True,
            )
        )
    }
    recorded = np.zeros((len(sends), matches.members), np.int64)
    whole = np.zeros(len(sends), np.bool_)
    keys = zip(
        clocks.column("process").to_pylist(), clocks.column("position").to_pylist(), strict=True
    )
    at = np.array([place.get(key, -1) for key in keys], np.int64)
    lists = clocks.column("vector_clock")
    sizes = pa.compute.list_value_length(lists).to_numpy()
    good = np.flatnonzero((at >= 0) & (sizes == matches.members))
    flat = pa.compute.list_flatten(lists.take(pa.array(good))).to_numpy()
    recorded[at[good]] = flat.reshape(len(good), matches.members)
    whole[at[good]] = True
    return recorded, whole


def audit_clocks(
    run_id: str, columns: Columns, matches: Matches, recorded: I64, whole: Bools
) -> pa.Table:
    """Return the sends whose recorded clock does not follow from what their process saw.

    Kinds: `forged` (the clock differs), `absent` (this send has no clock though others have).
    """
    if not whole.any():
        return no_violations()
    steps = steps_of(columns, matches)
    inclusive = recorded.copy()
    own = columns.process[matches.send_rows]
    inclusive[np.arange(len(own)), own] += 1
    bad: list[I64] = []
    for process in np.unique(steps.process).tolist():
        mine = np.flatnonzero(steps.process == process)
        send, is_send = steps.send[mine], steps.is_send[mine]
        # A send adds itself to what comes after it, exactly as a delivery adds what it carried.
        told = np.maximum.accumulate(inclusive[send], axis=0)
        before = np.zeros_like(told)
        before[1:] = told[:-1]
        differs = is_send & whole[send] & np.any(before != recorded[send], axis=1)
        bad.append(matches.send_rows[send[differs]])
    absent = matches.send_rows[~whole]
    return pa.concat_tables(
        [
            violations(run_id, "S1", "forged", columns, np.concatenate(bad)),
            violations(run_id, "S1", "absent", columns, absent),
        ]
    )
