"""Scripts of discovery: who starts, crashes, leaves and changes when, and what must hold.

The format is that of `tests/vectors/discovery/README.md`, kind `script`.  Times in seconds.
"""

from collections.abc import Iterable
from typing import Any, TypeVar, get_args

import msgspec
from msgspec import UNSET, UnsetType

from orderwire.discovery.messages import Message
from orderwire.discovery.ring import RangePolicy
from orderwire.discovery.settings import (
    LITERAL,
    BootstrapSettings,
    DiscoverySettings,
    Mechanisms,
)
from orderwire.kernel import NS_PER_S
from orderwire.sim.discovery_world import SERVER
from orderwire.sim.vector_format import VectorError

RUN_EVENTS_MAX = 100_000
SCRIPT_S_MAX = 86_400.0
"""Longest script: a day."""
FOR_EVER = float("inf")
OF_ALL = ("server_down", "server_up", "partition", "heal")
_SECONDS = ("hb", "t_fail", "t_ae", "t_lease", "t_arq", "t_pull", "t_ask", "lease")
OF_ONE = ("start", "restart", "crash", "leave", "update", "mute_relay")

T = TypeVar("T")


class ScriptParams(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Setting of a script."""

    id_space: int = msgspec.field(name="M")
    delay: float | tuple[float, float] = 0.001
    seed: int | str = 0
    pair_delay: dict[str, float] = {}
    mode: str = "full"
    hb: tuple[float, float] | None = None
    t_fail: float | None = None
    t_ae: tuple[float, float] | float | None = None
    t_lease: float | None = None
    t_arq: float | None = None
    t_pull: float | None = None
    t_ask: float | None = None
    lease: float | None = None
    loss: float = 0.0
    policy: str | None = None
    bidirectional: bool = False
    ae: bool | None = None
    pull: bool | None = None
    server_sync: bool | None = None
    heartbeats: bool | None = None
    detect: bool | None = None
    probe: bool | None = None
    arq: bool | None = None
    reroute: bool | None = None


class ScriptEvent(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that happens."""

    at: float
    do: str
    who: str | None = None
    id: int | None = None
    silent: bool = False
    data: str | None = None
    lost: bool = False
    recovery: float | None = None
    group: list[str] = []


class ViewsAt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the views are like at a time."""

    at: float
    exact: bool = False
    ignore_extra: bool = False
    absent: list[int] = []
    present: list[int] = []


class Times(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    rename={"sender": "frm"},
    forbid_unknown_fields=True,
):
    """When one participant sends its own messages of a type."""

    t: str
    sender: str
    at: list[float]
    after: float = 0.0
    until: float = FOR_EVER
    tol: float = 0.01


class GoneAt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a leaver is gone."""

    who: str
    after: float = 0.0
    before: float = FOR_EVER


class GoneEverywhere(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By when nobody lists an id any more."""

    id: int
    by: float


class MessageExpected(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One message that is sent: of its fields those that are stated."""

    t: str
    sender: str | UnsetType = msgspec.field(name="frm", default=UNSET)
    to: str | UnsetType = UNSET
    at: float | UnsetType = UNSET
    hop: int | UnsetType = UNSET
    hi: int | UnsetType = UNSET
    dir: int | UnsetType = UNSET
    seq: int | UnsetType = UNSET
    base: int | UnsetType = UNSET
    src: int | UnsetType = UNSET
    inc: int | UnsetType = UNSET
    ver: int | UnsetType = UNSET
    hb: int | UnsetType = UNSET
    maps: list[int] | UnsetType | None = UNSET
    """Ids whose MAPs a JOIN_ACK carries; None is none."""


class MessageCount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often a message is sent."""

    t: str
    min: int = 0
    max: int | None = None


class ScriptExpectation(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must hold.  One check, or a list of them, of each kind."""

    views_at: ViewsAt | list[ViewsAt] = []
    messages_after: float = 0.0
    messages_before: float = FOR_EVER
    messages: list[MessageExpected] | None = None
    times: Times | list[Times] = []
    gone: GoneAt | list[GoneAt] = []
    gone_everywhere: GoneEverywhere | list[GoneEverywhere] = []
    split_at: float | list[float] = []
    unique_ids: bool = False
    holder: dict[str, str] = {}
    count: MessageCount | list[MessageCount] = []


class Script(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A scenario."""

    params: ScriptParams
    events: list[ScriptEvent]
    expect: ScriptExpectation


def several(given: T | list[T]) -> list[T]:
    """Return the checks of one kind as a list."""
    return given if isinstance(given, list) else [given]


def ns(seconds: float) -> int:
    """Return a time of a script in nanoseconds."""
    return round(seconds * NS_PER_S)


def message_name(message: Any) -> str:
    """Return the paper's name of a message: JOIN_ACK of JoinAck."""
    return _NAMES[type(message)]


def _name_of(kind: type[Any]) -> str:
    special = {"SyncReply": "SYNC_REP", "RequestId": "REQUEST_ID", "IdReply": "ID"}
    name = kind.__name__
    if name in special:
        return special[name]
    return "".join(f"_{c}" if c.isupper() and at else c for at, c in enumerate(name)).upper()


_NAMES: dict[type[Any], str] = {kind: _name_of(kind) for kind in get_args(Message)}


def read_script(raw: Any) -> Script:
    """Return the script of a JSON object.  Raises VectorError with what is wrong with it."""
    try:
        script = msgspec.convert(raw, Script, strict=False)
    except msgspec.ValidationError as error:
        raise VectorError(f"malformed script: {error}") from error
    if len(script.events) > RUN_EVENTS_MAX:
        raise VectorError(f"{len(script.events)} events, at most {RUN_EVENTS_MAX}")
    _check_numbers(script)
    bootstrap_of(script.params, settings_of(script.params))
    _check_events(script)
    _check_names(script)
    _check_ids(script)
    return script


def _check_numbers(script: Script) -> None:
    """Refuse times and ratios out of range."""
    params, expect = script.params, script.expect
    low, high = params.delay if isinstance(params.delay, tuple) else (params.delay, params.delay)
    if not 0 <= low <= high <= SCRIPT_S_MAX:
        raise VectorError(f"delay {params.delay} is negative, or not in order")
    if not 0 <= params.loss <= 1:
        raise VectorError(f"loss {params.loss} is not within 0 … 1")
    times = [
        *params.pair_delay.values(),
        *(each.at for each in script.events),
        *(each.recovery for each in script.events if each.recovery is not None),
        *(each.at for each in several(expect.views_at)),
        *(each.by for each in several(expect.gone_everywhere)),
        *several(expect.split_at),
        *(each for window in several(expect.times) for each in (window.after, window.until)),
        *(each for window in several(expect.gone) for each in (window.after, window.before)),
        expect.messages_after,
        expect.messages_before,
        *(value for name in _SECONDS for value in several(getattr(params, name))),
    ]
    flat = [each for time in times for each in (time if isinstance(time, tuple) else (time,))]
    odd = [each for each in flat if each is not None and not 0 <= each <= SCRIPT_S_MAX]
    odd = [each for each in odd if each != FOR_EVER]
    if odd:
        raise VectorError(f"times {odd} s are not within 0 … {SCRIPT_S_MAX}")


def _check_events(script: Script) -> None:
    for event in script.events:
        if event.do not in (*OF_ALL, *OF_ONE):
            raise VectorError(f"unknown event {event.do!r} at {event.at}")
        if event.do in OF_ONE and event.who is None:
            raise VectorError(f"event {event.do!r} at {event.at} names nobody")


def _check_names(script: Script) -> None:
    """Refuse names of participants that never start, and of messages that there are not."""
    expect = script.expect
    started = {each.who for each in script.events if each.do in ("start", "restart")}
    if SERVER in started:
        raise VectorError(f"{SERVER!r} is the name of the bootstrap server")
    pairs = [pair.split(">") for pair in script.params.pair_delay]
    if any(len(pair) != 2 for pair in pairs):
        raise VectorError(f"pair_delay {sorted(script.params.pair_delay)}; expected 'from>to'")
    stated = expect.messages or []
    _refuse_unknown(
        "nobody starts with the names",
        (
            *(each.who for each in script.events if each.do in OF_ONE),
            *(name for each in script.events for name in each.group),
            *(name for pair in pairs for name in pair),
            *(each.sender for each in several(expect.times)),
            *(each.who for each in several(expect.gone)),
            *expect.holder.values(),
            *(end for each in stated for end in (each.sender, each.to) if end is not UNSET),
        ),
        {*started, SERVER},
    )
    _refuse_unknown(
        "there are no messages",
        (
            *(each.t for each in stated),
            *(each.t for each in several(expect.times)),
            *(each.t for each in several(expect.count)),
        ),
        set(_NAMES.values()),
    )


def _refuse_unknown(what: str, names: Iterable[Any], known: Iterable[Any]) -> None:
    odd = sorted({str(name) for name in names} - {str(name) for name in known})
    if odd:
        raise VectorError(f"{what} {', '.join(odd)}")


def _check_ids(script: Script) -> None:
    """Refuse ids outside the id space."""
    expect = script.expect
    no_ids = [key for key in expect.holder if not (key.isascii() and key.isdecimal())]
    if no_ids:
        raise VectorError(f"holder: {no_ids} are no ids")
    ids = [
        *(each.id for each in script.events if each.id is not None),
        *(each for views in several(expect.views_at) for each in (*views.absent, *views.present)),
        *(each.id for each in several(expect.gone_everywhere)),
        *map(int, expect.holder),
    ]
    odd = sorted({each for each in ids if not 0 <= each < script.params.id_space})
    if odd:
        raise VectorError(f"ids {odd} are not within 0 … {script.params.id_space - 1}")


def settings_of(params: ScriptParams) -> DiscoverySettings:
    """Return the participants' settings.  Raises VectorError."""
    if params.mode not in ("paper", "full"):
        raise VectorError(f"mode {params.mode!r}; expected 'paper' or 'full'")
    printed = params.mode == "paper"
    mechanisms = LITERAL if printed else Mechanisms()
    switched = {
        name: value
        for name in ("ae", "pull", "server_sync", "heartbeats", "detect", "probe", "arq", "reroute")
        if (value := getattr(params, name)) is not None
    }
    changes: dict[str, Any] = {
        "mechanisms": msgspec.structs.replace(mechanisms, **switched),
        "policy": RangePolicy.SUCC if printed else RangePolicy.RANK,
        "both_ways_bytes_max": -1 if params.bidirectional else 0,
    }
    if params.policy is not None:
        known = [each.value for each in RangePolicy]
        if params.policy not in known:
            raise VectorError(f"policy {params.policy!r}; expected one of {', '.join(known)}")
        changes["policy"] = RangePolicy(params.policy)
    if params.hb is not None:
        changes["heartbeat_min_ns"], changes["heartbeat_max_ns"] = map(ns, params.hb)
    if params.t_ae is not None:
        both = params.t_ae if isinstance(params.t_ae, tuple) else (params.t_ae, params.t_ae)
        changes["sync_min_ns"], changes["sync_max_ns"] = map(ns, both)
    for name, field in (
        ("t_fail", "fail_ns"),
        ("t_lease", "lease_ns"),
        ("lease", "lease_ns"),
        ("t_arq", "ack_ns"),
        ("t_pull", "pull_ns"),
        ("t_ask", "ask_ns"),
    ):
        value = getattr(params, name)
        if value is not None:
            changes[field] = ns(value)
    try:
        return DiscoverySettings(**changes)
    except ValueError as error:
        raise VectorError(f"malformed params: {error}") from error


def bootstrap_of(params: ScriptParams, settings: DiscoverySettings) -> BootstrapSettings:
    """Return the server's settings.  Raises VectorError."""
    try:
        return BootstrapSettings(id_space=params.id_space, lease_ns=settings.lease_ns)
    except ValueError as error:
        raise VectorError(f"malformed params: M: {error}") from error
