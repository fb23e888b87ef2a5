"""A ZooKeeper server as a child process, from the jars that PySpark installs.

with managed_zookeeper() as server:          # or `async with`
    ZookeeperClient(server.address, …)

It listens on this machine only, keeps its data in a temporary folder unless told otherwise, and
ends with this process, however that ends.
"""

import asyncio
import contextlib
import fcntl
import importlib.util
import logging
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

import msgspec

from orderwire.aio.addresses import is_loopback, join_address
from orderwire.aio.discovery_tls import Credentials
from orderwire.kernel import NS_PER_MS, NS_PER_S, LocalProtocolError
from orderwire.kernel.java import find_java

_LOG = logging.getLogger(__name__)

JARS = (
    "zookeeper-3",
    "zookeeper-jute-",
    "metrics-core-",
    "snappy-java-",
    "slf4j-api-",
    "log4j-slf4j2-impl-",
    "log4j-api-",
    "log4j-core-",
)
"""How the files begin that the server needs, of the hundreds that Spark installs."""
TLS_JARS = (
    "netty-buffer-",
    "netty-codec-4",
    "netty-codec-base-",
    "netty-common-",
    "netty-handler-4",
    "netty-resolver-4",
    "netty-transport-4",
    "netty-transport-classes-epoll-",
    "netty-transport-native-unix-common-",
)
"""And what it needs for TLS."""
ATTEMPTS_MAX = 5
"""Free ports tried, should one be taken in the moment between being free and being bound."""
_PROBE_S = 0.05
_PROBE_BYTES_MAX = 8_192
_LOG_CHARS_SHOWN = 2_000

_LOGGING = """
status = error
appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = zookeeper.log
appender.file.filePattern = zookeeper.log.%i
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{ISO8601} %-5p %c{1}: %m%n
appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = 1MB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = 2
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
"""
"""Warnings and errors go to a file of bounded size in the server's folder."""

_WATCH = """
read -r word
[ "$word" = done ] && exit 0
kill -9 "$1" 2>/dev/null
[ -z "$2" ] || { sleep 0.2; rm -rf -- "$2"; }
"""
"""Waits for the end of its input, which is the end of the process that holds the other side."""


class ZookeeperDidNotStart(OSError):
    """The process ended, or did not serve in time; the message carries what it wrote."""


class ZookeeperTls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PEM files of a server that takes TLS alone, from clients with a certificate of this CA."""

    cert: Path
    key: Path
    """In PKCS #8, unencrypted: `BEGIN PRIVATE KEY`."""
    ca: Path

    def __post_init__(self) -> None:
        for path in (self.cert, self.key, self.ca):
            if not path.is_file():
                raise LocalProtocolError(f"TLS of ZooKeeper: there is no file {path}")


class ZookeeperServerSettings(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True
):
    """Where a managed server listens, and its limits.  Raises LocalProtocolError."""

    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one; the server keeps it when it is started again."""
    insecure: bool = False
    """Listen beyond this machine, though nothing is encrypted and nobody authenticated."""
    tls: ZookeeperTls | None = None
    """Listen with mutual TLS, and without it nowhere."""
    tick_ms: int = 500
    """Sessions end at a multiple of it."""
    session_ms_min: int = 1_000
    session_ms_max: int = 60_000
    """What clients may ask for as their sessions' length; others get the nearest."""
    connections_max: int = 4_096
    """In total, and of one address: ZooKeeper's own limit of 60 is less than a group of ours."""
    heap_mib: int = 64
    snapshots_kept: int = 3
    """Older ones are deleted every hour, and the logs before them."""
    snapshot_transactions: int = 10_000
    """A snapshot and a new log after about so many."""
    log_kib: int = 1_024
    """By how much a log grows at a time; ZooKeeper's own 64 MiB are too much for small data."""
    start_ns: int = 60 * NS_PER_S
    stop_ns: int = 10 * NS_PER_S

    def __post_init__(self) -> None:
        if not (is_loopback(self.host) or self.insecure or self.tls is not None):
            raise LocalProtocolError(
                f"{self.host} is reachable from other machines, and without TLS a managed ZooKeeper"
                " neither encrypts nor authenticates: listen on 127.0.0.1, give it tls, or say"
                " insecure if you trust this network"
            )
        if not 0 < self.tick_ms <= self.session_ms_min <= self.session_ms_max:
            raise LocalProtocolError(
                f"tick_ms={self.tick_ms}, session_ms_min={self.session_ms_min} and"
                f" session_ms_max={self.session_ms_max} must be positive and ascend"
            )


