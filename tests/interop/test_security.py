"""TLS, SASL and ACLs with real clients: who may, and what strangers hear."""

import asyncio
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from certificates import Authority
from click.testing import CliRunner, Result
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kafka import KafkaConsumer, KafkaProducer

from orderwire.aio.broker_process import BrokerProcess
from orderwire.cli.main import main

pytestmark = pytest.mark.interop

SECONDS_MAX = 30.0
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
TOPIC = "guarded"


class Guarded:
    """A broker over TLS that asks everybody, and its CA."""

    def __init__(self, process: BrokerProcess, ca: Path) -> None:
        self.process = process
        self.ca = ca

    def settings(
        self, user: str, password: str, mechanism: str = "SCRAM-SHA-256"
    ) -> dict[str, Any]:
        """For librdkafka."""
        return {
            "bootstrap.servers": self.process.address,
            "security.protocol": "SASL_SSL",
            "ssl.ca.location": str(self.ca),
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": password,
            "log_level": 0,
        }

    def admin(self) -> AdminClient:
        return AdminClient(self.settings("root", "toor-toor"))


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    authority = Authority(folder, "cluster")
    cert, key = authority.issue("broker")
    users = folder / "users"
    users.touch(0o600)
    users.write_text("# people\nroot=toor-toor\nann=anns secret\nbob=bobs=secret\n")
    options = [f"--tls-cert={cert}", f"--tls-key={key}", f"--users={users}", "--authorize"]
    options += [f"--sasl={each}" for each in MECHANISMS]
    options += ["--super-user=User:root", "--partitions=1"]
    with BrokerProcess.start(folder / "data", *options) as process:
        found = Guarded(process, authority.ca)
        admin = found.admin()
        settle(admin.create_topics([NewTopic(TOPIC, 1, 1), NewTopic("hidden", 1, 1)]))
        rules = [
            rule(TOPIC, "User:ann", AclOperation.WRITE),
            rule(TOPIC, "User:ann", AclOperation.READ),
            rule("ann-", "User:ann", AclOperation.READ, ResourceType.GROUP, prefixed=True),
        ]
        settle(admin.create_acls(rules))
        yield found
    assert "Traceback" not in process.log.read_text()


def settle(futures: dict[Any, Any]) -> list[Any]:
    return [future.result(SECONDS_MAX) for future in futures.values()]


def rule(
    name: str,
    who: str,
    operation: AclOperation,
    kind: ResourceType = ResourceType.TOPIC,
    *,
    prefixed: bool = False,
    permission: AclPermissionType = AclPermissionType.ALLOW,
) -> AclBinding:
    pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
    return AclBinding(kind, name, pattern, who, "*", operation, permission)


