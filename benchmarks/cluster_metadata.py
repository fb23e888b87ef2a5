"""Who leads what, asked of three brokers and of one alone: CPU per request, rate, delay.

Before a broker of a cluster names others as leaders, it hears from them: a client asks as soon as
its connection to a leader breaks.  Clients ask for one topic, or refresh all 200, one or 50 at a
time, each again as soon as it is answered; in a cluster they are spread over its brokers, the first
at one that does not lead the first topic.  With `lanes` each partition has three leaders.  CPU is
that of all brokers together, less what they take at rest.  `--before FOLDER` names the
`src` of another version: its clusters take part in the same rounds.
"""

import contextlib
import os
import selectors
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from struct import unpack_from

import harness
import msgspec
from broker_servers import frame
from confluent_kafka.admin import AdminClient, NewTopic

from orderwire.aio.broker_process import BrokerProcess
from orderwire.aio.cluster_process import ClusterProcess
from orderwire.broker.replication.settings import Mode
from orderwire.broker.wire.apis import ApiKey
from orderwire.broker.wire.generated.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    decode_metadata_response,
    encode_metadata_request,
)

VERSION = 9
TOPICS = 200
ALONE = "alone"
CLUSTERS = {"cluster": Mode.ACTIVE_STANDBY, "lanes": Mode.ACTIVE_ACTIVE_LANES}
PERCENTILES = (50, 99)
TARGETS = {"cpu_over_alone": 2.0}
_RECEIVE_BYTES = 1 << 20
_PATIENCE_S = 60.0
_SETTLE_S = 5.0
"""What topics that are new still take."""
_REST_S = 3.0


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Who asks for what."""

    clients: int
    topics: int
    requests: int
    """Of all clients together."""

    @property
    def name(self) -> str:
        """As the result tells it."""
        clients = f"{self.clients} client{'s' if self.clients > 1 else ''}"
        return f"{clients}, {self.topics} topic{'s' if self.topics > 1 else ''}"


LOADS = (
    Load(clients=1, topics=1, requests=1_000),
    Load(clients=1, topics=TOPICS, requests=200),
    Load(clients=50, topics=1, requests=4_000),
    Load(clients=50, topics=TOPICS, requests=600),
)


class Fleet:
    """Brokers that clients ask."""

    def __init__(self, brokers: Sequence[BrokerProcess]) -> None:
        self._pids = [broker.pid for broker in brokers]
        self.addresses = [broker.address for broker in brokers]
        """By their ids."""
        self.first = 0
        """Which broker the first client asks."""

    def cpu_s(self) -> float:
        """Of all of them."""
        return harness.cpu_s_of(self._pids)

    def connect(self, number: int) -> socket.socket:
        """As this client, to one of them."""
        address = self.addresses[(self.first + number) % len(self.addresses)]
        host, _, port = address.rpartition(":")
        peer = socket.create_connection((host, int(port)), timeout=_PATIENCE_S)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer


class Client:
    """Asks again and again; what it is told is only counted."""

    def __init__(self, peer: socket.socket, request: bytes) -> None:
        self.peer = peer
        self._request = request
        self._have = bytearray()
        self._asked_at = 0

    def ask(self) -> None:
        """Ask, with nothing else under way."""
        self._asked_at = time.perf_counter_ns()
        self.peer.sendall(self._request)

    def read(self) -> bytes | None:
        """Take what has come; returns the whole answer, once it is there."""
        came = self.peer.recv(_RECEIVE_BYTES)
        assert came, "the broker closed the connection"
        have = self._have
        have += came
        if len(have) < 4 or len(have) < 4 + unpack_from(">i", have)[0]:
            return None
        self._have = bytearray()
        return bytes(have)

    @property
    def waited_ms(self) -> float:
        """Since it asked."""
        return (time.perf_counter_ns() - self._asked_at) / 1e6


def topic_names(count: int) -> list[str]:
    """The first so many topics."""
    return [f"topic-{number:03}" for number in range(count)]


def asking(topics: int) -> bytes:
    """A request for the first so many topics."""
    asked = [MetadataRequestTopic(name=name) for name in topic_names(topics)]
    body = encode_metadata_request(MetadataRequest(asked, False), VERSION)
    return frame(ApiKey.METADATA, VERSION, 0, body)


def told(answer: bytes) -> MetadataResponse:
    """What an answer says, behind its length and header."""
    response, _ = decode_metadata_response(memoryview(answer), 9, VERSION)
    return response


def ask_once(fleet: Fleet, topics: int) -> MetadataResponse:
    """What one client is told."""
    with fleet.connect(0) as peer:
        client = Client(peer, asking(topics))
        client.ask()
        while (answer := client.read()) is None:
            pass
    return told(answer)


class Asked(msgspec.Struct, frozen=True):
    """What came of a load."""

    delays_ms: list[float]
    wall_s: float
    cpu_s: float
    """Of the brokers, with what they take at rest."""


def ask(fleet: Fleet, load: Load, requests: int) -> Asked:
    """Have the load's clients ask so often, after each has been answered once."""
    request = asking(load.topics)
    fleet.first = ask_once(fleet, 1).topics[0].partitions[0].leader_id + 1
    with contextlib.ExitStack() as stack:
        selector = stack.enter_context(selectors.DefaultSelector())
        clients = [
            Client(stack.enter_context(fleet.connect(number)), request)
            for number in range(load.clients)
        ]
        for client in clients:
            selector.register(client.peer, selectors.EVENT_READ, client)
        _rounds(selector, clients, len(clients))
        wall, cpu = time.perf_counter(), fleet.cpu_s()
        delays_ms = _rounds(selector, clients, requests)
        wall_s = time.perf_counter() - wall
        time.sleep(0.05)  # until the last slices are accounted for
        return Asked(delays_ms, wall_s, fleet.cpu_s() - cpu)


