"""What is written into ZooKeeper and read from it, without one: addresses, names, settings."""

from pathlib import Path

import pytest

from orderwire.aio.addresses import split_address
from orderwire.aio.discovery_zookeeper import ZookeeperBootstrap
from orderwire.aio.zookeeper_client import SERVERS_MAX, Ensemble
from orderwire.aio.zookeeper_entries import Entry, Folder, domain_path, is_before, spread
from orderwire.aio.zookeeper_server import (
    ZookeeperServerSettings,
    _configuration,
    managed_zookeeper,
)
from orderwire.discovery.settings import ID_SPACE_MAX
from orderwire.kernel import LocalProtocolError
from orderwire.kernel.java import JavaMissingError


@pytest.mark.parametrize(
    ("text", "servers", "chroot"),
    [
        ("127.0.0.1:2181", ("127.0.0.1:2181",), ""),
        ("zk1:2181,[::1]:2182/", ("zk1:2181", "[::1]:2182"), ""),
        ("zk1:2181/apps/ours/", ("zk1:2181",), "/apps/ours"),
    ],
)
def test_ensemble_is_read(text: str, servers: tuple[str, ...], chroot: str) -> None:
    assert Ensemble.parse(text) == Ensemble(servers, chroot)


@pytest.mark.parametrize(
    "text",
    [
        *["", "zk1", "zk1:2181,", "zk1:x", "zk1:2181//a", "zk1:2181/a/../b", "::1:2181", "[::1:1"],
        ",".join(["zk:1"] * (SERVERS_MAX + 1)),
    ],
)
def test_what_is_no_ensemble_is_refused(text: str) -> None:
    with pytest.raises(LocalProtocolError):
        Ensemble.parse(text)


@pytest.mark.parametrize("text", ["[::1:1", "::1]:1", "[]:1", "[a]b:1", "[1.2.3.4]:1"])
def test_brackets_stand_on_both_sides_of_an_ipv6_address_only(text: str) -> None:
    with pytest.raises(LocalProtocolError):
        split_address(text)


@pytest.mark.parametrize(
    ("identity", "inc"), [(None, None), (0, None), (15, 1), (ID_SPACE_MAX - 1, ID_SPACE_MAX - 1)]
)
@pytest.mark.parametrize("number", [0, 7, (1 << 31) - 1, 1 << 31, (1 << 32) - 1])
def test_entry_survives_its_name(identity: int | None, inc: int | None, number: int) -> None:
    entry = Entry("[::1]:7400", "5eed", identity, inc, number)
    told = number - (1 << 32) if number >= 1 << 31 else number  # ZooKeeper counts so.
    assert Entry.parse(f"{entry.prefix()}{told:010d}") == entry


def test_ids_follow_from_numbers_only_where_there_is_room() -> None:
    large = Folder("/d", ID_SPACE_MAX, 1_700_000_000)
    contact = large.contact(Entry("127.0.0.1:1", "n", None, None, 1))
    assert contact is not None
    assert contact.inc == 1_700_000_000 << 32 | 1
    assert contact.id == spread(contact.inc)
    assert contact.id >> 63 == 1, "the lowest bit of the number is the highest of the id"
    small = Folder("/d", 16, 1_700_000_000)
    assert small.contact(Entry("127.0.0.1:1", "n", None, None, 1)) is None
    assert small.contact(Entry("127.0.0.1:1", "n", 16, None, 1)) is None
    assert small.contact(Entry("127.0.0.1:1", "n", 15, None, 1)) is not None


def test_only_ids_of_the_domain_are_taken() -> None:
    folder = Folder("/d", 16, 0)
    assert [folder.taken(folder.id_path(each).rpartition("/")[2]) for each in (0, 15)] == [0, 15]
    for name in ("10", "F", "0f", "-1", "x", "", " 1", "1_0", "f" * 5_000):
        assert folder.taken(name) == -1, name


def test_spread_is_a_permutation_that_parts_neighbours() -> None:
    ids = [spread(number) for number in range(256)]
    assert len(set(ids)) == 256
    assert all(spread(identity) == number for number, identity in enumerate(ids))
    assert abs(ids[1] - ids[0]) == 1 << 63


def test_numbers_go_on_behind_the_largest() -> None:
    last = (1 << 32) - 1
    assert is_before(1, 2)
    assert is_before((1 << 31) - 1, 1 << 31)
    assert is_before(last, 0)
    assert not is_before(0, last)
    assert not is_before(5, 5)


@pytest.mark.parametrize("domain", ["plain", "a/b", "..", ".", "ü,\n%2F", "zookeeper"])
def test_any_domain_is_one_znode(domain: str) -> None:
    name = domain_path(domain).removeprefix("/orderwire/domains/")
    assert name
    assert name.isascii()
    assert name.isprintable()
    assert not set(name) & set("/.")
    assert len({domain_path(each) for each in ("a/b", "a%2Fb", "a.b", "a%2Eb")}) == 4


@pytest.mark.parametrize(
    "options",
    [
        *[{"address": "nowhere"}, {"id_space": 0}, {"id_space": ID_SPACE_MAX + 1}],
        *[{"id_space": 4, "wish": 4}, {"ensemble": "zk"}],
    ],
)
def test_bootstrap_used_wrongly(options: dict[str, object]) -> None:
    right = {"ensemble": "zk:1", "domain": "d", "address": "127.0.0.1:1", "submit": print}
    with pytest.raises(LocalProtocolError):
        ZookeeperBootstrap(**{**right, **options})  # type: ignore[arg-type]


def test_server_listens_on_this_machine_unless_told() -> None:
    with pytest.raises(LocalProtocolError, match="insecure"):
        ZookeeperServerSettings(host="0.0.0.0")
    ZookeeperServerSettings(host="0.0.0.0", insecure=True)
    with pytest.raises(LocalProtocolError, match="ascend"):
        ZookeeperServerSettings(session_ms_min=100)


def test_configuration_is_written_as_java_reads_it() -> None:
    written = _configuration(ZookeeperServerSettings(), Path("/a b/ü\\𝄞"), 2181, {})
    assert "dataDir=/a\\u0020b/\\u00fc\\u005c\\ud834\\udd1e\n" in written
    assert "clientPort=2181\n" in written
    assert "clientPortAddress=127.0.0.1\n" in written


def test_without_java_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with (
        pytest.raises(JavaMissingError, match=r"ZooKeeper needs Java 17.*apt-get install"),
        managed_zookeeper(tmp_path / "data"),
    ):
        pass
    assert not (tmp_path / "data").exists()
