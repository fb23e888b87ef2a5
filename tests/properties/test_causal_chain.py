"""Every violation of causal order has a chain of events behind it, and it is one."""

from itertools import pairwise
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import RandomRun

from orderwire.trace.schema import table_from_events
from orderwire.verify.audit import audit
from orderwire.verify.chain import causal_chain
from orderwire.verify.source import TableSource


@given(seed=st.integers(0, 2**32))
@settings(max_examples=40)
def test_each_violation_has_a_chain(seed: int) -> None:
    run = RandomRun(Random(seed))
    table = table_from_events(run.run(30))
    _, rows = audit(TableSource(table))
    for row in rows.to_pylist():
        if row["check"] != "O1":
            continue
        earlier = (row["source"], row["number"])
        later = (row["witness_source"], row["witness_number"])
        chain = causal_chain(table, earlier, later, run.settings.members)
        assert (chain[0].kind, chain[0].source, chain[0].number) == ("send", *earlier)
        assert (chain[-1].kind, chain[-1].source, chain[-1].number) == ("send", *later)
        for one, two in pairwise(chain):
            if two.kind == "deliver" and two.process != one.process:
                assert (one.kind, one.source, one.number) == ("send", two.source, two.number)
            else:
                assert one.process == two.process
                assert one.position < two.position
            assert one.time_ns <= two.time_ns
        assert causal_chain(table, later, earlier, run.settings.members) == []