def _rounds(
    selector: selectors.BaseSelector, clients: Sequence[Client], requests: int
) -> list[float]:
    """All ask at once, and whoever is answered asks again; how long each answer took, in ms."""
    delays: list[float] = []
    for client in clients:
        client.ask()
    left = requests - len(clients)
    while len(delays) < requests:
        ready = selector.select(_PATIENCE_S)
        assert ready, f"{requests - len(delays)} requests were never answered"
        for key, _ in ready:
            client = key.data
            if client.read() is None:
                continue
            delays.append(client.waited_ms)
            if left > 0:
                left -= 1
                client.ask()
    return delays


def at_rest(fleets: Mapping[str, Fleet]) -> dict[str, float]:
    """CPU seconds that each takes in a second without clients."""
    before = {name: fleet.cpu_s() for name, fleet in fleets.items()}
    time.sleep(_REST_S)
    return {name: (fleet.cpu_s() - before[name]) / _REST_S for name, fleet in fleets.items()}


@contextlib.contextmanager
def alone() -> Iterator[Fleet]:
    """One broker without a cluster."""
    with tempfile.TemporaryDirectory() as folder:
        broker = BrokerProcess.start(Path(folder) / "broker", "--flush=none", tied=True)
        try:
            yield Fleet([broker])
        finally:
            broker.stop()


