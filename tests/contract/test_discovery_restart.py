"""Real processes that are killed: by `benchmarks/discovery_restart.py`, with generous bounds."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from orderwire.kernel import NS_PER_S
from orderwire.participant.domain_settings import LIVE_SETTINGS

pytestmark = [pytest.mark.network, pytest.mark.timeout(400)]

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "discovery_restart.py"
PATIENCE_S = LIVE_SETTINGS.fail_ns / NS_PER_S


def test_a_restarted_process_is_known_at_once_and_a_dead_one_missed_in_time() -> None:
    """A kill is seen by the broken connection, a silent end by the lack of evidence."""
    line = [sys.executable, str(SCRIPT), "--quick", "--json"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=380)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["ours"]
    worst = {name: each["max_s"] for name, each in found.items() if isinstance(each, dict)}
    assert worst["known"] < PATIENCE_S / 2, "it waited until the dead was missed"
    assert worst["read_again"] < PATIENCE_S / 2
    assert worst["unread"] < PATIENCE_S / 2, "a broken connection was not noticed"
    for name in ("gone", "unread_stopped", "gone_stopped"):
        assert PATIENCE_S / 2 < worst[name] < 4 * PATIENCE_S, (name, worst)
