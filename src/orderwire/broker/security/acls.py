"""Access control lists, with Kafka's meaning: deny wins, then allow, then nothing is allowed."""

from collections.abc import Iterable, Iterator
from enum import IntEnum

import msgspec

from orderwire.kernel.errors import LocalProtocolError, OrderwireError
from orderwire.kernel.parsing import UNREADABLE

BINDINGS_MAX = 10_000
NAME_CHARACTERS_MAX = 256
ANY_HOST = "*"
ANYBODY = "User:*"
ANY_NAME = "*"
CLUSTER_NAME = "kafka-cluster"
"""What Kafka calls the one resource of its type."""


class ResourceType(IntEnum):
    """What is guarded; Kafka's numbers."""

    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How a name is meant; ANY and MATCH in filters only."""

    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """What is done; Kafka's numbers."""

    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12


class Permission(IntEnum):
    """Whether it is allowed; Kafka's numbers."""

    ANY = 1
    DENY = 2
    ALLOW = 3


_IMPLIED_BY = {
    Operation.DESCRIBE: frozenset(
        {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER}
    ),
    Operation.DESCRIBE_CONFIGS: frozenset({Operation.ALTER_CONFIGS}),
}
"""Who may do one of these may also do the first; a denial implies nothing."""


class Binding(msgspec.Struct, frozen=True, order=True):
    """One rule."""

    resource_type: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: Operation
    permission: Permission

    def check(self) -> None:
        """Raises LocalProtocolError when this is a filter, or makes no sense."""
        if (
            self.resource_type is ResourceType.ANY
            or self.operation is Operation.ANY
            or self.permission is Permission.ANY
            or self.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED)
        ):
            raise LocalProtocolError(f"{self} says 'any' where one thing must be meant")
        for what, text in (("name", self.name), ("principal", self.principal), ("host", self.host)):
            if not text or len(text) > NAME_CHARACTERS_MAX:
                raise LocalProtocolError(
                    f"the {what} of an ACL has {len(text)} characters; expected 1 to"
                    f" {NAME_CHARACTERS_MAX}"
                )
        kind, colon, user = self.principal.partition(":")
        if kind != "User" or not colon or not user:
            raise LocalProtocolError(f"principal {self.principal!r}; expected User:NAME or User:*")
        if self.resource_type is ResourceType.CLUSTER and self.name != CLUSTER_NAME:
            raise LocalProtocolError(f"the cluster is called {CLUSTER_NAME}, not {self.name!r}")

    def covers(self, name: str) -> bool:
        """Whether the resource of this name is meant."""
        if self.pattern_type is PatternType.PREFIXED:
            return name.startswith(self.name)
        return self.name in (ANY_NAME, name)

    def speaks_of(self, principal: str, host: str) -> bool:
        """Whether this client is meant."""
        return self.principal in (ANYBODY, principal) and self.host in (ANY_HOST, host)


class Filter(msgspec.Struct, frozen=True):
    """Which rules are asked for; None and ANY match everything."""

    resource_type: ResourceType = ResourceType.ANY
    name: str | None = None
    pattern_type: PatternType = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: Operation = Operation.ANY
    permission: Permission = Permission.ANY

    def matches(self, rule: Binding) -> bool:
        """Whether this rule is asked for."""
        return (
            self.resource_type in (ResourceType.ANY, rule.resource_type)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
            and self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self._names(rule)
        )

    def _names(self, rule: Binding) -> bool:
        if self.pattern_type is PatternType.MATCH:  # what decides about this name
            return self.name is None or rule.covers(self.name)
        return self.pattern_type in (PatternType.ANY, rule.pattern_type) and self.name in (
            None,
            rule.name,
        )


class AclsDamaged(OrderwireError):
    """The stored rules do not read."""


class Acls:
    """All rules, and who needs none."""

    def __init__(
        self, super_users: Iterable[str] = (), *, allow_without_rules: bool = False
    ) -> None:
        """`super_users` are principals that may do everything.  `allow_without_rules`: a resource
        that no rule speaks of is everybody's, as `allow.everyone.if.no.acl.found` says."""
        self._super_users = frozenset(super_users)
        self._allow_without_rules = allow_without_rules
        self._rules: dict[ResourceType, list[Binding]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._rules.values()))

    def __iter__(self) -> Iterator[Binding]:
        for kind in sorted(self._rules):
            yield from self._rules[kind]

    def allows(
        self, principal: str, host: str, operation: Operation, kind: ResourceType, name: str
    ) -> bool:
        """Whether this client may do this to the resource of this name."""
        if principal in self._super_users:
            return True
        allowing = {operation, Operation.ALL} | _IMPLIED_BY.get(operation, frozenset())
        found = is_allowed = False
        for rule in self._rules.get(kind, ()):
            if not rule.covers(name):
                continue
            found = True
            if not rule.speaks_of(principal, host):
                continue
            if rule.permission is Permission.DENY:
                if rule.operation in (operation, Operation.ALL):
                    return False
            elif rule.operation in allowing:
                is_allowed = True
        return is_allowed or (not found and self._allow_without_rules)

    def allows_some(
        self, principal: str, host: str, operation: Operation, kind: ResourceType
    ) -> bool:
        """Whether there may be a name to which this client may do this: for an idempotent producer,
        which asks for its id before it says where it writes."""
        if principal in self._super_users:
            return True
        rules = self._rules.get(kind, ())
        allowing = {operation, Operation.ALL}
        return self._allow_without_rules or any(
            rule.permission is Permission.ALLOW
            and rule.operation in allowing
            and rule.speaks_of(principal, host)
            and self.allows(principal, host, operation, kind, rule.name)
            for rule in rules
        )

    def find(self, wanted: Filter) -> list[Binding]:
        """Return the rules that a filter matches."""
        return [rule for rule in self if wanted.matches(rule)]

    @staticmethod
    def added(rules: Iterable[Binding], more: Iterable[Binding]) -> list[Binding]:
        """Return these rules and more.  Raises LocalProtocolError for too many, or a bad one."""
        together = set(rules)
        for rule in more:
            rule.check()
            together.add(rule)
        if len(together) > BINDINGS_MAX:
            raise LocalProtocolError(f"{len(together)} ACLs; at most {BINDINGS_MAX} are kept")
        return sorted(together)

    def replace(self, rules: Iterable[Binding]) -> None:
        """Let these be all rules."""
        self._rules = {}
        for rule in sorted(set(rules)):
            self._rules.setdefault(rule.resource_type, []).append(rule)


def encode_rules(rules: Iterable[Binding]) -> bytes:
    """Return rules as they are stored."""
    return msgspec.json.encode(sorted(rules))


def decode_rules(data: bytes) -> list[Binding]:
    """Read stored rules.  Raises AclsDamaged: unreadable rules must not look like none."""
    try:
        rules = msgspec.json.decode(data, type=list[Binding])
        for rule in rules:
            rule.check()
    except (*UNREADABLE, LocalProtocolError) as error:
        raise AclsDamaged(f"stored ACLs ({len(data)} bytes) do not read: {error}") from error
    return rules
