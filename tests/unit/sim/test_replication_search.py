"""The search finds what is wrong, by a shortest history, and visits everything when nothing is."""

from replication_crude import CrudeReplica

from orderwire.broker.replication.effects import Effects
from orderwire.broker.wire.parts import Buffer
from orderwire.kernel import Instant
from orderwire.sim.replication_clients import ProducerSettings
from orderwire.sim.replication_search import SEARCH_SETTINGS, Scope, Search

ONE = (ProducerSettings(batches=(1,)),)


class Hasty(CrudeReplica):
    """Answers before anybody else has it."""

    def produce(
        self, token: int, connection: int, records: Buffer, acks: int, now: Instant
    ) -> Effects:
        return super().produce(token, connection, records, 1, now)


def test_everything_is_visited() -> None:
    found = Search(CrudeReplica, SEARCH_SETTINGS, Scope(producers=ONE)).run()
    assert found.complete
    assert found.violations == {}
    assert found.stuck == 0
    assert 5 < found.states < 500


def test_what_is_wrong_is_found_by_a_short_history() -> None:
    found = Search(Hasty, SEARCH_SETTINGS, Scope(producers=ONE)).run()
    assert found.violations.keys() == {"I1"}
    assert found.violations["I1"][1:] == ["send 0 0"]


def test_the_same_search_finds_the_same() -> None:
    first, second = (
        Search(CrudeReplica, SEARCH_SETTINGS, Scope(producers=ONE, breaks=1, states_max=300)).run()
        for _ in range(2)
    )
    assert first == second
