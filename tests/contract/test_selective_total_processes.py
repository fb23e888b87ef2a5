"""Topics in one total order between processes that are killed, with a real ZooKeeper.  [S003]"""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from total_topic_member import TOPICS
from view_cluster import QUICK, Process, rest, start_relay, until

from orderwire.aio.zookeeper_server import managed_zookeeper
from orderwire.participant.topics import Pattern
from orderwire.verify.audit import audit
from orderwire.verify.selective_total import Logs
from orderwire.verify.source import open_source
from orderwire.verify.verdict import Verdict

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]

MEMBER = Path(__file__).parent.parent / "support" / "total_topic_member.py"
READS = {"ana": "book/**", "ben": "book/left/*", "carl": "book/*/right"}


class Books:
    """Participants, each a process that reads some of the topics and writes to all."""

    def __init__(self, zookeeper: str, folder: Path) -> None:
        self.zookeeper, self.folder = zookeeper, folder
        self.relays = [start_relay(zookeeper, "books")]
        self.members: dict[str, Process] = {}

    def start(self, name: str, reads: str) -> Process:
        log = self.folder / f"{name}.jsonl"
        trace = self.folder / "trace"
        command = [sys.executable, str(MEMBER), self.zookeeper, name, str(log), reads, str(trace)]
        self.members[name] = member = Process(command, log)
        return member

    def start_all(self) -> list[Process]:
        return [self.start(name, reads) for name, reads in READS.items()]

    def end(self) -> None:
        for process in (*self.members.values(), *self.relays):
            process.end()

    def judge(self, dead: str | None = None) -> None:
        """Who have two messages in common have them in one order; a subset got each, and all."""
        names = [*self.members]
        sent = {
            at: [each["message"] for each in self.members[name].events("written")]
            for at, name in enumerate(names)
        }
        received = {at: self.members[name].delivered() for at, name in enumerate(names)}
        logs = Logs(sent=sent, received=received, destinations={})
        assert all(logs.is_order_preserving(at) for at in received)
        assert all(logs.are_order_equivalent(a, b) for a in received for b in received)
        assert logs.is_acyclic()
        for at, name in enumerate(names):
            assert len(set(received[at])) == len(received[at]), f"{name} had something twice"
            topics = {message.split()[0] for message in received[at]}
            assert topics == _topics(name), name
        founders = [at for at, name in enumerate(names) if name in READS and name != dead]
        report, violations = audit(open_source(self.folder / "trace"))
        assert violations.to_pylist() == []
        runs = {run.run_id: run for run in report.runs}
        assert runs["r/books"].verdict is Verdict.VALID, runs["r/books"].incomplete
        met = self._met()
        everybody = {message for at in founders for message in received[at]}
        for at in founders:
            mine = {each for each in everybody if each.split()[0] in _topics(names[at])}
            # Those of the dead that nobody alive has, and those of writers that did not know of
            # all readers yet, are nobody's.
            early = {message for message in mine if int(message.split()[2]) < met}
            assert mine - set(received[at]) <= early, names[at]

    def _met(self) -> int:
        """The first number that all of them wrote to as many as read the topic at the beginning."""
        numbers = []
        for name in READS:
            for event in self.members[name].events("written"):
                if event["message"].startswith("book/left/right ") and event["members"] == len(
                    READS
                ):
                    numbers.append(int(event["message"].split()[2]))
                    break
        return max(numbers) + 2


def _topics(name: str) -> set[str]:
    """Return the topics that a participant reads."""
    pattern = Pattern(READS.get(name, "book/**"))
    return {topic for topic in TOPICS if pattern.matches(topic)}


@contextmanager
def _books(zookeeper: str, folder: Path) -> Iterator[Books]:
    books = Books(zookeeper, folder)
    try:
        yield books
    finally:
        books.end()


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[str]:
    with managed_zookeeper(settings=QUICK) as server:
        yield server.address


def _busy(member: Process, source: str, more: int = 150) -> None:
    """Wait until a member has been handed so many more of this writer."""

    def count() -> int:
        return sum(f" {source} " in message for message in member.delivered())

    goal = count() + more
    until(lambda: count() >= goal)


def _changes(member: Process) -> list[tuple[str, bool]]:
    return [(event["member"], event["entered"]) for event in member.events("change")]


def test_a_participant_dies_and_another_comes(zookeeper: str, tmp_path: Path) -> None:
    with _books(zookeeper, tmp_path) as books:
        ana, ben, carl = books.start_all()
        for source in READS:
            _busy(ana, source)
        carl.kill()
        until(lambda: ("carl", False) in _changes(ana))
        _busy(ana, "ben")
        dora = books.start("dora", "book/**")
        _busy(ana, "dora")
        _busy(dora, "ana")
        rest(ana, ben, dora)
        assert ("dora", True) in _changes(ana)
        books.judge(dead="carl")


def test_a_relay_dies_and_the_next_takes_over(zookeeper: str, tmp_path: Path) -> None:
    with _books(zookeeper, tmp_path) as books:
        books.relays.append(start_relay(zookeeper, "books"))
        ana, ben, carl = books.start_all()
        for source in READS:
            _busy(ana, source)
        books.relays[0].kill()
        _busy(carl, "ben", 300)
        rest(ana, ben, carl)
        assert _changes(ana)[-1][1], "nobody has left"
        books.judge()


def test_a_participant_that_hangs_is_told_that_it_is_out(zookeeper: str, tmp_path: Path) -> None:
    with _books(zookeeper, tmp_path) as books:
        ana, ben, carl = books.start_all()
        for source in READS:
            _busy(ana, source)
        carl.popen.send_signal(signal.SIGSTOP)
        until(lambda: ("carl", False) in _changes(ana))
        carl.popen.send_signal(signal.SIGCONT)
        until(lambda: bool(carl.events("writer lost") and carl.events("reader lost")))
        for kind in ("writer lost", "reader lost"):
            assert "'carl' is out of group 'books'" in carl.events(kind)[0]["why"]
        _busy(ana, "ben")
        rest(ana, ben)
        books.judge(dead="carl")
