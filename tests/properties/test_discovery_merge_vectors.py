"""Drawn scenarios of merging agree with the specification's rules, taken word for word."""

from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orderwire.sim.discovery_vectors import check_discovery

FAIL_S = 6.0
AGES = (0.0, 0.5, 1.234, 5.999, 6.0, 6.001, 7.0, 23.9, 24.0, 24.1, 30.0, 100.0)
"""Around the fail time, and around four of them."""
Step = tuple[float, int, int, int, int, float, str, str]
Record = dict[str, Any]


def merged(steps: list[Step]) -> tuple[list[list[Any]], dict[str, str]]:
    """Return the states that R11 gives, and the last ones."""
    table: dict[int, Record] = {}
    states = []
    for at, identity, inc, _ver, hb, age, addr, told in steps:
        entry = table.get(identity)
        if identity == 0:
            pass  # R11.1: one's own id.
        elif entry is None or inc > entry["inc"]:  # R11.2
            status = "EXPIRED" if told == "LIVE" and age > FAIL_S else told
            new = {"inc": inc, "hb": hb, "fresh": at - age, "addr": addr, "status": status}
            table[identity] = new
            for other in table.values():
                if other is not new and other["status"] == "LIVE" and other["addr"] == addr:
                    if other["inc"] < inc:
                        other["status"] = "EXPIRED"
                    elif new["status"] == "LIVE":
                        new["status"] = "EXPIRED"
        elif inc < entry["inc"] or entry["status"] == "LEFT":
            pass  # R11.3, R11.4: LEFT is final.
        elif told == "LEFT":
            entry["status"] = "LEFT"
        elif hb > entry["hb"]:  # R11.4
            entry |= {"hb": hb, "fresh": at - age}
            if entry["status"] == "EXPIRED" and age <= FAIL_S:
                entry["status"] = "LIVE"
        last = table.get(identity)
        if last is None:
            states.append([None, None, None])
        else:
            fresh = None if last["status"] == "LEFT" else last["fresh"]
            states.append([last["inc"], last["status"], fresh])
    return states, {f"finally_id{each}": entry["status"] for each, entry in table.items()}


@given(chance=st.randoms(use_true_random=False), restarts=st.booleans())
def test_merging_is_that_of_the_rules(chance: Random, restarts: bool) -> None:
    """With an address for each id, or with three that incarnations of all ids share."""
    at = 200.0
    steps: list[Step] = []
    addresses: dict[int, str] = {}
    for _ in range(chance.randint(1, 14)):
        at = round(at + chance.choice((0, 0.001, 0.5, 1, 3, 7)), 3)
        identity = chance.choice((0, 1, 5, 9, 63))
        inc = chance.choice((100, 101, 102)) * 10 + identity % 10
        addr = f"of {identity}"
        if restarts:  # An incarnation has one address for life.
            addr = addresses.setdefault(inc, chance.choice("abc"))
        status = chance.choice(("LIVE", "LIVE", "LIVE", "LEFT"))
        ver, hb, age = chance.randint(1, 3), chance.randint(1, 6), chance.choice(AGES)
        steps.append((at, identity, inc, ver, hb, age, addr, status))
    # In the text newer evidence revives such an entry; decision 0023 says why it does not here.
    steps = [step for number, step in enumerate(steps) if not revives_late(steps[:number], step)]
    states, last = merged(steps)
    raw = {
        "kind": "merge",
        "given": {"t_fail": FAIL_S, "steps": [list(step) for step in steps]},
        "expect": {"states": states, **last},
    }
    outcomes = check_discovery(raw)
    assert {*outcomes} <= {None}, outcomes
    assert len(outcomes) == len(steps) + len(last)


def revives_late(before: list[Step], step: Step) -> bool:
    """Whether a newer incarnation was heard of at the address before this newer heartbeat."""
    _, _, inc, _, hb, _, addr, _ = step
    newer = any(other[6] == addr and other[2] > inc for other in before)
    return newer and any(other[2] == inc and hb > other[4] for other in before)


def test_a_newer_incarnation_ends_the_older_at_its_address_even_when_it_is_gone() -> None:
    """[FDP/1 R11.2] Whether it has left or is too old: it was there after the older one."""
    for gone in ([11.0, 9, 102, 1, 1, 0.0, "a", "LEFT"], [11.0, 9, 102, 1, 1, 7.0, "a", "LIVE"]):
        raw = {
            "kind": "merge",
            "given": {"t_fail": FAIL_S, "steps": [[10.0, 5, 100, 1, 1, 0.0, "a", "LIVE"], gone]},
            "expect": {
                "states": [[100, "LIVE", 10.0], [102, None, None]],
                "finally_id5": "EXPIRED",
            },
        }
        assert check_discovery(raw) == [None] * 3
