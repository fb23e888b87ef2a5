"""Who belongs to a group by address list, and where."""

from collections.abc import Mapping

from orderwire.aio.addresses import is_loopback
from orderwire.aio.endpoint import Address
from orderwire.kernel import GROUP_SIZE_MAX, LocalProtocolError, ProcessId

NAME_BYTES_MAX = 64


class Members:
    """The members of a group: names in the order of their ids, and addresses.

    Ids count the names in ascending order (numbers: by value), so they are the same everywhere.
    Raises LocalProtocolError.
    """

    def __init__(self, addresses: Mapping[str, str] | Mapping[int, str]) -> None:
        if addresses and not isinstance(addresses, Mapping):
            raise LocalProtocolError(
                f"members={addresses!r} must be a mapping of names to addresses, as"
                " {'name': 'host:port'}"
            )
        if not addresses:
            raise LocalProtocolError(
                "members is empty: list every member, this one included, as {'name': 'host:port'}"
            )
        if len(addresses) > GROUP_SIZE_MAX:
            raise LocalProtocolError(f"{len(addresses)} members, at most {GROUP_SIZE_MAX}")
        by_name = {str(name): address for name, address in addresses.items()}
        if len(by_name) < len(addresses):
            raise LocalProtocolError("two members have the same name")
        numbered = all(name.isdecimal() for name in by_name)
        self.names = tuple(sorted(by_name, key=lambda name: (int(name) if numbered else 0, name)))
        for name in self.names:
            if not name or len(name.encode()) > NAME_BYTES_MAX or not name.isprintable():
                raise LocalProtocolError(
                    f"member name {name!r} must be 1 to {NAME_BYTES_MAX} printable bytes"
                )
        self.addresses: dict[ProcessId, Address] = {
            ProcessId(at): _parse(name, by_name[name]) for at, name in enumerate(self.names)
        }
        taken: dict[Address, str] = {}
        for at, name in enumerate(self.names):
            address = self.addresses[ProcessId(at)]
            if not address[1] and len(self.names) > 1:
                raise LocalProtocolError(
                    f"member {name!r} has port 0, where the others cannot find it: choose one"
                )
            if address in taken:
                raise LocalProtocolError(
                    f"members {taken[address]!r} and {name!r} have the same address"
                    f" {address[0]}:{address[1]}"
                )
            taken[address] = name

    def id_of(self, name: str | int) -> ProcessId:
        """Return the id of this member.  Raises LocalProtocolError."""
        try:
            return ProcessId(self.names.index(str(name)))
        except ValueError:
            raise LocalProtocolError(
                f"{name!r} is no member; members are {', '.join(self.names)}"
            ) from None

    @property
    def present(self) -> dict[ProcessId, str]:
        """Names by id."""
        return {ProcessId(at): name for at, name in enumerate(self.names)}

    @property
    def group(self) -> str:
        """What must be the same at all members."""
        return "\n".join(self.names)

    def address_of(self, member: ProcessId) -> Address:
        """Return where the data sockets of this member are."""
        return self.addresses[member]

    @property
    def on_one_machine(self) -> bool:
        """Whether all addresses are loopback ones: then one clock serves all members."""
        return all(is_loopback(host) for host, _ in self.addresses.values())


def listed(
    members: Mapping[str, str] | Mapping[int, str], me: str | int, *, insecure: bool
) -> Members:
    """Return the members of a list that we may take part in.  Raises LocalProtocolError."""
    found = Members(members)
    identity = found.id_of(me)
    name, host = found.names[identity], found.address_of(identity)[0]
    if not is_loopback(host) and not insecure:
        raise LocalProtocolError(
            f"{name!r} would listen on {host}, which other machines can reach, and"
            " nothing is encrypted or authenticated yet: use a loopback address, or say"
            " insecure=True if you trust this network"
        )
    if is_loopback(host) and not found.on_one_machine:
        raise LocalProtocolError(
            f"{name!r} is at {host}, where members on other machines cannot reach it:"
            " give it an address of this machine's network"
        )
    return found


def _parse(name: str, address: str) -> Address:
    host, colon, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
    if not host or not colon or not port.isdecimal() or int(port) > 65_535 or ":" in host:
        raise LocalProtocolError(
            f"address {address!r} of member {name!r} must be 'host:port' with an IPv4 host,"
            " such as '127.0.0.1:7400'"
        )
    return host, int(port)
