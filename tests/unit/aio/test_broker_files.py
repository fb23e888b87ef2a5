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
    for _ in range(2):  # nor at its second start
        assert files.set_strays_aside(set(), "another") == []
    files.close()
    files = made(tmp_path, GONE)
    assert [path.name for path in files.set_strays_aside(set(), "another")] == [f"{GONE}.deleted"]
    assert left(tmp_path) == {HERE, f"{GONE}.deleted"}
    files.close()


def test_what_a_broker_made_alone_is_no_clusters_to_delete(tmp_path: Path) -> None:
    files = made(tmp_path, GONE)
    files.set_strays_aside({GONE}, "one")
    files.close()
    for _ in range(2):
        BrokerFiles(tmp_path, alone=True).close()
    files = made(tmp_path, HERE)
    for _ in range(2):
        assert files.set_strays_aside(set(), "one") == []
    assert left(tmp_path) == {HERE, GONE}
    files.close()


def test_a_membership_that_does_not_read_is_another_clusters(tmp_path: Path) -> None:
    files = made(tmp_path, HERE)
    (tmp_path / "cluster.json").write_bytes(b"{")
    for _ in range(2):
        assert files.set_strays_aside(set(), "one") == []
    files.close()
