"""The counts of a text do not depend on where it was cut."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from orderwire.pipeline import text_count
from orderwire.pipeline.text_count import Chapter, TextCounter, TextCounts, count_text, total

TEXT = (
    "\r\n\tTitle — of «it»\r\n\r\n          CHAPTER I\r\n\r\n     Down the Rabbit-Hole\r\n"
    "한국어 text, ああ:  日本\r\n   CHAPTER  II.  The pool \r\nthe word CHAPTER I\x0b in a line\r\n"
    "CHAPTER 3"
).encode()


def cut(text: bytes, at: list[int]) -> list[Chapter]:
    counter = TextCounter()
    bounds = [0, *sorted(min(a, len(text)) for a in at), len(text)]
    for start, end in pairwise(bounds):
        counter.feed(text[start:end])
    return counter.finish()


def test_counts_are_those_of_the_whole_file() -> None:
    assert total(count_text(TEXT)) == TextCounts(
        bytes=len(TEXT), characters=len(TEXT.decode()), words=len(TEXT.split())
    )


def test_chapters_begin_with_their_heading_line() -> None:
    chapters = count_text(TEXT)
    assert [c.heading for c in chapters] == ["", "CHAPTER I", "CHAPTER  II.  The pool", "CHAPTER 3"]
    assert chapters[0].counts.words == 4
    assert chapters[3].counts == TextCounts(bytes=9, characters=9, words=2)


@given(st.lists(st.integers(0, len(TEXT)), max_size=12))
def test_cuts_change_nothing(at: list[int]) -> None:
    assert cut(TEXT, at) == count_text(TEXT)


@given(
    st.text(alphabet=st.sampled_from("aé한\r\n\t  \x0b"), max_size=200),
    st.lists(st.integers(0, 700), max_size=8),
)
def test_any_text_counts_like_wc(text: str, at: list[int]) -> None:
    data = text.encode()
    assert total(cut(data, at)) == TextCounts(
        bytes=len(data), characters=len(text), words=len(data.split())
    )


@given(st.lists(st.integers(0, 100), max_size=8))
def test_long_lines_are_counted_in_pieces(at: list[int]) -> None:
    limit, text_count.LINE_BYTES_MAX = text_count.LINE_BYTES_MAX, 5
    try:
        data = "word wörd  CHAPTER IV x\nthe long line goes on\n".encode() * 2
        assert total(cut(data, at)).words == len(data.split())
        assert total(cut(data, at)).characters == len(data.decode())
    finally:
        text_count.LINE_BYTES_MAX = limit


def test_every_byte_alone() -> None:
    assert cut(TEXT, list(range(len(TEXT)))) == count_text(TEXT)


def test_empty_text() -> None:
    assert count_text(b"") == []
    assert total([]) == TextCounts()
