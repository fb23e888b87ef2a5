"""The text diagram: who did what, in which order, and how one message led to another."""

from msgspec.structs import replace

from orderwire.sim.artifacts import diagram, first_ordered_pair
from orderwire.sim.diagram import chain, explain, space_time
from orderwire.sim.run import simulate
from orderwire.sim.scenarios import SCENARIOS
from orderwire.trace.events import Event, EventKind


class Pen:
    """Writes events by hand."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def note(
        self, time_ms: int, process: int, kind: EventKind, source: int, number: int, **more: object
    ) -> None:
        position = sum(event.process == process for event in self.events)
        self.events.append(
            Event(
                run_id="pen",
                process=process,
                position=position,
                kind=kind,
                time_ns=time_ms * 1_000_000,
                clock_ns=time_ms * 1_000_000,
                source=source,
                number=number,
                **more,  # type: ignore[arg-type]
            )
        )

    def send(self, time_ms: int, source: int, number: int, mask: int) -> None:
        self.note(time_ms, source, EventKind.SEND, source, number, destinations=bytes((mask,)))

    def deliver(self, time_ms: int, process: int, source: int, number: int, arrived: int) -> None:
        self.note(
            time_ms,
            process,
            EventKind.DELIVER,
            source,
            number,
            arrived_ns=arrived * 1_000_000,
        )


def relay() -> Pen:
    """Process 1 answers process 0; at process 2 the answer comes first and waits."""
    pen = Pen()
    pen.send(1, 0, 0, 0b110)
    pen.deliver(2, 1, 0, 0, 2)
    pen.send(3, 1, 0, 0b100)
    pen.deliver(9, 2, 0, 0, 9)
    pen.deliver(9, 2, 1, 0, 4)
    return pen


def test_waiting_is_drawn_at_the_arrival() -> None:
    assert space_time(relay().events) == (
        "P0 ─●a────────────────\n"
        "P1 ────▼a─●b──────────\n"
        "P2 ──────────○b─▼a─▼b─\n"
        "ms  1.000    4.000\n"
        "\n"
        "a = 0/0→1,2  b = 1/0→2\n"
        "● sent  ○ arrived, waits  ▼ delivered\n"
    )


def test_a_window_and_some_messages_can_be_chosen() -> None:
    only = space_time(relay().events, messages={(1, 0)}, first_ns=2_000_000)
    assert only.splitlines()[:2] == ["P1 ─●a───────", "P2 ────○a─▼a─"]
    assert space_time(relay().events, first_ns=10**9) == "nothing happened in this window\n"


def test_long_windows_are_cut_into_strips() -> None:
    run = simulate(SCENARIOS["s000-small"], 1)
    drawing = space_time(run.events, columns=80)
    assert max(map(len, drawing.splitlines())) <= 80
    assert sum(line.startswith("P0 ") for line in drawing.splitlines()) > 3
    assert drawing.splitlines()[-1].startswith("… and ")


def test_chain_finds_how_one_message_led_to_another() -> None:
    pen = relay()
    pen.send(10, 2, 0, 0b001)
    pen.deliver(12, 0, 2, 0, 12)
    assert chain(pen.events, (0, 0), (2, 0)) == [(0, 0), (2, 0)]
    assert chain(pen.events, (0, 0), (1, 0)) == [(0, 0), (1, 0)]
    assert chain(pen.events, (2, 0), (0, 0)) == []


def test_chain_through_a_third_process() -> None:
    pen = Pen()
    pen.send(1, 0, 0, 0b1010)
    pen.deliver(2, 1, 0, 0, 2)
    pen.send(3, 1, 0, 0b0100)
    pen.deliver(4, 2, 1, 0, 4)
    pen.send(5, 2, 0, 0b1000)
    pen.deliver(6, 3, 2, 0, 6)
    pen.deliver(7, 3, 0, 0, 7)
    assert chain(pen.events, (0, 0), (2, 0)) == [(0, 0), (1, 0), (2, 0)]
    drawing = explain(pen.events, (0, 0), (2, 0))
    assert [line[:2] for line in drawing.splitlines()[:4]] == ["P0", "P1", "P2", "P3"]


def test_a_run_of_the_control_group_is_drawn_with_its_violation() -> None:
    run = simulate(replace(SCENARIOS["s000-small"], algorithm="unordered"), 1)
    pair = first_ordered_pair(run)
    assert pair is not None
    assert pair.source != pair.other_source
    text = diagram(run)
    assert text.startswith("causal-order: message ")
    assert f"{pair.source}/{pair.number}→" in text
