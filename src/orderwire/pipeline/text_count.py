"""Bytes, characters and words of a text that comes in pieces, in total and by chapter.  No Spark.

The counts are those of `wc` in the C locale, and a cut may fall anywhere, inside a character too:

* a character is a byte that does not continue one: not of the form 10xxxxxx (UTF-8);
* a word is a longest run of bytes other than space, TAB, LF, VT, FF and CR;
* a line ends with LF; CR is white space like any other;
* a chapter begins with the line that holds its heading, `CHAPTER` and a number, Roman or Arabic,
  and lasts to the next; what stands before the first is a chapter with an empty heading.

Source: the consumer of [S004], which counts the characters of a text cut into 100-byte messages.
"""

import re

import msgspec

HEADING = re.compile(rb"\s*(CHAPTER\s+(?:[IVXLCDM]+|\d+)\b[^\n]{0,120}?)\s*")
LINE_BYTES_MAX = 4_096
"""A longer line is no heading; it is counted piece by piece, so memory stays bounded."""

CONTINUATION = bytes(range(0x80, 0xC0))
_SPACE = b" \t\n\v\f\r"


class TextCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How long a text is."""

    bytes: int = 0
    characters: int = 0
    words: int = 0

    def __add__(self, other: "TextCounts") -> "TextCounts":
        return TextCounts(
            bytes=self.bytes + other.bytes,
            characters=self.characters + other.characters,
            words=self.words + other.words,
        )


class Chapter(msgspec.Struct, frozen=True, kw_only=True):
    """One chapter."""

    heading: str
    """The heading line without the white space around it; empty before the first chapter."""
    counts: TextCounts


class TextCounter:
    """Counts a text fed in pieces, in order."""

    def __init__(self) -> None:
        self._heading = b""
        self._chapters: list[Chapter] = []
        self._line = b""
        """The unfinished line, or its end when it is a long one."""
        self._line_is_new = True
        self._bytes = self._characters = self._words = 0
        self._in_word = False

    def feed(self, piece: bytes) -> None:
        """Count the next piece."""
        *lines, self._line = (self._line + piece).split(b"\n")
        for line in lines:
            self._finish(line + b"\n")
            self._line_is_new = True
        if len(self._line) > LINE_BYTES_MAX:
            self._add(self._line)
            self._line = b""
            self._line_is_new = False

    def finish(self) -> list[Chapter]:
        """Return the chapters, in order; a text without a heading is one chapter."""
        if self._line:
            self._finish(self._line)
            self._line = b""
        self._close_chapter()
        return self._chapters

    def _finish(self, line: bytes) -> None:
        if self._line_is_new and b"CHAPTER" in line:
            found = HEADING.fullmatch(line)
            if found:
                self._close_chapter()
                self._heading = found[1]
        self._add(line)

    def _add(self, part: bytes) -> None:
        self._bytes += len(part)
        self._characters += len(part.translate(None, CONTINUATION))
        self._words += len(part.split())
        if self._in_word and part[0] not in _SPACE:
            self._words -= 1
        self._in_word = part[-1] not in _SPACE

    def _close_chapter(self) -> None:
        if self._bytes:
            counts = TextCounts(bytes=self._bytes, characters=self._characters, words=self._words)
            heading = self._heading.decode(errors="replace")
            self._chapters.append(Chapter(heading=heading, counts=counts))
        self._bytes = self._characters = self._words = 0


def count_text(text: bytes) -> list[Chapter]:
    """Count a whole text."""
    counter = TextCounter()
    counter.feed(text)
    return counter.finish()


def total(chapters: list[Chapter]) -> TextCounts:
    """The whole text's counts."""
    return sum((chapter.counts for chapter in chapters), TextCounts())
