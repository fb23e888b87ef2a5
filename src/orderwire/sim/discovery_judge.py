"""What is wrong with the views of a simulated domain, in words."""

from collections.abc import Iterator, Mapping
from typing import Any

from orderwire.discovery.effects import Address
from orderwire.discovery.fdp import FdpNode


def faults_of_views(nodes: Mapping[Address, FdpNode], *, ignore_extra: bool = False) -> list[str]:
    """Return where views miss somebody, list somebody who is not there, or are stale."""
    wrong = []
    truth = {
        node.id: (node.roster.inc, node.own.told.ver, node.own.told.full)
        for node in nodes.values()
        if node.id is not None
    }
    without = [address for address, node in nodes.items() if node.id is None]
    if without:
        wrong.append(f"{without} have no id")
    if len(truth) != len(nodes) - len(without):
        wrong.append(f"{len(nodes) - len(without)} participants hold {len(truth)} ids")
    for address, node in nodes.items():
        if node.id is None:
            continue
        seen = _listed(node)
        for identity, expected in truth.items():
            if identity == node.id:
                continue
            found = seen.pop(identity, None)
            if found is None:
                wrong.append(f"{address} misses {identity}")
            elif found != expected:
                wrong.append(f"{address} has {identity} as {found}, it is {expected}")
        if not ignore_extra:
            wrong += [f"{address} lists {identity}, which is not there" for identity in seen]
    return wrong


def _listed(node: FdpNode) -> dict[int, Any]:
    """Return who is held to be there: incarnation, version and data, None without a MAP."""
    seen: dict[int, Any] = {
        entry.id: None for entry in node.roster.entries.values() if entry.is_live
    }
    for entry in node.live().values():
        assert entry.map is not None
        whole = node.own.form.shortened(entry.map)
        seen[entry.id] = (entry.inc, whole.ver, whole.full)
    return seen


def leftovers(nodes: Mapping[Address, FdpNode]) -> Iterator[str]:
    """Yield what views do not show and must be over when all has come to rest."""
    here = {node.id for node in nodes.values() if node.id is not None}
    for address, node in nodes.items():
        roster = node.roster
        others = sorted(here - {node.id})
        for identity in sorted(roster.contacts):
            yield f"{address} still has the contact {identity}"
        for identity in others:
            if roster.suspected(identity):
                yield f"{address} suspects {identity}, which is there"
        if roster.ring != others:
            yield f"{address} sends to {roster.ring}, there are {others}"
