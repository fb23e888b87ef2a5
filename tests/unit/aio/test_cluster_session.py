"""The key of a broker's session: for its owner's eyes, and for the ensemble that gave it."""

from pathlib import Path

from orderwire.aio.cluster_session import KeptSession

KEY = (2**63 - 1, bytes(range(16)))


def test_a_key_is_kept_for_its_ensemble_and_owner_alone(tmp_path: Path) -> None:
    kept = KeptSession(tmp_path, "zk:2181/a")
    assert kept.read() is None
    kept.keep((7, b"old"))
    kept.keep(KEY)
    assert KeptSession(tmp_path, "zk:2181/a").read() == KEY
    assert KeptSession(tmp_path, "zk:2181/b").read() is None
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    kept.forget()
    assert kept.read() is None
    kept.forget()


def test_what_does_not_read_or_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    kept = KeptSession(tmp_path, "zk:2181")
    kept.keep(KEY)
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes()[:20])
    assert kept.read() is None
    (tmp_path / (file.name + ".new")).write_bytes(b"left by a crash")
    kept.keep(KEY)
    assert kept.read() == KEY
    KeptSession(tmp_path / "missing", "zk:2181").keep(KEY)
