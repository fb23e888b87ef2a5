"""The demo as a stranger runs it: its JSON, its report, its end, also when it is interrupted."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from report_tables import assert_replicas_as_told

pytestmark = [pytest.mark.spark, pytest.mark.network, pytest.mark.timeout(420)]

MARK = "ORDERWIRE_TEST_RUN"
DEMO = [sys.executable, "-m", "orderwire", "demo"]
TEXT = "".join(
    f"CHAPTER {chapter}\r\n" + "".join(f"Line {k} of Zoë’s tale.\r\n" for k in range(40))
    for chapter in ("I", "II", "III")
)
END_SECONDS_MAX = 60


@contextlib.contextmanager
def demo(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    """Start a demo whose processes, and theirs, carry a mark in their environment; end it."""
    mark = uuid.uuid4().hex
    text = folder / "tale.txt"
    text.write_bytes(TEXT.encode())
    with subprocess.Popen(
        [*DEMO, "--text", str(text), "--folder", str(folder / "run"), "--json", *options],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as process:
        try:
            yield process, mark
        finally:
            process.terminate()


def left_running(mark: str) -> list[str]:
    """Return the command lines of living processes that carry the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120])
        except OSError:
            continue
    return [line for line in found if line.strip()]


def assert_nothing_left(mark: str) -> None:
    deadline = time.monotonic() + END_SECONDS_MAX
    while (left := left_running(mark)) and time.monotonic() < deadline:
        os.sched_yield()
    assert left == []


def test_demo_keeps_every_promise_and_leaves_nothing_running(tmp_path: Path) -> None:
    with demo(tmp_path, "--members", "4") as (process, mark):
        out, err = process.communicate(timeout=400)
    assert process.returncode == 0, (err + out).decode()[-6_000:]
    assert_nothing_left(mark)
    found = json.loads(out)
    assert out.count(b"\n") == 1
    for group in ("ordered", "control"):
        books = found[group]
        assert books["written"] > 400
        assert books["delivered"] + books["late"] + books["lost"] == books["written"]
        assert books["violations_seen_live"] == books["violations"]
    assert found["ordered"]["violations"] == 0
    assert found["control"]["violations"] > 0
    assert found["text"] == {
        "bytes": len(TEXT.encode()),
        "characters": len(TEXT),
        "words": len(TEXT.split()),
        "matches_file": True,
    }
    seen = found["discovery"]
    assert seen["participants"] == 5
    assert seen["known_s"] < 30
    assert seen["restart_known_s"] < 30
    assert set(seen["checks"].values()) == {"VALID"}
    assert set(seen["checks"]) == {"W1", "D1", "D3", "D4"}
    assert seen["lives"] == 6, "the guest had two"
    assert (
        seen["violations"] == seen["violations_seen_live"] == seen["pairs_missing_at_the_end"] == 0
    )
    assert seen["messages"] > 0
    kept = found["replicas"]
    assert (kept["mode"], kept["replicas"], kept["equal"]) == ("active-active", 3, True)
    assert kept["killed"] in range(3)
    assert kept["took_over_s"] < 30
    assert kept["in_sync_s"] < 30
    assert kept["audit"]["verdict"] == "VALID", kept["audit"]
    checks = {check["id"]: check for check in kept["audit"]["checks"]}
    assert list(checks) == [f"I{number}" for number in range(1, 11)]
    messages = -(-len(TEXT.encode()) // 100)
    for invariant in ("I1", "I3", "I9"):
        assert checks[invariant]["examined"] == messages
    assert {name for name, check in checks.items() if not check["promised"]} == {"I4"}
    text = next(one for one in kept["places"] if one["topic"] == "conference.text")
    assert 0 < text["took_over_s"] <= kept["took_over_s"]
    assert text["isr"] == [0, 1, 2]
    assert text["epoch"] > 0
    assert sum(text["taken_bytes"]) > len(TEXT.encode())
    assert sum(text["sent_bytes"]) > 2 * len(TEXT.encode()), "Spark and a reader have read it"
    book = found["book"]
    assert (book["equal"], book["complete"], book["audit"]["verdict"]) == (True, True, "VALID")
    total = {check["id"]: check for check in book["audit"]["checks"]}
    assert {"T1", "T2", "T3", "T4", "T5"} <= {i for i, check in total.items() if check["promised"]}
    assert len(book["traders"]) == 4
    assert all(each["written"] == 600 for each in book["traders"])
    assert [each["updates"] for each in book["traders"]] == [2_400, 2_400, 1_200, 1_200]
    assert all(each["longest_pause_ms"] > 0 for each in book["traders"])
    assert 0 < found["control_bytes"]["ours"] < found["control_bytes"]["rst_matrix"]
    page = Path(found["report"]).read_text()
    assert_replicas_as_told(page, kept)
    assert page.count("<svg") == 9
    assert "was told" in page
    assert "Who found whom, and when" in page
    assert "One order book" in page
    assert "T1 VALID, T2 VALID, T3 VALID, T4 VALID, T5 VALID" in page
    for figure in (
        *("first-violation", "delays", "control-bytes", "members-ordered"),
        *("discovery", "discovery-pairs", "discovery-traffic", "book"),
    ):
        assert (tmp_path / "run" / "figures" / f"{figure}.png").read_bytes()[:4] == b"\x89PNG"
    again = subprocess.run(
        [*DEMO, "--folder", str(tmp_path / "run")], capture_output=True, timeout=60, check=False
    )
    assert again.returncode == 2
    assert b"is not empty" in again.stderr


@pytest.mark.parametrize("moment", [b"brokers listen", b"Spark starts", b"members gather", b"said"])
def test_interrupted_demo_ends_at_once_and_leaves_nothing(tmp_path: Path, moment: bytes) -> None:
    with demo(tmp_path, "--members", "3") as (process, mark):
        assert process.stderr is not None
        for line in process.stderr:
            if moment in line:
                break
        else:
            pytest.fail(f"the demo never told {moment!r}")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=END_SECONDS_MAX)
    assert process.returncode == 130, err.decode()[-2_000:]
    assert out == b""
    assert b"Traceback" not in err
    assert_nothing_left(mark)
