"""Who clients are and what they may: SASL, and the administration of users and rules."""

from functools import partial
from typing import TYPE_CHECKING

from orderwire.broker.error_codes import ErrorCode
from orderwire.broker.replies import NS_PER_FAILED_LOGIN, Outcome, Reply, Request, reply
from orderwire.broker.requests.changes import Part, Step, carried_out
from orderwire.broker.requests.permission import Operation, may_cluster
from orderwire.broker.security.acls import (
    Binding,
    Filter,
    PatternType,
    Permission,
    ResourceType,
)
from orderwire.broker.security.credentials import SCRAM, Credential, check_user
from orderwire.broker.security.guard import Done, Guard
from orderwire.broker.security.login import Challenge, CheckAside, LoggedIn
from orderwire.broker.security.login import Refusal as LoginRefusal
from orderwire.broker.topic_config import Refusal
from orderwire.broker.wire.generated.alter_user_scram_credentials import (
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialUpsertion,
)
from orderwire.broker.wire.generated.create_acls import (
    AclCreation,
    AclCreationResult,
    CreateAclsResponse,
)
from orderwire.broker.wire.generated.delete_acls import (
    DeleteAclsFilter,
    DeleteAclsFilterResult,
    DeleteAclsMatchingAcl,
    DeleteAclsResponse,
)
from orderwire.broker.wire.generated.describe_acls import (
    AclDescription,
    DescribeAclsRequest,
    DescribeAclsResource,
    DescribeAclsResponse,
)
from orderwire.broker.wire.generated.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from orderwire.broker.wire.generated.sasl_authenticate import SaslAuthenticateResponse
from orderwire.broker.wire.generated.sasl_handshake import SaslHandshakeResponse
from orderwire.kernel import Instant
from orderwire.kernel.errors import LocalProtocolError

if TYPE_CHECKING:
    from orderwire.broker.node import Broker

_WAIT_MS = 30_000
_NO_GUARD = Refusal(ErrorCode.SECURITY_DISABLED, "this broker keeps neither users nor ACLs")
_MAY_NOT = Refusal(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "users and rules are not yours to see")
_NUMBERS = dict(enumerate(SCRAM, 1))
"""Kafka's numbers for mechanisms."""


