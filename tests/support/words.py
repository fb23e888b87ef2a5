"""What a member of a test is told, a word a line, by its standard input."""

import asyncio
import sys


def words_heard() -> asyncio.Queue[str]:
    """Return a queue of them; at the end comes `quit`."""
    words: asyncio.Queue[str] = asyncio.Queue()
    loop = asyncio.get_running_loop()

    def heard() -> None:
        line = sys.stdin.readline()
        words.put_nowait(line.strip() or "quit")
        if not line:
            loop.remove_reader(sys.stdin)

    loop.add_reader(sys.stdin, heard)
    return words
