"""When all has come to rest, nothing is left beside the views either: contacts, doubts, rings."""

import pytest
from discovery_runs import MS, S, domain, drawn_delay

from orderwire.kernel import stream


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_left_over_after_faults(seed: int) -> None:
    """Crashes, farewells, restarts at the same address, a partition and the server's loss."""
    chance = stream(seed, "test/rest")
    world = domain(seed=seed, id_space=16, delay=drawn_delay(seed, MS // 10, 20 * MS))
    names = [f"p{number}" for number in range(10)]
    for name in names:
        world.at(chance.randrange(S), lambda who=name: world.start(who, who.encode()))  # type: ignore[misc]
    world.run(3 * S)
    assert world.faults_at_rest() == []
    gone = chance.sample(names, 4)
    world.crash(gone[0], silent=True)
    world.crash(gone[1])
    world.leave(gone[2])
    world.crash(gone[3], silent=True)
    world.start(gone[3], b"again")
    world.partition({*names[:5]})
    world.server_down()
    world.run(5 * S)
    world.server_up(lost=seed % 2 == 0)
    world.heal()
    world.start("late", b"late")
    world.run(45 * S)
    assert world.faults_at_rest() == []
    assert len(world.admitted()) == 8
