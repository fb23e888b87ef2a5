"""Judges what a paper says, or we say, from the results alone."""

from collections.abc import Iterable, Mapping, Sequence
from math import inf, isnan, log
from typing import Any

import msgspec
import numpy as np

from orderwire.lab.experiment import Claim, Experiment
from orderwire.lab.table import Mean, Sample, mean_of

POINTS_SHOWN_MAX = 6
"""Of more points a claim shows the least and the most."""


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """A claim beside what came out."""

    claim: str
    paper: str
    ours: str
    holds: bool | None
    """None: there is nothing to judge from."""
    why: str


def judge_claims(experiment: Experiment, samples: Sequence[Sample]) -> list[Judged]:
    """Judge every claim of the experiment."""
    return [_judge(claim, experiment.picture.x, samples) for claim in experiment.claims]


def _judge(claim: Claim, x: str, samples: Sequence[Sample]) -> Judged:
    chosen = [
        each
        for each in samples
        if all(each.point.get(name) == value for name, value in claim.at.items())
    ]
    left = _by_point(claim, claim.left, chosen)
    if claim.kind == "ratio":
        found = _ratios(left, _by_point(claim, claim.right, chosen))
    elif claim.kind == "growth":
        found = _growth(left, x)
    else:
        found = {point: mean_of(list(seeds.values())) for point, seeds in left.items()}
    found = {point: mean for point, mean in found.items() if not isnan(mean.mean)}
    wanted = _wanted(claim)
    usual = _usual(found)

    def shown(point: str) -> str:
        return _shown(point, usual)

    if not found:
        return Judged(
            claim=claim.claim,
            paper=claim.paper,
            ours="no result",
            holds=None,
            why=f"no run gave {claim.measure} at {claim.at or 'any point'}; {wanted}",
        )
    outside = [p for p, mean in found.items() if not claim.least <= mean.mean <= claim.most]
    unsure = [
        p
        for p, mean in found.items()
        if any(abs(mean.mean - limit) < mean.half for limit in (claim.least, claim.most))
    ]
    why = wanted
    if outside and len(found) > 1:
        why += f"; not so at {', '.join(map(shown, outside))}"
    if unsure:
        why += "; a limit lies within the confidence interval"
        why += f" at {', '.join(map(shown, unsure))}" if len(found) > 1 else ""
    if claim.remark:
        why += f". {claim.remark}"
    if len(found) <= POINTS_SHOWN_MAX:
        ours = ", ".join(
            f"{shown(point)}: {_number(mean)}".lstrip(": ") for point, mean in found.items()
        )
    else:
        by_mean = sorted(found.items(), key=lambda each: each[1].mean)
        ends = (by_mean[0], by_mean[-1])
        ours = " … ".join(f"{_number(mean)} ({shown(point)})" for point, mean in ends)
        ours += f" over {len(found)} points"
    return Judged(claim=claim.claim, paper=claim.paper, ours=ours, holds=not outside, why=why)


Seeds = Mapping[int, float]


def _by_point(claim: Claim, label: str, samples: Sequence[Sample]) -> dict[str, Seeds]:
    found: dict[str, dict[int, float]] = {}
    for each in samples:
        if each.series == label and claim.measure in each.measures:
            point = msgspec.json.encode(each.point).decode()
            found.setdefault(point, {})[each.seed] = each.measures[claim.measure]
    return dict(found)


def _ratios(left: Mapping[str, Seeds], right: Mapping[str, Seeds]) -> dict[str, Mean]:
    """Return the mean ratio at each point, paired by seed: both had the same messages."""
    return {
        point: mean_of(
            [
                value / right[point][seed] if right[point][seed] else inf
                for seed, value in seeds.items()
                if seed in right[point]
            ]
        )
        for point, seeds in left.items()
        if point in right
    }


def _growth(left: Mapping[str, Seeds], x: str) -> dict[str, Mean]:
    """Return the slope of log measure over log x, a slope a seed."""
    lines: dict[int, list[tuple[float, float]]] = {}
    for point, seeds in left.items():
        at = float(msgspec.json.decode(point)[x])
        for seed, value in seeds.items():
            if at > 0 and value > 0:
                lines.setdefault(seed, []).append((log(at), log(value)))
    slopes = [
        float(np.polyfit([at for at, _ in line], [value for _, value in line], 1)[0])
        for line in lines.values()
        if len(line) > 1
    ]
    return {'"exponent"': mean_of(slopes)} if slopes else {}


def _wanted(claim: Claim) -> str:
    what = {
        "ratio": f"{claim.measure} of {claim.left} over {claim.right}",
        "growth": f"the power with which {claim.measure} of {claim.left} grows",
        "value": f"{claim.measure} of {claim.left}",
    }[claim.kind]
    if claim.most == inf:
        return f"holds if {what} is at least {claim.least:g}"
    if not claim.least:
        return f"holds if {what} is at most {claim.most:g}"
    return f"holds if {what} is within {claim.least:g} … {claim.most:g}"


def _number(mean: Mean) -> str:
    number = f"{mean.mean:.3g}" if abs(mean.mean) < 1_000 else f"{mean.mean:,.0f}"
    return number if isnan(mean.half) else f"{number} ± {mean.half:.2g}"


def said(value: Any) -> str:
    """Return a parameter's value as figures show it."""
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def _usual(points: Iterable[str]) -> dict[str, Any]:
    """Return of every parameter that varies between these points the commonest value.

    A single one that varies has none: it is always shown.
    """
    values: dict[str, list[Any]] = {}
    for point in points:
        plain = msgspec.json.decode(point)
        for name, value in plain.items() if isinstance(plain, dict) else ():
            values.setdefault(name, []).append(value)
    varied = {name: some for name, some in values.items() if len(set(some)) > 1}
    if len(varied) == 1:
        return dict.fromkeys(varied)
    return {name: max(some, key=some.count) for name, some in varied.items()}


def _shown(point: str, usual: Mapping[str, Any]) -> str:
    plain: Any = msgspec.json.decode(point)
    if not isinstance(plain, dict):
        return str(plain)
    told = [f"{name}={said(plain[name])}" for name, value in usual.items() if plain[name] != value]
    return " ".join(told) or ("as noted" if usual else "")
