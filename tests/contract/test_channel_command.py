"""`orderwire channel` as a process, and members in processes of their own."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from total_groups import Told

pytestmark = [pytest.mark.network, pytest.mark.timeout(120)]

MEMBER = Path(__file__).parent.parent / "support" / "total_member.py"
CHANNEL = [sys.executable, "-m", "orderwire", "channel", "--listen", "127.0.0.1:0", "--json"]


def _told(process: "subprocess.Popen[str]") -> dict[str, object]:
    assert process.stdout is not None
    line = json.loads(process.stdout.readline())
    assert isinstance(line, dict)
    return line


@pytest.mark.parametrize("loss", ["0", "0.02"])
def test_three_processes_deliver_in_one_order(loss: str) -> None:
    count = 200
    channel = subprocess.Popen([*CHANNEL, "--loss", loss], stdout=subprocess.PIPE, text=True)
    members: list[subprocess.Popen[str]] = []
    try:
        where = str(_told(channel)["listen"])
        members = [
            subprocess.Popen(
                [sys.executable, str(MEMBER), where, str(me), "3", str(count)],
                stdout=subprocess.PIPE,
                text=True,
            )
            for me in range(3)
        ]
        told = Told(3)
        for me, member in enumerate(members):
            log = _told(member)
            for number, to in log["sent"]:  # type: ignore[attr-defined]
                told.wrote(me, number, to)
            told.received[me] = [(s, n) for s, n in log["received"]]  # type: ignore[attr-defined]
            assert member.wait(30) == 0
        logs = told.logs()
        assert logs.service() == "ST"
        assert logs.is_acyclic()
        channel.send_signal(signal.SIGINT)
        last = _told(channel)
        assert channel.wait(10) == 0
        assert int(str(last["pdus"])) > count
    finally:
        for process in (channel, *members):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def test_it_does_not_listen_beyond_this_machine_without_a_word() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "orderwire", "channel", "--listen", "0.0.0.0:0"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "--insecure" in done.stderr
