"""What a participant says of a domain whose members find each other."""

from orderwire.aio.endpoint import Endpoint
from orderwire.discovery.maps import EndpointData
from orderwire.kernel import LocalProtocolError
from orderwire.participant.backbone import GatewayState
from orderwire.participant.discovering import Discovering
from orderwire.participant.members import Members
from orderwire.participant.peers import Peer
from orderwire.participant.samples import DiscoveryCounters


class Finding:
    """The part of `Participant` that speaks of discovery."""

    name: str
    _members: Members | Discovering

    def _opened(self) -> Endpoint:
        raise NotImplementedError

    def peers(self) -> list[Peer]:
        """Return what the others tell of themselves: our domain's by id, then those of others.

        Of other domains' participants (`ForeignPeer`) only topics are told that somebody here may
        match, and no samples go between them and us.

        Raises LocalProtocolError in a group by address list.
        """
        self._opened()
        others = self._domain_of_others()
        own, foreign = sorted(others.peers.items()), sorted(others.foreign.peers.items())
        return [*(peer for _, peer in own), *(peer for _, peer in foreign)]

    def shared_topics(self, peer: Peer) -> list[str]:
        """Return the topics that we write and this participant reads, or the other way round."""
        own = self._domain_of_others().offers
        return peer.offers_to(own).shared_with(own)

    @property
    def gateway(self) -> GatewayState | None:
        """How it stands as a gateway; None for one that is not willing to be one."""
        self._opened()
        members = self._members
        if not isinstance(members, Discovering) or members.backbones is None:
            return None
        return members.backbones.state

    @property
    def listens(self) -> str:
        """Where others reach our discovery.  Raises LocalProtocolError in a listed group."""
        self._opened()
        return self._domain_of_others().listens

    @property
    def endpoints(self) -> tuple[EndpointData, ...]:
        """What the others are told that we write and read.

        Raises LocalProtocolError in a listed group.
        """
        self._opened()
        return self._domain_of_others().endpoints

    @property
    def discovery_counters(self) -> DiscoveryCounters:
        """What our discovery counted.  Raises LocalProtocolError in a listed group."""
        endpoint = self._opened()
        return self._domain_of_others().counters(endpoint.unknown + endpoint.connections.unknown)

    def _domain_of_others(self) -> Discovering:
        if not isinstance(self._members, Discovering):
            raise LocalProtocolError(
                f"{self.name!r} is in a group by address list, which does not discover: give it"
                " domain='…'"
            )
        return self._members
