"""Doing it again: recorded inputs give the same indications; a failure names its replay."""

import re
from collections import defaultdict

import msgspec
import pytest
from msgspec.structs import replace

from orderwire.kernel import (
    Input,
    InputsHeader,
    Instant,
    ProcessId,
    write_input,
)
from orderwire.ordering.catalog import ALGORITHMS, Algorithm
from orderwire.ordering.settings import OrderingSettings
from orderwire.ordering.unordered import Unordered
from orderwire.sim.replay import FAMILY, replay_inputs, replay_line
from orderwire.sim.run import simulate
from orderwire.sim.scenarios import SCENARIOS


@pytest.mark.parametrize("algorithm", ["unordered", "fifo", "jang-delta"])
def test_recorded_inputs_give_the_same_indications(algorithm: str) -> None:
    recorded: dict[ProcessId, list[Input]] = defaultdict(list)
    scenario = replace(SCENARIOS["lossy"], algorithm=algorithm)
    run = simulate(scenario, 3, record=lambda me, record: recorded[me].append(record))
    settings = msgspec.Raw(msgspec.json.encode(scenario.settings))
    for me in range(scenario.settings.members):
        header = InputsHeader(family=FAMILY, protocol=algorithm, me=me, settings=settings)
        lines = [write_input(record) for record in (header, *recorded[ProcessId(me)])]
        replayed = replay_inputs(lines)
        assert replayed.malformed == 0
        assert [indication for _, indication in replayed.indications] == [
            indication for _, process, indication in run.indications if process == me
        ]


def test_a_malformed_pdu_is_refused_again() -> None:
    header = InputsHeader(
        family=FAMILY, protocol="unordered", me=0, settings=msgspec.Raw(b'{"members":2}')
    )
    line = b'{"kind":"receive","now":5,"source":1,"data":"AAAA"}'
    assert replay_inputs([write_input(header), line]).malformed == 1


def test_a_command_is_refused_again() -> None:
    header = InputsHeader(
        family=FAMILY, protocol="jang-delta", me=0, settings=msgspec.Raw(b'{"members":2}')
    )
    lines = [
        b'{"kind":"submit","now":5,"command":{"type":"Multicast","payload":"","destinations":%d}}'
        % destinations
        for destinations in (1 << 9, 1 << 1)
    ]
    replayed = replay_inputs([write_input(header), *lines])
    assert (replayed.refused, replayed.sends) == (1, 1)


def test_what_is_no_command_is_named_by_its_line() -> None:
    header = InputsHeader(
        family=FAMILY, protocol="fifo", me=0, settings=msgspec.Raw(b'{"members":2}')
    )
    with pytest.raises(ValueError, match="line 2 is no command of ordering"):
        replay_inputs([write_input(header), b'{"kind":"submit","now":5,"command":{}}'])


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        (b'{"family":"discovery","protocol":"fdp","me":0}', "of family 'discovery'"),
        (b'{"family":"ordering","protocol":"fifo","me":0}', "settings of no ordering domain"),
        (
            b'{"family":"ordering","protocol":"lifo","me":0,"settings":{"members":2}}',
            "no ordering algorithm 'lifo'",
        ),
        (
            b'{"family":"ordering","protocol":"fifo","me":2,"settings":{"members":2}}',
            "process 2 in a group of 2",
        ),
    ],
)
def test_inputs_of_something_else_are_refused(header: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replay_inputs([header])


def test_replay_line_names_command_commit_and_python() -> None:
    assert re.fullmatch(
        r"replay: orderwire sim replay s000-small --seed 17   "
        r"\((commit \w{7}|orderwire [\w.]+), Python 3\.\d+\)",
        replay_line("s000-small", 17),
    )
    run = simulate(replace(SCENARIOS["s000-small"], algorithm="fifo"), 4)
    assert "s000-small --seed 4 --algorithm fifo   (" in run.replay_line
    assert "--algorithm" not in simulate(SCENARIOS["s000-small"], 4).replay_line


class Failing(Unordered):
    def next_deadline(self) -> Instant | None:
        raise AssertionError("our bug")


def test_a_core_that_fails_leaves_the_line_that_replays_it() -> None:
    def create(me: ProcessId, settings: OrderingSettings) -> Failing:
        return Failing(me, settings)

    broken = Algorithm(
        name="failing", summary="", create=create, codec=ALGORITHMS["unordered"].codec
    )
    with pytest.raises(AssertionError, match="our bug") as failure:
        simulate(SCENARIOS["s000-small"], 9, algorithm=broken)
    assert "orderwire sim replay s000-small --seed 9" in failure.value.__notes__[0]
