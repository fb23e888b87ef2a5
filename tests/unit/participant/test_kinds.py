"""Members of two kinds in one domain: who is right, and when that is said."""

import asyncio

from virtual_loop import VirtualLoop

from orderwire.discovery.map_codec import encode_map
from orderwire.discovery.maps import Map, ParticipantData
from orderwire.discovery.messages import MapRecord
from orderwire.discovery.summaries import encode_summary, summary_of
from orderwire.participant.kinds import SETTLE_S, Kinds

ANA = ParticipantData("guid", "ana")
WHOLE = MapRecord(1, encode_map(Map.of(ANA)))
SUMMARY = MapRecord(1, encode_summary(summary_of(1, (), participant=ANA)))
DOMAINS = MapRecord(1, encode_summary(summary_of(1, (), domain="east")))


def judged(
    *met: tuple[int, MapRecord], mine: tuple[int, ...], gone: int = -1, interest_only: bool = True
) -> list[str]:
    """Return what is said of us when these, whose ids are their incarnations, have been met."""
    said: list[str] = []

    async def work() -> None:
        kinds = Kinds(
            "'me'", interest_only=interest_only, incarnations=lambda: mine, wrong=said.append
        )
        for inc, record in met:
            assert kinds.met(inc, inc, record)
        kinds.gone(gone, gone)
        await asyncio.sleep(SETTLE_S * 0.9)
        assert said == []
        await asyncio.sleep(SETTLE_S)
        kinds.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(work())
    return said


def test_who_is_younger_than_one_of_the_other_kind_is_wrong() -> None:
    (why,) = judged((5, WHOLE), (6, WHOLE), mine=(7,))
    assert why == (
        "'me' has interest_only=True, and participant 5 has False: it must be the same at all, as"
        " the oldest has it"
    )
    assert judged((5, SUMMARY), mine=(7,), interest_only=False) != []


def test_who_knows_an_older_one_of_its_own_kind_stays() -> None:
    assert judged((5, WHOLE), mine=(7, 4)) == []
    assert judged((5, WHOLE), mine=(4,)) == []
    assert judged((5, WHOLE), mine=(7, 8), gone=5) == []


def test_what_is_of_no_kind_does_not_count() -> None:
    kinds = Kinds("'me'", interest_only=False, incarnations=lambda: (7,), wrong=print)
    for record in (MapRecord(1, b"noise"), WHOLE, DOMAINS):
        assert not kinds.met(1, 1, record)
