"""Why ZooKeeper did not do what it was asked."""

from orderwire.broker.coordination.commands import Failure, Operation
from orderwire.kernel import OrderwireError


class ZookeeperUnavailable(ConnectionError):
    """No server of the ensemble answered in time; what was asked for may have happened."""


class SessionExpired(ZookeeperUnavailable):
    """The session has ended, and its ephemeral znodes with it; a new one begins by itself."""


class ZookeeperRefused(OrderwireError):
    """The ensemble answered that it will not: no permission, too large, read-only."""


class ZnodeFailure(OrderwireError):
    """The znodes are not as the command needs them."""

    failure: Failure


class NoZnode(ZnodeFailure):
    """There is no znode of that name."""

    failure = Failure.NO_ZNODE


class ZnodeExists(ZnodeFailure):
    """There is a znode of that name already."""

    failure = Failure.ZNODE_EXISTS


class BadVersion(ZnodeFailure):
    """The znode has another version than the one to compare with."""

    failure = Failure.BAD_VERSION


class ZnodeNotEmpty(ZnodeFailure):
    """A znode with children is not deleted."""

    failure = Failure.NOT_EMPTY


class NoChildrenHere(ZnodeFailure):
    """An ephemeral znode has no children."""

    failure = Failure.NO_CHILDREN


class MultiRefused(OrderwireError):
    """Nothing of a transaction was done: `operation`, its `index`th, could not be."""

    def __init__(self, index: int, operation: Operation, failure: Failure) -> None:
        super().__init__(f"{type(operation).__name__} {operation.path}: {failure.value}")
        self.index = index
        self.operation = operation
        self.failure = failure
