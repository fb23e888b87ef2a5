"""Runs of offsets."""

from random import Random

from orderwire.broker.replication.spans import Span, missing, without


def spans(draw: Random) -> list[Span]:
    edges = sorted(draw.sample(range(40), 2 * draw.randint(0, 6)))
    return list(zip(edges[::2], edges[1::2], strict=True))


def test_without_leaves_what_is_in_none() -> None:
    for seed in range(300):
        draw = Random(seed)
        one, other = spans(draw), spans(draw)
        taken = {at for first, end in other for at in range(first, end)}
        left = without(one, other)
        assert [at for first, end in left for at in range(first, end)] == [
            at for first, end in one for at in range(first, end) if at not in taken
        ]
        assert left == [gap for span in one for gap in missing(*span, other)]