def sasl_handshake(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Choose how the client says who it is."""
    login = request.client.login
    if login is None:
        error = ErrorCode.UNSUPPORTED_SASL_MECHANISM
        return reply(request, SaslHandshakeResponse(error_code=error, mechanisms=()))
    error = login.handshake(request.body.mechanism)
    return reply(request, SaslHandshakeResponse(error_code=error, mechanisms=login.names))


def sasl_authenticate(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Take the client's next message; a password is checked aside."""
    login = request.client.login
    if login is None:
        message = "SASL is not enabled on this listener"
        error = ErrorCode.ILLEGAL_SASL_STATE
        return reply(request, SaslAuthenticateResponse(error_code=error, error_message=message))
    result = login.authenticate(bytes(request.body.auth_bytes))
    if isinstance(result, CheckAside):
        guard = broker.guard
        assert guard is not None
        broker.parked.check_aside(
            request, partial(guard.accounts.is_right, result.login), partial(_checked, request)
        )
        return Outcome.PARKED
    return _login_reply(request, result)


def _checked(request: Request, is_right: bool) -> Reply:
    login = request.client.login
    assert login is not None
    return _login_reply(request, login.checked(is_right=is_right))


def _login_reply(request: Request, result: Challenge | LoggedIn | LoginRefusal) -> Reply:
    if isinstance(result, LoginRefusal):
        response = SaslAuthenticateResponse(
            error_code=result.error, error_message=result.message, auth_bytes=b""
        )
        return reply(request, response, delay_ns=NS_PER_FAILED_LOGIN, is_last=True)
    return reply(request, SaslAuthenticateResponse(error_message=None, auth_bytes=result.data))


# -- rules ----------------------------------------------------------------------------------


def describe_acls(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """List the rules that a filter matches."""
    refusal = _refusal(broker, request, Operation.DESCRIBE)
    wanted = refusal or _filter(request.body)
    if isinstance(wanted, Refusal):
        response = DescribeAclsResponse(error_code=wanted.error, error_message=wanted.message)
        return reply(request, response)
    assert broker.guard is not None
    by_resource: dict[tuple[int, str, int], list[AclDescription]] = {}
    for rule in broker.guard.acls.find(wanted):
        place = (rule.resource_type, rule.name, rule.pattern_type)
        shown = AclDescription(rule.principal, rule.host, rule.operation, rule.permission)
        by_resource.setdefault(place, []).append(shown)
    resources = [DescribeAclsResource(*place, acls) for place, acls in by_resource.items()]
    return reply(request, DescribeAclsResponse(error_message=None, resources=resources))


def create_acls(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Add rules."""
    refusal = _refusal(broker, request, Operation.ALTER)
    parts: list[Part] = [
        refusal or _adding(broker.guard, _binding(one)) for one in request.body.creations
    ]

    def respond(results: list[Refusal | None]) -> CreateAclsResponse:
        return CreateAclsResponse(results=[AclCreationResult(*_said(result)) for result in results])

    return carried_out(broker, request, parts, respond, _WAIT_MS, now)


def _adding(guard: Guard | None, rule: Binding | Refusal) -> Part:
    if isinstance(rule, Refusal):
        return rule
    assert guard is not None
    assert guard.store is not None
    acls = guard.acls

    def add(rules: list[Binding]) -> list[Binding]:
        return acls.added(rules, [rule])

    return partial(guard.store.change_rules, add)


def delete_acls(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Remove the rules that filters match."""
    refusal = _refusal(broker, request, Operation.ALTER)
    gone: list[list[Binding]] = [[] for _ in request.body.filters]
    parts: list[Part] = []
    for one, matched in zip(request.body.filters, gone, strict=True):
        wanted = refusal or _filter(one)
        removing = wanted if isinstance(wanted, Refusal) else None
        parts.append(removing or _removing(broker.guard, wanted, matched))

    def respond(results: list[Refusal | None]) -> DeleteAclsResponse:
        return DeleteAclsResponse(
            filter_results=[
                DeleteAclsFilterResult(
                    *_said(result),
                    matching_acls=[
                        DeleteAclsMatchingAcl(
                            error_message=None,
                            resource_type=rule.resource_type,
                            resource_name=rule.name,
                            pattern_type=rule.pattern_type,
                            principal=rule.principal,
                            host=rule.host,
                            operation=rule.operation,
                            permission_type=rule.permission,
                        )
                        for rule in (matched if result is None else ())
                    ],
                )
                for result, matched in zip(results, gone, strict=True)
            ]
        )

    return carried_out(broker, request, parts, respond, _WAIT_MS, now)


def _removing(guard: Guard | None, wanted: Filter | Refusal, matched: list[Binding]) -> Step:
    assert guard is not None
    assert guard.store is not None
    assert isinstance(wanted, Filter)

    def remove(rules: list[Binding]) -> list[Binding]:
        matched[:] = [rule for rule in rules if wanted.matches(rule)]
        return [rule for rule in rules if not wanted.matches(rule)]

    return partial(guard.store.change_rules, remove)


def _refusal(broker: "Broker", request: Request, operation: Operation) -> Refusal | None:
    if broker.guard is None or broker.guard.store is None:
        return _NO_GUARD
    return None if may_cluster(broker, request, operation) else _MAY_NOT


def _said(result: Refusal | None) -> tuple[int, str | None]:
    return (ErrorCode.NONE, None) if result is None else (result.error, result.message)


def _binding(ask: AclCreation) -> Binding | Refusal:
    try:
        rule = Binding(
            ResourceType(ask.resource_type),
            ask.resource_name,
            PatternType(ask.resource_pattern_type),
            ask.principal,
            ask.host,
            Operation(ask.operation),
            Permission(ask.permission_type),
        )
        rule.check()
    except (ValueError, LocalProtocolError) as error:
        return Refusal(ErrorCode.INVALID_REQUEST, str(error))
    return rule


def _filter(ask: DescribeAclsRequest | DeleteAclsFilter) -> Filter | Refusal:
    try:
        return Filter(
            ResourceType(ask.resource_type_filter),
            ask.resource_name_filter,
            PatternType(ask.pattern_type_filter),
            ask.principal_filter,
            ask.host_filter,
            Operation(ask.operation),
            Permission(ask.permission_type),
        )
    except ValueError as error:
        return Refusal(ErrorCode.INVALID_REQUEST, str(error))


# -- users ----------------------------------------------------------------------------------


def describe_users(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Tell which mechanisms users have; nothing of their keys."""
    refusal = _refusal(broker, request, Operation.DESCRIBE)
    if refusal is not None:
        response = DescribeUserScramCredentialsResponse(
            error_code=refusal.error, error_message=refusal.message
        )
        return reply(request, response)
    assert broker.guard is not None
    users = broker.guard.accounts.users
    asked = request.body.users
    names = sorted(users) if not asked else [one.name for one in asked]
    numbers = {mechanism: number for number, mechanism in _NUMBERS.items()}
    results = []
    for name in names:
        if name not in users:
            message = f"there is no user {name!r}"
            error = ErrorCode.RESOURCE_NOT_FOUND
            results.append(DescribeUserScramCredentialsResult(name, error, message))
            continue
        infos = [
            CredentialInfo(numbers[each.mechanism], each.iterations)
            for each in users[name].values()
        ]
        results.append(DescribeUserScramCredentialsResult(name, ErrorCode.NONE, None, infos))
    return reply(request, DescribeUserScramCredentialsResponse(error_message=None, results=results))


def alter_users(broker: "Broker", request: Request, now: Instant) -> Reply | Outcome:
    """Set and remove credentials; a user without any is gone."""
    body = request.body
    named = [(one.name, one.mechanism) for one in (*body.deletions, *body.upsertions)]
    names = sorted({name for name, _ in named})
    refusal = _refusal(broker, request, Operation.ALTER)
    parts: list[Part] = []
    for name in names:
        part: Part = refusal
        if part is None and len({n for n in named if n[0] == name}) != sum(
            n[0] == name for n in named
        ):
            message = f"the request names a credential of {name!r} more than once"
            part = Refusal(ErrorCode.DUPLICATE_RESOURCE, message)
        if part is None:
            part = _altering(broker, request, name)
        parts.append(part)

    def respond(results: list[Refusal | None]) -> AlterUserScramCredentialsResponse:
        return AlterUserScramCredentialsResponse(
            results=[
                AlterUserScramCredentialsResult(name, *_said(result))
                for name, result in zip(names, results, strict=True)
            ]
        )

    return carried_out(broker, request, parts, respond, _WAIT_MS, now)


def _altering(broker: "Broker", request: Request, name: str) -> Part:
    guard = broker.guard
    assert guard is not None
    store = guard.store
    assert store is not None
    known = guard.accounts.users.get(name, {})
    kept = {mechanism.value: each.to_text() for mechanism, each in known.items()}
    try:
        check_user(name)
        for one in request.body.deletions:
            if one.name == name:
                mechanism = _NUMBERS.get(one.mechanism)
                if mechanism is None or kept.pop(mechanism.value, None) is None:
                    message = f"{name!r} has no credential of mechanism {one.mechanism}"
                    return Refusal(ErrorCode.RESOURCE_NOT_FOUND, message)
        for one in request.body.upsertions:
            if one.name == name:
                made = _made(one)
                kept[made.mechanism.value] = made.to_text()
    except LocalProtocolError as error:
        return Refusal(ErrorCode.UNACCEPTABLE_CREDENTIAL, str(error))

    def put(done: Done) -> None:
        store.put_user(name, kept, done)

    return put


def _made(ask: ScramCredentialUpsertion) -> Credential:
    mechanism = _NUMBERS.get(ask.mechanism)
    if mechanism is None:
        raise LocalProtocolError(f"mechanism {ask.mechanism}; expected one of {list(_NUMBERS)}")
    salt, salted = bytes(ask.salt), bytes(ask.salted_password)
    if not salt or not salted:
        raise LocalProtocolError("a credential has a salt and a salted password")
    return Credential.from_salted(mechanism, salt, ask.iterations, salted)
