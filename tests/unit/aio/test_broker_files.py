"""The data directory: what of topics that were deleted meanwhile goes, and what is left alone."""

from pathlib import Path

from orderwire.aio.broker_files import BrokerFiles

HERE, GONE = "0a" * 16, "0b" * 16


def made(folder: Path, *names: str) -> BrokerFiles:
    files = BrokerFiles(folder)
    for name in names:
        (folder / "topics" / name / "0").mkdir(parents=True)
    return files


def left(folder: Path) -> set[str]:
    return {path.name for path in (folder / "topics").iterdir()}


def test_directories_of_topics_that_the_cluster_has_deleted_go(tmp_path: Path) -> None:
    files = made(tmp_path)
    assert files.set_strays_aside(set(), "one") == []
    files.close()
    files = made(tmp_path, HERE, GONE, "notes")
    aside = files.set_strays_aside({HERE}, "one")
    assert [path.name for path in aside] == [f"{GONE}.deleted"]
    for path in aside:
        files.discard(path)
    assert left(tmp_path) == {HERE, "notes"}
    files.close()


def test_a_crash_before_they_are_gone_leaves_nothing(tmp_path: Path) -> None:
    files = made(tmp_path, GONE)
    files.set_strays_aside({GONE}, "one")
    assert files.set_strays_aside(set(), "one")
    files.close()
    BrokerFiles(tmp_path).close()
    assert left(tmp_path) == set()


def test_another_cluster_deletes_nothing(tmp_path: Path) -> None:
    """A new ensemble, or one that has lost its data, knows none of the topics that are here."""
    files = made(tmp_path, HERE)
    assert files.set_strays_aside({HERE}, "one") == []
    assert files.set_strays_aside(set(), "another") == []
    assert left(tmp_path) == {HERE}
    assert files.set_strays_aside({HERE}, "another") == []
    files.close()
