"""A cluster that asks: users and rules of one broker hold at all, and brokers prove themselves."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificates import Authority
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from orderwire.aio.cluster_process import ClusterProcess
from orderwire.aio.cluster_status import ask_status
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.zookeeper_client import ZookeeperClient
from orderwire.broker.coordination.layout import USERS
from orderwire.broker.replication.settings import Mode
from orderwire.kernel import OrderwireError

pytestmark = pytest.mark.interop

SECONDS_MAX = 60.0
MECHANISM = "SCRAM-SHA-256"


class Guarded:
    """Three brokers over TLS, inside and outside."""

    def __init__(self, cluster: ClusterProcess, authority: Authority) -> None:
        self.cluster = cluster
        self.authority = authority

    def settings(self, user: str, password: str, broker: int | None = None) -> dict[str, Any]:
        where = self.cluster.bootstrap
        if broker is not None:
            where = self.cluster.brokers[broker].address
        return {
            "bootstrap.servers": where,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.authority.ca),
            "sasl.mechanism": MECHANISM,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder: Path = tmp_path_factory.mktemp("guarded-cluster")
    authority = Authority(folder, "cluster")
    cert, key = authority.issue("broker")
    users = folder / "users"
    users.touch(0o600)
    users.write_text("root=toor-toor\n")
    options = [f"--tls-cert={cert}", f"--tls-key={key}", f"--users={users}", "--authorize"]
    options += [f"--sasl={MECHANISM}", "--super-user=User:root"]
    options += [f"--internal-cert={cert}", f"--internal-key={key}"]
    options += [f"--internal-ca={authority.ca}"]
    with ClusterProcess.start(folder / "cluster", *options, mode=Mode.ACTIVE_ACTIVE) as cluster:
        yield Guarded(cluster, authority)
        for broker in cluster.brokers:
            assert "Traceback" not in broker.log.read_text()


def settle(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(SECONDS_MAX) for future in futures.values()]


def write(settings: dict[str, Any], topic: str) -> KafkaError | None:
    said: list[KafkaError | None] = []
    producer = Producer({**settings, "acks": "all", "message.timeout.ms": 30_000})
    producer.produce(topic, b"x", on_delivery=lambda error, _: said.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    return said[0]


def test_users_and_rules_of_one_broker_hold_at_all(guarded: Guarded) -> None:
    root = AdminClient(guarded.settings("root", "toor-toor", broker=0))
    settle(root.create_topics([NewTopic("guarded", 1, 3)]))
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4_096)
    settle(
        root.alter_user_scram_credentials([UserScramCredentialUpsertion("ann", info, b"secret")])
    )
    until = time.monotonic() + SECONDS_MAX
    for broker in range(3):
        while True:  # told by a watch
            try:
                anns = AdminClient(guarded.settings("ann", "secret", broker))
                assert anns.list_topics(timeout=5).topics == {}
                break
            except KafkaException:
                assert time.monotonic() < until
    refused = write(guarded.settings("ann", "secret"), "guarded")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    rule = AclBinding(
        ResourceType.TOPIC,
        "guarded",
        ResourcePatternType.LITERAL,
        "User:ann",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    roots = AdminClient(guarded.settings("root", "toor-toor", broker=2))
    settle(roots.create_acls([rule]))
    while write(guarded.settings("ann", "secret"), "guarded") is not None:
        assert time.monotonic() < until


def test_brokers_show_certificates_to_each_other(guarded: Guarded, tmp_path: Path) -> None:
    """Replication went through it above; who has no certificate of the CA gets no answer."""
    internal = guarded.cluster.brokers[0].internal
    assert internal is not None
    told = asyncio.run(ask_status(internal, guarded.authority.credentials("operator")))
    assert told["broker"] == 0
    stranger: Credentials = Authority(tmp_path, "other").credentials("stranger")
    for credentials in (None, stranger):
        with pytest.raises((OSError, TimeoutError, OrderwireError)):
            asyncio.run(ask_status(internal, credentials))


def test_a_restarted_broker_does_not_set_users_again_who_are_known(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("anna=secret\n")
    users.chmod(0o600)
    options = (f"--sasl={MECHANISM}", f"--users={users}")
    with ClusterProcess.start(tmp_path / "cluster", *options) as cluster:

        def version() -> int:
            async def read() -> int:
                async with ZookeeperClient(cluster.zookeeper) as client:
                    return (await client.get(f"{USERS}/anna")).version

            return asyncio.run(read())

        before = version()
        cluster.brokers[1].kill()
        cluster.restart(1)
        assert version() == before
        users.write_text("anna=another\n")
        cluster.brokers[1].kill()
        cluster.restart(1)
        assert version() == before + 1
        cluster.brokers[2].kill()
        cluster.restart(2)
        assert version() == before + 1, "the first has told it already"