def write(settings: dict[str, Any], topic: str, value: bytes) -> KafkaError | None:
    """Produce one message; return what librdkafka says of it."""
    said: list[KafkaError | None] = []
    producer = Producer({**settings, "message.timeout.ms": 8_000})
    producer.produce(topic, value, on_delivery=lambda error, _: said.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    return said[0]


def read(settings: dict[str, Any], group: str, topic: str, wanted: int) -> list[bytes]:
    """Read as a member of a group.  Raises KafkaException."""
    consumer = Consumer({**settings, "group.id": group, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes] = []
    try:
        while len(found) < wanted:
            message = consumer.poll(SECONDS_MAX)
            assert message is not None, "no message in time"
            if message.error():
                raise KafkaException(message.error())
            found.append(message.value())
    finally:
        consumer.close()
    return found


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_writes_and_reads_as_somebody(guarded: Guarded, mechanism: str) -> None:
    settings = guarded.settings("ann", "anns secret", mechanism)
    value = f"by {mechanism}".encode() * 40_000  # several TLS records, and a file slice
    assert write({**settings, "message.max.bytes": 2_000_000}, TOPIC, value) is None
    found = read(settings, f"ann-{mechanism}", TOPIC, 1)
    while value not in found:
        found += read(settings, f"ann-{mechanism}", TOPIC, 1)


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize(("user", "password"), [("ann", "bobs=secret"), ("eve", "anns secret")])
def test_wrong_credentials_get_the_protocols_error_and_nothing_else(
    guarded: Guarded, mechanism: str, user: str, password: str
) -> None:
    errors: list[KafkaError] = []
    settings = guarded.settings(user, password, mechanism)
    client = AdminClient({**settings, "error_cb": errors.append})
    end = time.monotonic() + SECONDS_MAX
    while KafkaError._AUTHENTICATION not in [error.code() for error in errors]:
        assert time.monotonic() < end, errors
        with pytest.raises(KafkaException):
            client.list_topics(timeout=3.0)
        client.poll(0.1)
    said = " ".join(error.str() for error in errors)
    assert "no such user, or another password" in said


def test_who_says_nothing_hears_nothing(guarded: Guarded) -> None:
    """Metadata before a login closes the connection; without TLS there is not even that."""
    host, port = guarded.process.address.rsplit(":", 1)
    context = ssl.create_default_context(cafile=str(guarded.ca))
    asked = bytes.fromhex("0003 0001 00000007 0003 657665 ffffffff")  # Metadata v1, all topics
    metadata = len(asked).to_bytes(4, "big") + asked
    with socket.create_connection((host, int(port)), 10) as plain:
        plain.sendall(metadata)
        assert not _rest(plain).startswith(b"\x00\x00")
    with (
        socket.create_connection((host, int(port)), 10) as plain,
        context.wrap_socket(plain, server_hostname="127.0.0.1") as encrypted,
    ):
        encrypted.sendall(metadata)
        assert _rest(encrypted) == b""


def _rest(connection: socket.socket) -> bytes:
    data = b""
    try:
        while piece := connection.recv(4_096):
            data += piece
    except (ConnectionError, ssl.SSLError):
        pass
    return data


def test_a_user_sees_and_does_only_what_rules_allow(guarded: Guarded) -> None:
    ann, bob = guarded.settings("ann", "anns secret"), guarded.settings("bob", "bobs=secret")
    anns = AdminClient(ann)
    assert set(anns.list_topics(timeout=SECONDS_MAX).topics) == {TOPIC}
    assert AdminClient(bob).list_topics(timeout=SECONDS_MAX).topics == {}
    refused = write(bob, TOPIC, b"no")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert write(ann, TOPIC, b"yes") is None
    with pytest.raises(KafkaException) as failed:
        read(ann, "bobs-group", TOPIC, 1)
    assert failed.value.args[0].code() == KafkaError.GROUP_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as failed:
        settle(anns.create_topics([NewTopic("mine", 1, 1)]))
    assert failed.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    with pytest.raises(KafkaException) as failed:
        settle(anns.delete_topics([TOPIC]))
    assert failed.value.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED


def test_a_topic_that_is_not_there_is_not_made_by_who_may_not(guarded: Guarded) -> None:
    ann = guarded.settings("ann", "anns secret")
    refused = write(ann, "newtopic", b"no")
    assert refused is not None
    assert refused.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED
    assert "newtopic" not in guarded.admin().list_topics(timeout=SECONDS_MAX).topics


def test_rules_are_added_found_and_removed(guarded: Guarded) -> None:
    admin = guarded.admin()
    bob = guarded.settings("bob", "bobs=secret")
    allow = rule("for-", "User:bob", AclOperation.ALL, prefixed=True)
    deny = rule("for-nobody", "User:bob", AclOperation.WRITE, permission=AclPermissionType.DENY)
    settle(admin.create_topics([NewTopic("for-bob", 1, 1), NewTopic("for-nobody", 1, 1)]))
    assert write(bob, "for-bob", b"no") is not None
    settle(admin.create_acls([allow, deny]))
    assert write(bob, "for-bob", b"yes") is None
    assert write(bob, "for-nobody", b"no") is not None
    wanted = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        "User:bob",
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    found = admin.describe_acls(wanted).result(SECONDS_MAX)
    assert {one.name for one in found} == {"for-", "for-nobody"}
    assert len(settle(admin.delete_acls([wanted]))[0]) == 2
    assert admin.describe_acls(wanted).result(SECONDS_MAX) == []
    assert write(bob, "for-bob", b"no") is not None
    bobs = AdminClient(bob)
    with pytest.raises(KafkaException) as failed:
        settle(bobs.create_acls([allow]))
    assert failed.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


def test_users_are_added_changed_and_removed(guarded: Guarded) -> None:
    admin = guarded.admin()

    def can_log_in(password: str, mechanism: str) -> bool:
        errors: list[KafkaError] = []
        settings = guarded.settings("carl", password, mechanism)
        client = AdminClient({**settings, "error_cb": errors.append})
        end = time.monotonic() + SECONDS_MAX
        while KafkaError._AUTHENTICATION not in [error.code() for error in errors]:
            try:
                client.list_topics(timeout=2.0)
            except KafkaException:  # refused, or not heard of yet
                assert time.monotonic() < end, errors
                client.poll(0.1)
            else:
                return True
        return False

    def set_password(password: str) -> None:
        info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_512, 5_000)
        change = UserScramCredentialUpsertion("carl", info, password.encode())
        settle(admin.alter_user_scram_credentials([change]))

    assert not can_log_in("first", "SCRAM-SHA-512")
    set_password("first")
    assert can_log_in("first", "SCRAM-SHA-512")
    assert can_log_in("first", "PLAIN")
    assert not can_log_in("first", "SCRAM-SHA-256")
    set_password("second")
    assert not can_log_in("first", "PLAIN")
    assert can_log_in("second", "SCRAM-SHA-512")
    told = settle(admin.describe_user_scram_credentials(["carl"]))[0]
    assert [(one.mechanism, one.iterations) for one in told.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_512, 5_000)
    ]
    deletion = UserScramCredentialDeletion("carl", ScramMechanism.SCRAM_SHA_512)
    settle(admin.alter_user_scram_credentials([deletion]))
    assert not can_log_in("second", "SCRAM-SHA-512")
    anns = AdminClient(guarded.settings("ann", "anns secret"))
    with pytest.raises(KafkaException) as failed:
        settle(anns.alter_user_scram_credentials([deletion]))
    assert failed.value.args[0].code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_logs_in(guarded: Guarded, mechanism: str) -> None:
    settings: dict[str, Any] = {
        "bootstrap_servers": guarded.process.address,
        "security_protocol": "SASL_SSL",
        "ssl_cafile": str(guarded.ca),
        "sasl_mechanism": mechanism,
        "sasl_plain_username": "ann",
        "sasl_plain_password": "anns secret",
    }
    value = f"kafka-python {mechanism}".encode()
    with closing(KafkaProducer(**settings)) as producer:
        producer.send(TOPIC, value).get(SECONDS_MAX)
    consumer = KafkaConsumer(
        TOPIC,
        **settings,
        group_id=f"ann-kp-{mechanism}",
        auto_offset_reset="earliest",
        consumer_timeout_ms=int(1000 * SECONDS_MAX),
    )
    with closing(consumer):
        assert any(message.value == value for message in consumer)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_logs_in(guarded: Guarded, mechanism: str) -> None:
    async def both() -> None:
        settings: dict[str, Any] = {
            "bootstrap_servers": guarded.process.address,
            "security_protocol": "SASL_SSL",
            "ssl_context": ssl.create_default_context(cafile=str(guarded.ca)),
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "ann",
            "sasl_plain_password": "anns secret",
        }
        value = f"aiokafka {mechanism}".encode()
        async with AIOKafkaProducer(**settings) as producer:
            await producer.send_and_wait(TOPIC, value)
        consumer = AIOKafkaConsumer(
            TOPIC, **settings, group_id=f"ann-ak-{mechanism}", auto_offset_reset="earliest"
        )
        async with consumer:
            async with asyncio.timeout(SECONDS_MAX):
                async for message in consumer:
                    if message.value == value:
                        return

    asyncio.run(both())