@contextlib.contextmanager
def cluster(mode: Mode, source: Path | None = None) -> Iterator[Fleet]:
    """Three brokers; of another version, if its source is given."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        with _source(source):
            brokers = stack.enter_context(
                ClusterProcess.start(Path(folder), "--flush=none", mode=mode)
            ).brokers
        yield Fleet(brokers)


@contextlib.contextmanager
def _source(source: Path | None) -> Iterator[None]:
    """What is started meanwhile finds its code there."""
    before = os.environ.get("PYTHONPATH")
    if source is not None:
        os.environ["PYTHONPATH"] = str(source.resolve())
    try:
        yield
    finally:
        if source is not None:
            del os.environ["PYTHONPATH"]
            if before is not None:
                os.environ["PYTHONPATH"] = before


def make_topics(fleet: Fleet) -> None:
    """Make the topics, a replica at each broker, and wait until all are led."""
    admin = AdminClient({"bootstrap.servers": ",".join(fleet.addresses), "log_level": 0})
    topics = [NewTopic(name, 1, len(fleet.addresses)) for name in topic_names(TOPICS)]
    for future in admin.create_topics(topics, operation_timeout=_PATIENCE_S).values():
        future.result(_PATIENCE_S)
    until = time.monotonic() + _PATIENCE_S
    while any(
        topic.error_code or topic.partitions[0].error_code
        for topic in ask_once(fleet, TOPICS).topics
    ):
        assert time.monotonic() < until, "topics that nobody leads"
        time.sleep(0.1)


def percentile(delays: list[float], percent: int) -> float:
    """Of these delays."""
    return sorted(delays)[(len(delays) - 1) * percent // 100]


class Results:
    """Every run of every fleet, by load."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, list[harness.Measured]]] = {}
        self.delays: dict[str, dict[str, list[list[float]]]] = {}

    def note(self, load: str, fleet: str, run: harness.Measured, delays: list[float]) -> None:
        """Keep one run."""
        self.runs.setdefault(load, {}).setdefault(fleet, []).append(run)
        self.delays.setdefault(load, {}).setdefault(fleet, []).append(delays)

    def _delay_ms(self, load: str, fleet: str, percent: int) -> list[float]:
        return [percentile(each, percent) for each in self.delays[load][fleet]]

    def of(self, fleet: str) -> dict[str, object]:
        """Medians of a fleet, by load."""
        return {
            load: {
                **msgspec.structs.asdict(harness.summarise(runs[fleet])),
                **{
                    f"p{percent}_ms": round(
                        statistics.median(self._delay_ms(load, fleet, percent)), 3
                    )
                    for percent in PERCENTILES
                },
            }
            for load, runs in self.runs.items()
        }

    def ratios(self, fleet: str, other: str) -> dict[str, float]:
        """Of one fleet over another, the median of the rounds."""
        found: dict[str, float] = {}
        for load, runs in self.runs.items():
            label = f"of {fleet} over {other}, {load}"
            found[f"CPU {label}"] = harness.median_ratio(
                runs[other], runs[fleet], harness.units_per_cpu_s
            )
            for percent in PERCENTILES:
                pairs = zip(
                    self._delay_ms(load, fleet, percent),
                    self._delay_ms(load, other, percent),
                    strict=True,
                )
                found[f"p{percent} {label}"] = round(
                    statistics.median(mine / theirs for mine, theirs in pairs), 3
                )
        return found


def main() -> None:
    parser = harness.arguments(__doc__, repeats=5)
    parser.add_argument("--before", metavar="FOLDER", type=Path, help="src of another version")
    options = parser.parse_args()
    scale = 1 if options.quick else 4
    results = Results()
    with contextlib.ExitStack() as stack:
        fleets = {ALONE: stack.enter_context(alone())}
        for name, mode in CLUSTERS.items():
            fleets[name] = stack.enter_context(cluster(mode))
            if options.before is not None:
                fleets[f"{name} before"] = stack.enter_context(cluster(mode, options.before))
        for fleet in fleets.values():
            make_topics(fleet)
        resting: dict[str, float] = {}
        for load in LOADS:
            time.sleep(_SETTLE_S)
            resting = at_rest(fleets)
            for number in range(options.repeats + 1):
                for name, fleet in fleets.items():
                    requests = load.requests * scale if number else max(load.clients, 50)
                    asked = ask(fleet, load, requests)
                    cpu_s = max(asked.cpu_s - resting[name] * asked.wall_s, 0.0)
                    run = harness.Measured(units=requests, wall_s=asked.wall_s, cpu_s=cpu_s)
                    if number:  # the first round warms up
                        results.note(load.name, name, run, asked.delays_ms)
                    cpu_us = cpu_s / requests * 1e6
                    print(f"{load.name}, {name}: {cpu_us:.0f} µs CPU", file=sys.stderr)
    ratios: dict[str, float] = {}
    for name in fleets:
        if name != ALONE:
            ratios |= results.ratios(name, ALONE)
    for name in CLUSTERS if options.before is not None else ():
        ratios |= results.ratios(name, f"{name} before")
    harness.report(
        "cluster_metadata",
        ours={name: results.of(name) for name in fleets},
        rivals={},
        ratios=ratios,
        repeats=options.repeats,
        as_json=options.json,
        targets=TARGETS,
        at_rest_cpu_ratio={name: round(ratio, 4) for name, ratio in resting.items()},
    )


if __name__ == "__main__":
    main()
