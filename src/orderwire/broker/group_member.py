"""One member of a classic consumer group."""

from orderwire.broker.group_model import JoinGroup, MemberRecord
from orderwire.kernel import Instant


class Member:
    """One member of a group, waiting or not."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "deadline",
        "instance_id",
        "is_new",
        "join_token",
        "member_id",
        "must_sync",
        "protocols",
        "rebalance_timeout_ns",
        "session_timeout_ns",
        "sync_token",
    )

    def __init__(self, member_id: str, request: JoinGroup) -> None:
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.assignment = b""
        self.join_token: int | None = None
        self.sync_token: int | None = None
        self.must_sync = False
        self.is_new = True
        self.deadline = Instant(0)
        self.take(request)

    def take(self, request: JoinGroup) -> None:
        """Adopt what the member said in its last join."""
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.session_timeout_ns = request.session_timeout_ns
        self.rebalance_timeout_ns = request.rebalance_timeout_ns
        self.protocols = request.protocols

    def metadata_of(self, protocol_name: str | None) -> bytes:
        """Return what the member said about this protocol."""
        return next((data for name, data in self.protocols if name == protocol_name), b"")

    @property
    def is_waiting(self) -> bool:
        """Whether a request of this member is open: then it cannot be found silent."""
        return self.join_token is not None or self.sync_token is not None

    def record(self) -> MemberRecord:
        """Return the member as it goes to disk."""
        return MemberRecord(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            session_timeout_ns=self.session_timeout_ns,
            rebalance_timeout_ns=self.rebalance_timeout_ns,
            protocols=self.protocols,
            assignment=self.assignment,
        )