def managed_zookeeper(
    data: Path | None = None, settings: ZookeeperServerSettings | None = None
) -> "ManagedZookeeper":
    """Return a server that runs while it is in use, by `with` or `async with`.

    `data` is kept; without it the server has a temporary folder.
    """
    return ManagedZookeeper(data, settings or ZookeeperServerSettings())


class ManagedZookeeper:
    """One ZooKeeper server of this process's own."""

    def __init__(self, data: Path | None, settings: ZookeeperServerSettings) -> None:
        self.settings = settings
        self._given = data
        self._data: Path | None = None
        self._port = settings.port
        self._probe: ssl.SSLContext | None = None
        """How the server is asked whether it serves, with TLS."""
        if settings.tls is not None:
            files = settings.tls
            self._probe = Credentials.load(cert=files.cert, key=files.key, ca=files.ca).client
        self._java: subprocess.Popen[bytes] | None = None
        self._watcher: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """HOST:PORT it listens on, once it has started."""
        return join_address(self.settings.host, self._port)

    @property
    def data(self) -> Path:
        """Its folder: what it stores, its configuration and `zookeeper.log`."""
        assert self._data is not None, "the server has not started"
        return self._data

    @property
    def pid(self) -> int:
        """Its process id, while it runs."""
        assert self._java is not None, "the server does not run"
        return self._java.pid

    @property
    def is_running(self) -> bool:
        """Whether it has started and not ended."""
        return self._java is not None and self._java.poll() is None

    def start(self) -> None:
        """Start and wait until it serves; again after `kill`, over the same data and port.

        Raises JavaMissingError, LocalProtocolError, and OSError: ZookeeperDidNotStart, the port
        or the data are in use.
        """
        if self._java is not None:
            raise LocalProtocolError(f"the ZooKeeper at {self.address} has been started already")
        java, _ = find_java("ZooKeeper")
        jars = _jars(JARS + (TLS_JARS if self.settings.tls is not None else ()))
        if self._data is None and self._given is None:
            self._data = Path(tempfile.mkdtemp(prefix="orderwire-zookeeper-"))
        elif self._data is None:
            assert self._given is not None
            self._given.mkdir(parents=True, exist_ok=True)
            self._data = self._given.resolve()
        try:
            for attempt in range(1, ATTEMPTS_MAX + 1):
                try:
                    self._launch(java, jars)
                    return
                except ZookeeperDidNotStart as error:
                    lost_port = "BindException" in str(error) and self.settings.port == 0
                    if attempt == ATTEMPTS_MAX or not lost_port:
                        raise
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End it, and remove its folder if that is a temporary one."""
        self._end(kill=False)
        if self._given is None and self._data is not None:
            shutil.rmtree(self._data, ignore_errors=True)
            self._data = None

    def kill(self) -> None:
        """End it as a crash would; the data stay, for `start` to find them."""
        self._end(kill=True)

    def _launch(self, program: str, jars: list[Path]) -> None:
        settings, data = self.settings, self.data
        with contextlib.ExitStack() as stack:
            port = stack.enter_context(_held(settings.host, self._port))
            lock = stack.enter_context(_locked(data))
            port_number = port.getsockname()[1]
            if sys.platform != "linux":  # Others let nobody listen where a socket is bound.
                port.close()
            config = data / "zookeeper.cfg"
            tls: dict[str, object] = {}
            if settings.tls is not None:
                tls = _tls_configuration(settings.tls, data, port_number)
            config.write_text(_configuration(settings, data, port_number, tls))
            (data / "logging.properties").write_text(_LOGGING)
            for old in data.glob("zookeeper.log*"):
                old.unlink()
            order = [program, f"-Xmx{settings.heap_mib}m", "-XX:+UseSerialGC", "-Xshare:auto"]
            order += ["-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-XX:+ExitOnOutOfMemoryError"]
            order += [f"-Dzookeeper.preAllocSize={settings.log_kib}"]
            order += ["-Dlog4j2.configurationFile=logging.properties"]
            order += [f"-Dzookeeper.snapCount={settings.snapshot_transactions}"]
            order += ["-Dzookeeper.jmx.log4j.disable=true", "-cp", os.pathsep.join(map(str, jars))]
            order += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config)]
            written = stack.enter_context((data / "zookeeper.out").open("wb"))
            self._java = subprocess.Popen(
                order,
                stdin=subprocess.DEVNULL,
                stdout=written,
                stderr=subprocess.STDOUT,
                cwd=data,
                start_new_session=True,
                pass_fds=(lock,),  # It is the server that holds the lock.
                env={**os.environ, "LC_ALL": "C.UTF-8"},  # For folders named beyond ASCII.
            )
            self._watch()
            try:
                self._wait(port_number)
            except BaseException:
                self._end(kill=True)
                raise
        self._port = port_number

    def _watch(self) -> None:
        """See to it that the server ends with this process."""
        temporary = "" if self._given is not None else str(self.data)
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH, "sh", str(self.pid), temporary],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _wait(self, port: int) -> None:
        """Return when it serves.  Raises ZookeeperDidNotStart."""
        assert self._java is not None
        ours = f"dataDir={self.data}".encode()
        end = time.monotonic() + self.settings.start_ns / NS_PER_S
        while time.monotonic() < end:
            status = self._java.poll()
            if status is not None:
                raise ZookeeperDidNotStart(f"ZooKeeper ended with status {status}: {self.said()}")
            if ours in _asked(self.settings.host, port, self._probe):
                return
            time.sleep(_PROBE_S)
        raise ZookeeperDidNotStart(
            f"ZooKeeper does not serve after {self.settings.start_ns // NS_PER_MS} ms:"
            f" {self.said()}"
        )

    def said(self) -> str:
        """Return the end of what it wrote since it was started last."""
        files = [self.data / name for name in ("zookeeper.out", "zookeeper.log")]
        said = "\n".join(file.read_text(errors="replace") for file in files if file.exists())
        return said.strip()[-_LOG_CHARS_SHOWN:] or "it wrote nothing"

    def _end(self, *, kill: bool) -> None:
        java, self._java = self._java, None
        watcher, self._watcher = self._watcher, None
        if watcher is not None:  # First: the number of a process that has ended may be another's.
            with contextlib.suppress(OSError):
                watcher.communicate(b"done\n")
        if java is None:
            return
        if not kill:
            java.terminate()
            try:
                java.wait(self.settings.stop_ns / NS_PER_S)
                return
            except subprocess.TimeoutExpired:
                _LOG.warning("ZooKeeper %d does not end: it is killed", java.pid)
        java.kill()
        java.wait()

    def __enter__(self) -> "ManagedZookeeper":
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> "ManagedZookeeper":
        starting = asyncio.ensure_future(asyncio.to_thread(self.start))
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await asyncio.wait([starting])
            self.stop()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await asyncio.to_thread(self.stop)


def _jars(begins: tuple[str, ...]) -> list[Path]:
    """Return the files to run.  Raises LocalProtocolError when PySpark is not whole."""
    found = importlib.util.find_spec("pyspark")
    places = [] if found is None else list(found.submodule_search_locations or ())
    jars: list[Path] = []
    for begin in begins:
        named = [jar for place in places for jar in Path(place, "jars").glob(f"{begin}*.jar")]
        if not named:
            raise LocalProtocolError(
                f"no {begin}*.jar in PySpark's folder: ZooKeeper runs from the jars that"
                " `pip install pyspark` brings (not those of pyspark-client)"
            )
        jars.append(max(named))
    return jars


def _tls_configuration(tls: ZookeeperTls, data: Path, port: int) -> dict[str, object]:
    """Return ZooKeeper's settings for TLS; it wants certificate and key in one file."""
    both = data / "server.pem"
    descriptor = os.open(both, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(tls.key.read_bytes() + b"\n" + tls.cert.read_bytes())
    return {
        "secureClientPort": port,
        "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
        "ssl.keyStore.location": both,
        "ssl.keyStore.type": "PEM",
        "ssl.trustStore.location": tls.ca.resolve(),
        "ssl.trustStore.type": "PEM",
        "ssl.clientAuth": "need",
        "ssl.hostnameVerification": "false",
        "ssl.protocol": "TLSv1.3",
        "ssl.enabledProtocols": "TLSv1.3,TLSv1.2",
    }


def _configuration(
    settings: ZookeeperServerSettings, data: Path, port: int, tls: dict[str, object]
) -> str:
    """Return ZooKeeper's own settings.  Of its four-letter words only `conf` is answered."""
    ports = tls or {"clientPort": port}
    where = "secureClientPortAddress" if tls else "clientPortAddress"
    lines: dict[str, object] = {
        "tickTime": settings.tick_ms,
        "dataDir": data,
        where: settings.host,
        **ports,
        "maxClientCnxns": settings.connections_max,
        "maxCnxns": settings.connections_max,
        "minSessionTimeout": settings.session_ms_min,
        "maxSessionTimeout": settings.session_ms_max,
        "autopurge.snapRetainCount": settings.snapshots_kept,
        "autopurge.purgeInterval": 1,
        "admin.enableServer": "false",
        "4lw.commands.whitelist": "conf",
    }
    return "".join(f"{name}={_property(str(value))}\n" for name, value in lines.items())


def _property(text: str) -> str:
    """Write a value as Java reads it from a file of properties."""
    units = text.encode("utf-16-be")
    codes = [int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2)]
    plain = [0x20 < code < 0x7F and chr(code) not in "\\=:#!" for code in codes]
    return "".join(
        chr(code) if is_plain else f"\\u{code:04x}"
        for code, is_plain in zip(codes, plain, strict=True)
    )


def _held(host: str, port: int) -> socket.socket:
    """Bind a port without listening: on Linux it is nobody else's until the server listens."""
    family, _, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    held = socket.socket(family, socket.SOCK_STREAM)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(where)
    except OSError as error:
        held.close()
        raise OSError(error.errno, f"{join_address(host, port)}: {error.strerror}") from None
    return held


@contextlib.contextmanager
def _locked(data: Path) -> Iterator[int]:
    """Lock the folder: ZooKeeper itself lets two servers ruin each other's logs."""
    lock = os.open(data / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield lock
    except BlockingIOError:
        raise OSError(f"{data} is the folder of a ZooKeeper that runs") from None
    finally:
        os.close(lock)


def _asked(host: str, port: int, tls: ssl.SSLContext | None) -> bytes:
    """Return what the server says of its configuration; nothing when there is no answer."""
    reply = b""
    try:
        with contextlib.ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((host, port), timeout=1))
            if tls is not None:
                connection = stack.enter_context(tls.wrap_socket(connection))
            connection.sendall(b"conf")
            while len(reply) < _PROBE_BYTES_MAX:
                piece = connection.recv(_PROBE_BYTES_MAX)
                if not piece:
                    break
                reply += piece
    except OSError:
        return b""
    return reply
