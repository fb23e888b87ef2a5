"""What a topic may set is told to people."""

from pathlib import Path

from orderwire.broker.topic_config import TOPIC_KEYS

PAGE = Path(__file__).parents[3] / "docs" / "replication.md"


def test_every_setting_of_ours_is_in_the_documentation_with_its_default() -> None:
    rows = [line.split("|") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    told = {row[1].strip(" `"): row[2].strip(" `") for row in rows}
    ours = {key.name: key.default for key in TOPIC_KEYS.values() if "orderwire" in key.name}
    ours["orderwire.mode"] = "as `--mode"
    assert ours.items() <= told.items()
