"""`orderwire participant`, `record` and `replay` as processes that talk to each other."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from loopback import free_members

from orderwire import DeltaCausal, Dropped, Order
from orderwire.cli.joining import Joining, joins_group, tell_drop
from orderwire.cli.main import main
from orderwire.ordering.catalog import ALGORITHMS
from orderwire.participant.recording import Recording, RecordingError

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]


MAIN = "from orderwire.cli.main import main; main()"
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Start `orderwire COMMAND OPTIONS…`; whatever still runs after the test is killed."""
    with ExitStack() as stack:

        def run(*options: str, stdin: int = subprocess.DEVNULL) -> "subprocess.Popen[str]":
            process = subprocess.Popen(
                [sys.executable, "-c", MAIN, *options],
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        yield run


def ended(process: "subprocess.Popen[str]", stdin: str | None = None) -> list[Any]:
    """Return the JSON lines of a process that ended well."""
    out, err = process.communicate(stdin, timeout=60)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def test_what_was_recorded_can_be_written_again(tmp_path: Path, start: Start) -> None:
    lifetime = (
        "--lifetime-ms=20000"  # a busy machine may stop a process for longer than Δ usually is
    )
    file = str(tmp_path / "talk.arrow")
    members = [f"--member={n}={a}" for n, a in free_members("ana", "ben").items()]
    inputs = tmp_path / "inputs"
    recording = start(
        *("record", file, "--me=ben", *members, "--count=4", "--json", f"--inputs={inputs}"),
        lifetime,
    )
    writing = start(
        *("participant", "--me=ana", *members, "--write=chat/room", "--wait-readers=1", "--json"),
        lifetime,
        stdin=subprocess.PIPE,
    )
    [written] = ended(writing, "one\nzwei ü\n\nfour")
    [summary] = ended(recording)
    assert written["counters"]["written"] == 4
    assert (summary["samples"], summary["data_bytes"], summary["dropped"]) == (4, 14, 0)

    fed = str(inputs / "ben-bounded-jang-20000ms.jsonl")
    result = CliRunner().invoke(main, ["sim", "replay", "--inputs", fed, "--json"])
    assert result.exit_code == 0, result.output
    replayed = json.loads(result.stdout)
    assert (replayed["protocol"], replayed["me"], len(replayed["indications"])) == (
        *("bounded-jang", 1, 4),
    )

    kept = Recording(file)
    assert kept.order == DeltaCausal(lifetime_ms=20_000)
    rows = kept.table.to_pylist()
    assert [row["data"] for row in rows] == [b"one", "zwei ü".encode(), b"", b"four"]
    assert {(row["topic"], row["source"]) for row in rows} == {("chat/room", "ana")}
    assert all(row["stamp_ns"] <= row["arrived_ns"] <= row["delivered_ns"] for row in rows)

    members = [f"--member={n}={a}" for n, a in free_members("carl", "dora").items()]
    reading = start(
        *("participant", "--me=dora", *members, "--read=**", "--count=4", "--json", lifetime)
    )
    again = start("replay", file, "--me=carl", *members, "--speed=100", "--json")
    [summary] = ended(again)
    *samples, counters = ended(reading)
    assert summary["counters"]["written"] == 4
    assert [sample["data"] for sample in samples] == ["one", "zwei ü", "", "four"]
    assert [sample["number"] for sample in samples] == [0, 1, 2, 3]
    assert counters["counters"]["delivered"] == 4


def test_lines_go_through_a_group_with_one_order(start: Start) -> None:
    relay = start("channel", "--listen=127.0.0.1:0", "--json")
    assert relay.stdout is not None
    where = json.loads(relay.stdout.readline())["listen"]
    members = [f"--member={n}={a}" for n, a in free_members("ana", "ben").items()]
    order = ("--order=selective-total", f"--relay={where}", "--json")
    reading = start("participant", "--me=ben", *members, *order, "--read=chat/*", "--count=2")
    writing = start(
        *("participant", "--me=ana", *members, *order, "--write=chat/room", "--wait-readers=1"),
        stdin=subprocess.PIPE,
    )
    [written] = ended(writing, "one\ntwo")
    *samples, _ = ended(reading)
    assert written["counters"]["written"] == 2
    assert [(each["source"], each["data"]) for each in samples] == [("ana", "one"), ("ana", "two")]


def test_who_does_not_get_into_its_group_ends(start: Start) -> None:
    member = [f"--member=ana={free_members('ana')['ana']}"]
    alone = start(
        *("participant", "--me=ana", *member, "--order=selective-total", "--read=a"),
        *("--relay=192.0.2.1:7500",),
    )
    _, err = alone.communicate(timeout=60)
    assert alone.returncode == 2
    assert "leaves this machine" in err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--group=g"], "no effect on delta-causal"),
        (["--order=selective-total", "--lifetime-ms=3"], "its messages live for ever"),
        (["--order=selective-total", "--domain=d"], "group= names its group"),
    ],
)
def test_options_of_groups_go_together(options: list[str], sentence: str) -> None:
    arguments = ["participant", "--me=a", "--member=a=127.0.0.1:0", "--read=x", *options]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code != 0
    assert sentence in result.output


