"""Several data in one message: packed, cut up again, and nothing else taken for them."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orderwire.kernel import RemoteProtocolError
from orderwire.participant.batches import BATCH_DATA_MAX, cut, pack, unpack

DATA = st.lists(st.binary(max_size=70), min_size=1, max_size=40)


def packed(data: Sequence[bytes], prefix: bytes = b"") -> bytes:
    return pack(prefix, data, [len(each) for each in data])


@given(data=DATA, prefix=st.binary(max_size=3))
def test_what_is_packed_comes_out_again(data: list[bytes], prefix: bytes) -> None:
    assert list(unpack(packed(data, prefix), len(prefix))) == data


@pytest.mark.parametrize(
    "data",
    [[b""], [b"", b""], [b"a"] * BATCH_DATA_MAX, [bytes(65_535), b"b"], [bytes(65_536), b"b"]],
    ids=["one empty", "two empty", "most", "longest with two bytes", "four bytes"],
)
def test_the_limits_of_both_forms(data: list[bytes]) -> None:
    assert list(unpack(packed(data), 0)) == data


@given(data=DATA, junk=st.binary(max_size=4), keep=st.integers(0, 3_000))
def test_what_is_cut_short_or_goes_on_is_refused(data: list[bytes], junk: bytes, keep: int) -> None:
    whole = packed(data)
    broken = whole[:keep] if keep < len(whole) else whole + junk
    if broken != whole:
        with pytest.raises(RemoteProtocolError):
            unpack(broken, 0)


@pytest.mark.parametrize("head", [b"\x00", b"\x01", b"\x82\x40" + bytes(9_000)])
def test_no_data_or_too_many_are_refused(head: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="expected 1 to"):
        unpack(head, 0)


@given(lengths=st.lists(st.integers(0, 90), min_size=1, max_size=60), room=st.integers(1, 200))
def test_runs_hold_everything_and_fit(lengths: list[int], room: int) -> None:
    runs = [lengths[run] for run in cut(lengths, room)]
    assert [length for run in runs for length in run] == lengths
    for run, after in zip(runs, [*runs[1:], None], strict=True):
        taken = sum(run) + 2 * len(run)
        assert taken <= room or len(run) == 1
        if after is not None:
            assert taken + after[0] + 2 > room, "the next one would have fitted"


def test_a_run_has_no_more_data_than_a_message_may() -> None:
    runs = list(cut([0] * (BATCH_DATA_MAX + 1), 1 << 20))
    assert [run.stop - run.start for run in runs] == [BATCH_DATA_MAX, 1]