def test_users_and_rules_survive_a_restart(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.touch(0o600)
    users.write_text("root=toor-toor\n")
    options = ["--sasl=SCRAM-SHA-256", "--authorize", "--super-user=User:root"]

    def root(broker: BrokerProcess) -> AdminClient:
        return AdminClient(
            {
                "bootstrap.servers": broker.address,
                "security.protocol": "SASL_PLAINTEXT",
                "sasl.mechanism": "SCRAM-SHA-256",
                "sasl.username": "root",
                "sasl.password": "toor-toor",
            }
        )

    every = AclBindingFilter(
        ResourceType.ANY,
        None,
        ResourcePatternType.ANY,
        None,
        None,
        AclOperation.ANY,
        AclPermissionType.ANY,
    )
    with BrokerProcess.start(tmp_path / "data", *options, f"--users={users}") as broker:
        admin = root(broker)
        settle(admin.create_acls([rule(TOPIC, "User:ann", AclOperation.READ)]))
    with BrokerProcess.start(tmp_path / "data", *options) as broker:
        admin = root(broker)
        assert len(admin.describe_acls(every).result(SECONDS_MAX)) == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sasl=PLAIN"], "sends passwords as they are"),
        (["--authorize"], "--authorize, --users and --super-user go with --sasl"),
        (["--sasl=SCRAM-SHA-256", "--super-user=ann"], "expected User:NAME"),
        (["--tls-cert=/dev/null"], "belong together"),
        (["--listen=0.0.0.0:0", "--sasl=SCRAM-SHA-256"], "both encrypt and authenticate"),
        (["--super-user=User:ann"], "--super-user go with --sasl"),
        (["--internal-cert=/dev/null"], "--internal-cert goes with --zookeeper"),
        (["--history-topic=h"], "--history-topic goes with --zookeeper"),
        (["--partitions=0"], "0 is not in the range"),
    ],
)
def test_options_that_protect_nothing_are_refused(
    tmp_path: Path, options: list[str], said: str
) -> None:
    done = CliRunner().invoke(main, ["broker", "--data", str(tmp_path / "data"), *options])
    assert done.exit_code == 2
    assert said in " ".join(done.output.split())