@pytest.mark.parametrize("name", ["delta-causal", *ALGORITHMS])
def test_every_algorithm_can_be_chosen(name: str) -> None:
    seen: list[Order] = []

    @click.command()
    @joins_group("delta-causal")
    def command(joining: Joining) -> None:
        seen.append(joining.order())

    arguments = ["--me=a", "--member=a=127.0.0.1:0", f"--order={name}", "--lifetime-ms=300"]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    [order] = seen
    assert order.algorithm == (DeltaCausal.conference().algorithm if "causal" in name else name)
    assert order.lifetime_ns == 300_000_000
    shown = CliRunner().invoke(main, ["participant", "--help"]).output
    assert f"{name}|" in "".join(shown.split()).replace("]", "|")


def test_drops_are_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    tell_drop(Dropped(reason="late", count=2, total=5, domain="fifo"))
    tell_drop(Dropped(reason="expired", count=1, total=1, domain="fifo", pattern="chat/*"))
    assert capsys.readouterr().err == "late: 2 in fifo\nexpired: 1 in fifo, reading chat/*\n"


def test_members_of_a_chosen_algorithm_talk(start: Start) -> None:
    members = [f"--member={n}={a}" for n, a in free_members("ana", "ben").items()]
    chosen = ("--order=kshemkalyani-singhal", "--lifetime-ms=20000", "--json")
    reading = start("participant", "--me=ben", *members, *chosen, "--read=**", "--count=2")
    writing = start(
        *("participant", "--me=ana", *members, *chosen, "--write=t", "--wait-readers=1"),
        stdin=subprocess.PIPE,
    )
    [written] = ended(writing, "one\ntwo")
    *samples, counted = ended(reading)
    assert written["counters"]["written"] == counted["counters"]["delivered"] == 2
    assert [sample["data"] for sample in samples] == ["one", "two"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(number: signal.Signals, start: Start) -> None:
    process = start(
        *("participant", "--me=a", "--member=a=127.0.0.1:0", "--read=**", "--write=t", "--own"),
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("hello\n")
    process.stdin.flush()
    assert process.stdout.readline().startswith("t a +")
    process.send_signal(number)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "written 1" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("participant --me a --member a=127.0.0.1:0", "nothing to do: give --read"),
        ("participant --me a --member a --read x", "write NAME=HOST:PORT"),
        ("participant --me b --member a=127.0.0.1:0 --read x", "'b' is no member; members are a"),
        ("participant --me a --member a=0.0.0.0:0 --read x", "insecure=True"),
        ("participant --me a --member a=127.0.0.1:0 --read x//y", "has an empty level"),
        ("participant --me a --member a=127.0.0.1:0 --read x --lifetime-ms -1", "above 0"),
        ("participant --me a --member a=127.0.0.1:0 --read x --lifetime-ms 0", "above 0"),
        ("participant --me a --member a=127.0.0.1:0 --read x --wait-readers 1", "no effect"),
        ("record x.csv --me a --member a=127.0.0.1:0", "end 'x.csv' with .arrow"),
        ("replay pyproject.toml --me a --member a=127.0.0.1:0", "no readable Arrow file"),
        ("replay pyproject.toml --me a --member a=127.0.0.1:0 --speed -1", "is negative"),
        ("replay pyproject.toml --me a --member a=127.0.0.1:0 --domain x", "without --order"),
    ],
)
def test_wrong_use_is_status_2_and_says_why(
    arguments: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    result = CliRunner().invoke(main, arguments.split())
    assert result.exit_code == 2, result.output
    assert sentence in " ".join(result.output.split())


@pytest.mark.parametrize("command", ["participant", "record", "replay"])
def test_help_shows_an_example(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"])
    assert result.exit_code == 0
    assert "Example:" in result.output
    assert "--json" in result.output


def test_a_trace_is_no_recording(tmp_path: Path) -> None:
    from orderwire.trace import write_trace

    write_trace(tmp_path / "trace.arrow", [])
    with pytest.raises(RecordingError, match="is no recording of version 1 or 2: it has no"):
        Recording(tmp_path / "trace.arrow")
