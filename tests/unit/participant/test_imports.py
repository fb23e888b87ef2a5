"""What a participant need not load: it has to start in a fraction of a second."""

import subprocess
import sys

import pytest

HEAVY = ("numpy", "pyarrow", "pandas", "kazoo", "confluent_kafka", "pyspark")


@pytest.mark.parametrize(
    "module", ["orderwire.participant", "orderwire.cli.bootstrap", "orderwire.cli.participant"]
)
def test_nothing_heavy_is_loaded_before_it_is_used(module: str) -> None:
    script = f"import sys, {module}; print(*(name for name in {HEAVY} if name in sys.modules))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []
