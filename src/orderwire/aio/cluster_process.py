"""A cluster as child processes: for `orderwire cluster up`, the demo, tests and benchmarks.

with ClusterProcess.start(folder, mode=Mode.ACTIVE_ACTIVE) as cluster:
    Producer({"bootstrap.servers": cluster.bootstrap})
    cluster.brokers[0].kill()
"""

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import TracebackType

from orderwire.aio.broker_process import BrokerDidNotStart, BrokerProcess
from orderwire.aio.cluster_status import ask_status
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.zookeeper_server import (
    ManagedZookeeper,
    ZookeeperServerSettings,
    managed_zookeeper,
)
from orderwire.broker.replication.settings import Mode
from orderwire.kernel import LocalProtocolError

REPLICAS_MAX = 16
_MEET_S = 60.0
"""How long brokers that listen may take to find each other."""
_LOOK_S = 0.02


class ClusterProcess:
    """Brokers 0 … n − 1, and a ZooKeeper server of their own where none is given."""

    def __init__(
        self,
        folder: Path,
        zookeeper: str,
        server: ManagedZookeeper | None,
        options: Sequence[str],
        each: Sequence[Sequence[str]] = (),
        given_up: Event | None = None,
    ) -> None:
        self.zookeeper = zookeeper
        """Address of the ensemble."""
        self.server = server
        """The ZooKeeper server, where it is ours."""
        self.brokers: list[BrokerProcess] = []
        self._folder = folder
        self._options = options
        self._each = each
        self._given_up = given_up

    @classmethod
    def start(
        cls,
        folder: Path,
        *options: str,
        replicas: int = 3,
        mode: Mode = Mode.ACTIVE_STANDBY,
        zookeeper: str | None = None,
        listen: Sequence[str] = (),
        session_ms: int = 6_000,
        each: Sequence[Sequence[str]] = (),
        given_up: Event | None = None,
    ) -> "ClusterProcess":
        """Start it in this folder and wait until every broker listens, and knows the others.

        `options` are further ones of `orderwire broker`; `listen` has an address for each broker,
        by default a free port; `each` has options of one broker alone.  Who sets `given_up`, from
        another thread, ends the start.  Raises BrokerDidNotStart, LocalProtocolError, and OSError
        where ZooKeeper does not start.
        """
        if not 1 <= replicas <= REPLICAS_MAX or len(listen) not in (0, replicas):
            raise LocalProtocolError(
                f"{replicas} replicas and {len(listen)} addresses; expected 1 … {REPLICAS_MAX}, and"
                " as many addresses or none"
            )
        folder.mkdir(parents=True, exist_ok=True)
        server = None
        if zookeeper is None:
            server = managed_zookeeper(folder / "zookeeper", ZookeeperServerSettings())
            server.start()
            zookeeper = server.address
        told = [f"--session-ms={session_ms}", f"--topic-config=orderwire.mode={mode.value}"]
        cluster = cls(folder, zookeeper, server, [*told, *options], each, given_up)
        try:
            with ThreadPoolExecutor(replicas) as starters:
                addresses = listen or ["127.0.0.1:0"] * replicas
                begun = [
                    starters.submit(cluster._start, index, address)
                    for index, address in enumerate(addresses)
                ]
                errors = [each.exception() for each in begun]
                cluster.brokers = [each.result() for each in begun if each.exception() is None]
                for error in errors:
                    if error is not None:
                        raise error
                starters.submit(cluster._wait_until_met).result()
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def _start(self, index: int, listen: str) -> BrokerProcess:
        return BrokerProcess.start(
            self._folder / f"broker-{index}",
            f"--node-id={index}",
            f"--zookeeper={self.zookeeper}",
            *self._options,
            *(self._each[index] if self._each else ()),
            listen=listen,
            tied=True,
            given_up=self._given_up,
        )

    def _wait_until_met(self) -> None:
        """A topic can have a replica at each of them from now on.  Raises BrokerDidNotStart."""
        everybody = set(range(len(self.brokers)))
        end = time.monotonic() + _MEET_S
        for index, broker in enumerate(self.brokers):
            tls = self._internal_tls(index)
            while True:
                try:
                    known = asyncio.run(ask_status(broker.internal, tls))["connected"]
                except (OSError, TimeoutError) as error:
                    known = [str(error)]
                if everybody - {index} <= set(known):
                    break
                given_up = self._given_up is not None and self._given_up.is_set()
                if given_up or time.monotonic() > end:
                    raise BrokerDidNotStart(f"broker {index} has found {known} only: {broker.log}")
                time.sleep(_LOOK_S)

    def _internal_tls(self, index: int) -> Credentials | None:
        """What this broker was told to show to others, if anything."""
        told = dict(
            option.partition("=")[::2]
            for option in (*self._options, *(self._each[index] if self._each else ()))
        )
        if "--internal-cert" not in told:
            return None
        cert, key, ca = (Path(told[f"--internal-{one}"]) for one in ("cert", "key", "ca"))
        return Credentials.load(cert=cert, key=key, ca=ca)

    @property
    def bootstrap(self) -> str:
        """Addresses of all brokers, for clients."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def address(self) -> str:
        """The same, under the name that a broker alone has it."""
        return self.bootstrap

    def restart(self, index: int) -> None:
        """Start a broker again that has ended, over its data and at its address."""
        before = self.brokers[index]
        if before.is_running:
            raise LocalProtocolError(f"broker {index} is running")
        self.brokers[index] = self._start(index, before.address)

    def freeze(self, index: int) -> None:
        """Stop a broker's process where it is, as SIGSTOP does."""
        os.kill(self.brokers[index].pid, signal.SIGSTOP)

    def thaw(self, index: int) -> None:
        """Let it go on."""
        os.kill(self.brokers[index].pid, signal.SIGCONT)

    def stop(self) -> list[int]:
        """End all brokers properly, then ZooKeeper; returns the brokers' exit statuses."""
        for broker in self.brokers:
            if broker.is_running:
                os.kill(broker.pid, signal.SIGCONT)
                broker.ask_to_end()
        statuses = [broker.stop() for broker in self.brokers]
        if self.server is not None:
            self.server.stop()
        return statuses

    def __enter__(self) -> "ClusterProcess":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
