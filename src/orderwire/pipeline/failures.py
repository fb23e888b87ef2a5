"""What went wrong inside Spark, said in one sentence."""

import re

from pyspark.errors import PySparkException

from orderwire.kernel import OrderwireError

_OURS = re.compile(r"^\s*(?:\w+: )?orderwire(?:\.\w+)*\.(\w+): (.+)$", re.MULTILINE)

FAILURES = (OrderwireError, PySparkException, OSError)
"""What work on Spark may raise when the world, not the code, is at fault."""

MISUSED = ("OptionError", "UnknownTopicError", "LocalProtocolError")
"""Errors that the caller can mend by asking otherwise."""


def cause_of(error: BaseException) -> tuple[str, str]:
    """Return the class and the sentence of the error of ours that made Spark fail.

    Spark wraps an error of a worker in several of its own, with their stack traces; when there is
    none of ours inside, the first sentence of Spark's own is returned.
    """
    if isinstance(error, OrderwireError):
        return type(error).__name__, str(error)
    text = str(error)
    found = _OURS.findall(text)
    if found:
        name, sentence = found[-1]
        return name, sentence.strip()
    first = text.strip().splitlines()[0] if text.strip() else ""
    return type(error).__name__, first
