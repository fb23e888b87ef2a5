# Daily work.  `just` alone lists the recipes; each runs inside `uv run`, which keeps the environment.
set shell := ["bash", "-euo", "pipefail", "-c"]

pytest := "uv run pytest -q"

[private]
default:
    @just --list

# Format, lint, types, imports, papers, unit tests: before every commit
check: static
    timeout 600 {{pytest}} -m "not slow" tests/test_tidy.py tests/unit tests/papers tests/vectors

# The whole suite, each tier with a time limit; contract tests, which mostly wait, beside the first two
test: static
    #!/usr/bin/env bash
    set -uo pipefail
    log=$(mktemp)
    timeout 1200 {{pytest}} -m "not slow" tests/contract >"$log" 2>&1 &
    waiting=$!
    timeout 900 {{pytest}} -m "not slow" tests/test_tidy.py tests/unit tests/papers tests/vectors &&
        timeout 900 {{pytest}} -m "not slow" tests/properties tests/simulation
    cores=$?
    wait $waiting
    contract=$?
    cat "$log"
    rm "$log"
    ((cores == 0 && contract == 0)) || exit 1
    timeout 1200 {{pytest}} -m "not slow" tests/interop &&
        timeout 1500 {{pytest}} -m "not slow" tests/pipeline

# What no test runs: format, lint, types, import contracts, the papers' table
static:
    uv run ruff format --check
    uv run ruff check
    uv run mypy
    uv run lint-imports
    uv run python docs/papers/build.py --check

# The big sweeps: 10,000 seeded runs per algorithm and the long audits
slow:
    {{pytest}} -m slow --timeout 3600 tests

sim:
    {{pytest}} -m "not slow" tests/simulation tests/properties

interop:
    {{pytest}} -m interop tests

spark:
    {{pytest}} -m spark tests

# Every benchmark prints one JSON object; run them on a quiet machine, one at a time
bench:
    for file in $(grep -l __main__ benchmarks/*.py); do uv run python "$file" --json; done

# The papers' figures in full, an hour or more on two cores; what is there is not run again
lab *names="s000-fig4 s000-fig5 s001-maxcb":
    uv run orderwire lab run {{names}}

# Write docs/papers.md from docs/papers/*.toml
papers:
    uv run python docs/papers/build.py

# Generate the Kafka codec again from the message definitions
codec:
    uv run python -m orderwire.broker.wire.generate

# Refresh the pins in pyproject.toml from what is installed now
pins:
    uv run python docs/pins.py

format:
    uv run ruff format
    uv run ruff check --fix