def test_topics_from_the_shell_are_those_of_a_user(guarded: Guarded, tmp_path: Path) -> None:
    config = tmp_path / "ann"
    config.touch(0o600)

    def called(*order: str, user: str = "ann", given: bytes = b"", **more: str) -> Result:
        told = guarded.settings(user, {"ann": "anns secret", "bob": "bobs=secret"}[user]) | more
        del told["bootstrap.servers"], told["log_level"]
        config.write_text("# TLS\n" + "".join(f"{key}={told[key]}\n" for key in told))
        order = (*order, f"--bootstrap={guarded.process.address}", f"--client-config={config}")
        return CliRunner().invoke(main, ["topic", *order], input=given)

    assert called("write", TOPIC, given=b"from the shell\n").exit_code == 0
    assert b"from the shell\n" in called("read", TOPIC).stdout_bytes
    assert TOPIC in called("list").output
    assert TOPIC not in called("list", user="bob").output
    refused = called("write", TOPIC, user="bob", given=b"x\n")
    assert refused.exit_code == 1
    assert "Topic authorization failed" in refused.output
    wrong = called("list", **{"no.such.setting": "1"})
    assert wrong.exit_code == 2
    assert "no.such.setting" in wrong.output
    config.chmod(0o644)
    assert "chmod 600" in called("list").output


def test_a_users_file_that_others_read_is_refused(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("a=b\n")
    users.chmod(0o644)
    options = ["--sasl=SCRAM-SHA-256", f"--users={users}"]
    done = CliRunner().invoke(main, ["broker", "--data", str(tmp_path / "d"), *options])
    assert done.exit_code == 2
    assert "chmod 600" in done.output
