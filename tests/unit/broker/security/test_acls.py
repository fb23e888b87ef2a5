"""Access control lists: Kafka's rules of who may."""

import pytest

from orderwire.broker.security.acls import (
    BINDINGS_MAX,
    Acls,
    AclsDamaged,
    Binding,
    Filter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    decode_rules,
    encode_rules,
)
from orderwire.kernel.errors import LocalProtocolError

TOPIC = ResourceType.TOPIC


def rule(
    name: str = "orders",
    *,
    who: str = "User:ann",
    host: str = "*",
    operation: Operation = Operation.READ,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
    kind: ResourceType = TOPIC,
) -> Binding:
    return Binding(kind, name, pattern, who, host, operation, permission)


def acls(*rules: Binding, **options: bool) -> Acls:
    found = Acls(["User:root"], allow_without_rules=options.get("open", False))
    found.replace(rules)
    return found


def may(
    found: Acls,
    operation: Operation = Operation.READ,
    name: str = "orders",
    who: str = "User:ann",
    host: str = "10.0.0.1",
) -> bool:
    return found.allows(who, host, operation, TOPIC, name)


def test_nothing_is_allowed_without_a_rule() -> None:
    assert not may(acls())
    assert may(acls(), who="User:root")
    assert may(acls(open=True))
    assert not may(acls(rule(who="User:bob"), open=True))


@pytest.mark.parametrize(
    ("given", "allowed"),
    [
        (rule(), True),
        (rule(who="User:*"), True),
        (rule(who="User:bob"), False),
        (rule(host="10.0.0.1"), True),
        (rule(host="10.0.0.2"), False),
        (rule("*"), True),
        (rule("ord", pattern=PatternType.PREFIXED), True),
        (rule("ord"), False),
        (rule("*", pattern=PatternType.PREFIXED), False),
        (rule(operation=Operation.ALL), True),
        (rule(operation=Operation.WRITE), False),
        (rule(kind=ResourceType.GROUP), False),
    ],
)
def test_what_a_rule_allows(given: Binding, allowed: bool) -> None:
    assert may(acls(given)) is allowed


@pytest.mark.parametrize("deny", [Operation.READ, Operation.ALL])
def test_denial_wins(deny: Operation) -> None:
    allow = rule("*", who="User:*", operation=Operation.ALL)
    found = acls(
        allow, rule("ord", operation=deny, permission=Permission.DENY, pattern=PatternType.PREFIXED)
    )
    assert not may(found)
    assert may(found, name="bills")
    assert may(found, who="User:bob")


def test_doing_implies_describing_but_denial_does_not() -> None:
    for operation in (Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER):
        assert may(acls(rule(operation=operation)), Operation.DESCRIBE)
    assert not may(acls(rule(operation=Operation.CREATE)), Operation.DESCRIBE)
    assert may(acls(rule(operation=Operation.ALTER_CONFIGS)), Operation.DESCRIBE_CONFIGS)
    found = acls(
        rule(operation=Operation.DESCRIBE),
        rule(operation=Operation.READ, permission=Permission.DENY),
    )
    assert may(found, Operation.DESCRIBE)
    assert not may(found, Operation.READ)


def test_some_topic_may_be_written() -> None:
    def some(found: Acls) -> bool:
        return found.allows_some("User:ann", "10.0.0.1", Operation.WRITE, TOPIC)

    assert not some(acls(rule()))
    write = rule(operation=Operation.WRITE)
    assert some(acls(write))
    assert not some(acls(write, rule(operation=Operation.ALL, permission=Permission.DENY)))
    assert not some(acls(rule(who="User:bob", operation=Operation.WRITE)))
    assert some(acls(open=True))


def test_filters_find_rules() -> None:
    literal, prefix, every = rule(), rule("ord", pattern=PatternType.PREFIXED), rule("*")
    found = acls(literal, prefix, every, rule("bills", who="User:bob"))

    def named(name: str | None, pattern: PatternType) -> list[Binding]:
        return found.find(Filter(TOPIC, name, pattern))

    assert len(named(None, PatternType.ANY)) == 4
    assert set(named("orders", PatternType.MATCH)) == {literal, prefix, every}
    assert named("orders", PatternType.LITERAL) == [literal]
    assert named("ord", PatternType.PREFIXED) == [prefix]
    assert named("ord", PatternType.ANY) == [prefix]
    assert found.find(Filter(principal="User:bob"))[0].name == "bills"
    assert found.find(Filter(permission=Permission.DENY)) == []
    assert found.find(Filter(operation=Operation.WRITE)) == []
    assert found.find(Filter(host="10.0.0.9")) == []


@pytest.mark.parametrize(
    "bad",
    [
        rule(kind=ResourceType.ANY),
        rule(operation=Operation.ANY),
        rule(permission=Permission.ANY),
        rule(pattern=PatternType.MATCH),
        rule(""),
        rule("x" * 257),
        rule(host=""),
        rule(who="ann"),
        rule(who="Group:x"),
        rule(who="User:"),
        rule("me", kind=ResourceType.CLUSTER),
    ],
)
def test_bad_rules_are_refused(bad: Binding) -> None:
    with pytest.raises(LocalProtocolError):
        Acls.added([], [bad])
    with pytest.raises(AclsDamaged):
        decode_rules(encode_rules([bad]))


def test_rules_are_kept_once_and_limited() -> None:
    found = acls(rule())
    assert Acls.added(found, [rule(), rule("bills")]) == sorted([rule(), rule("bills")])
    with pytest.raises(LocalProtocolError, match=str(BINDINGS_MAX)):
        Acls.added(found, (rule(f"t{number}") for number in range(BINDINGS_MAX)))


def test_stored_rules_read_back_or_say_so() -> None:
    rules = sorted([rule(), rule("ord", pattern=PatternType.PREFIXED)])
    assert decode_rules(encode_rules(rules)) == rules
    for damaged in (b"", b"[", b"{}", b'[{"name": 1}]', b"\xff"):
        with pytest.raises(AclsDamaged):
            decode_rules(damaged)
