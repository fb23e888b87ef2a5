"""Refresh the pins in pyproject.toml: what this project was last seen to pass with."""

import re
from importlib.metadata import version
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"


def main() -> None:
    """Rewrite each `name==version` of constraint-dependencies with the installed version."""
    text = PROJECT.read_text()
    PROJECT.write_text(
        re.sub(
            r'^    "([A-Za-z0-9_-]+)==[^"]+",$',
            lambda found: f'    "{found[1]}=={version(found[1])}",',
            text,
            flags=re.MULTILINE,
        )
    )


if __name__ == "__main__":
    main()
