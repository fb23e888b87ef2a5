"""Errors of ours are found inside those of Spark."""

from orderwire.pipeline.errors import LakeError
from orderwire.pipeline.failures import cause_of

WRAPPED = """[STREAM_FAILED] Query terminated with exception: Job aborted due to stage failure:
Task 0 in stage 3.0 failed 1 times, most recent failure:
org.apache.spark.api.python.PythonException:
Traceback (most recent call last):
  File "worker.py", line 3, in main
ValueError: something inside

During handling of the above exception, another exception occurred:

orderwire.pipeline.errors.DataLossError: t/0: offsets 2 to 5 are gone (4 records). Start elsewhere

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:581)
"""


def test_our_error_is_found_in_sparks() -> None:
    kind, sentence = cause_of(RuntimeError(WRAPPED))
    assert kind == "DataLossError"
    assert sentence == "t/0: offsets 2 to 5 are gone (4 records). Start elsewhere"


def test_errors_of_ours_stay_as_they_are() -> None:
    assert cause_of(LakeError("no such table")) == ("LakeError", "no such table")


def test_sparks_own_error_is_its_first_sentence() -> None:
    assert cause_of(RuntimeError("[OOPS] It broke.\n at x")) == ("RuntimeError", "[OOPS] It broke.")
    assert cause_of(KeyError()) == ("KeyError", "")
