"""How far the timelines of a run that goes on have been audited, life by life."""

import numpy as np
import pyarrow as pa

from orderwire.verify.kernels.columns import END, SEND, TIME_MIN, Columns
from orderwire.verify.kernels.lives import LIFE_BITS, life_in
from orderwire.verify.kernels.slices import STRETCHES
from orderwire.verify.kernels.wellformed import Head


def move_heads(heads: dict[int, Head], past: dict[str, Head], new: Columns) -> None:
    """Move each process's head behind its new events; keep those of lives that are over in `past`.

    `past` is by "process,life".
    """
    life = life_in(new.position)
    opens = np.ones(len(new), np.bool_)
    opens[1:] = (new.process[1:] != new.process[:-1]) | (life[1:] != life[:-1])
    start = np.flatnonzero(opens).tolist()
    for at, stop in zip(start, [*start[1:], len(new)], strict=False):
        process, begin = int(new.process[at]), int(life[at]) << LIFE_BITS
        head = heads.get(process, Head())
        if head.position < begin:  # another life, which counts anew
            if head.position:
                past[f"{process},{head.position >> LIFE_BITS}"] = head
            head = Head(position=begin, number=begin)
        sends = np.flatnonzero(new.kind[at:stop] == SEND)
        heads[process] = Head(
            position=int(new.position[stop - 1]) + 1,
            number=int(new.number[at + sends[-1]]) + 1 if len(sends) else head.number,
            time_ns=int(new.time_ns[stop - 1]),
            ended=head.ended or bool(new.kind[stop - 1] == END),
        )


def stretches_of(heads: dict[int, Head], past: dict[str, Head]) -> pa.Table:
    """Return a row of `STRETCHES` for each life, from its beginning on."""
    every = [(int(life.split(",")[0]), head) for life, head in past.items()]
    rows = []
    for process, head in (*every, *sorted(heads.items())):
        begin = head.position >> LIFE_BITS << LIFE_BITS
        numbers = (begin if head.number > begin else -1, head.number - 1)
        rows.append((TIME_MIN, process, begin, head.position - 1, *numbers, head.ended, True))
    columns = zip(*rows, strict=True) if rows else [()] * len(STRETCHES)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, STRETCHES, strict=True)]
    return pa.table(arrays, schema=STRETCHES)
