"""What one process has with the process at another address: at most one connection that is used.

Both may call at the same time, each several times.  The side with the smaller address chooses: the
first connection on which both have said hello.  It says CHOSEN there; only then do messages flow,
and all other connections of the two are closed.  [FDP/1 R18, decision 0015]
"""

from typing import Protocol

from orderwire.aio.discovery_dialling import Session
from orderwire.aio.discovery_frames import FrameKind, Outgoing
from orderwire.aio.discovery_stream import UNSENT_BYTES_MAX, DiscoveryStream
from orderwire.kernel import RemoteProtocolError


class LinkOwner(Protocol):
    """What a link asks of the transport, and tells it."""

    @property
    def closing(self) -> bool:
        """Whether links end as soon as nothing waits."""
        ...

    def next_turn(self) -> int:
        """Return a number larger than all before."""
        ...

    def greet(self, stream: DiscoveryStream, link: "Link") -> None:
        """Say hello on this connection, unless that was said."""
        ...

    def dial(self, link: "Link", session: Session) -> None:
        """Begin to connect, now or when there is room for one more."""
        ...

    def dirty(self, link: "Link") -> None:
        """Write what waits, when the loop turns."""
        ...

    def failed(self, link: "Link", why: str, dropped: int) -> None:
        """The other side cannot be reached, or its connection broke: what waited is gone."""
        ...

    def ended(self, link: "Link") -> None:
        """Nothing is left of this link."""
        ...


class Link:
    """The connections with one address, and what waits for them."""

    def __init__(self, owner: LinkOwner, mine: str, address: str) -> None:
        self._owner = owner
        self.address = address
        self._chooses = mine < address
        self.turn = owner.next_turn()
        self.chosen: DiscoveryStream | None = None
        self.candidates: dict[DiscoveryStream, None] = {}
        """Connections that are not chosen yet, in the order in which they came."""
        self.outgoing = Outgoing()
        self.session: Session | None = None
        """What we do to connect."""

    def post(self, message: bytes, *, urgent: bool) -> None:
        """Send this, or let it wait for a connection."""
        self.outgoing.add(message, urgent=urgent)
        if self.chosen is None:
            self._want()
        elif not self.chosen.said_bye:
            self._owner.dirty(self)

    def _want(self) -> None:
        """Connect, unless that is under way."""
        if self.session is None and self.chosen is None:
            self.session = Session()
            self._owner.dial(self, self.session)

    # What the connections bring.

    def joined(self, stream: DiscoveryStream) -> None:
        """Take a connection that we dialled."""
        stream.peer = self.address
        self.candidates[stream] = None
        self._owner.greet(stream, self)

    def greeted(self, stream: DiscoveryStream) -> None:
        """Take a connection on which the other side has said hello."""
        stream.peer = self.address
        self.candidates[stream] = None
        chosen = self.chosen
        if chosen is not None and chosen.said_bye and self._is_of_chosen(stream):
            return  # What that one still brings comes first.
        self._consider(stream)

    def _is_of_chosen(self, stream: DiscoveryStream) -> bool:
        """Whether the process that has the chosen connection has this one, too."""
        assert self.chosen is not None
        ours, new = self.chosen.hello, stream.hello
        return ours is not None and new is not None and ours.nonce == new.nonce

    def _consider(self, stream: DiscoveryStream) -> None:
        """Answer a hello: choose the connection, leave the choice to the other, or close it."""
        assert stream.hello is not None
        if not self._chooses:
            self._owner.greet(stream, self)
            return
        if self.chosen is not None:
            assert self.chosen.hello is not None
            newer = stream.hello.turn > self.chosen.hello.turn
            if self._is_of_chosen(stream) and not newer:
                self._discard(stream)  # The other side has the chosen one, or soon will.
                return
        self._owner.greet(stream, self)
        stream.send(FrameKind.CHOSEN)
        self._use(stream)

    def told(self, stream: DiscoveryStream) -> None:
        """Use this connection: the other side has chosen it.  Raises RemoteProtocolError."""
        if self._chooses or stream.hello is None or stream not in self.candidates:
            raise RemoteProtocolError(f"{self.address} chose a connection that it may not choose")
        self._use(stream)

    def _use(self, stream: DiscoveryStream) -> None:
        old, self.chosen = self.chosen, stream
        del self.candidates[stream]
        self._stop_dialling()
        for other in list(self.candidates):
            self._discard(other)
        if old is not None:
            # It broke, or its process ended, and only the other side has noticed.
            old.abort()
            self.outgoing.begin_again()
            self._owner.failed(self, "the other side connected anew", 0)
        if self.chosen is stream and (self.outgoing or self._owner.closing):
            self._owner.dirty(self)

    def _discard(self, stream: DiscoveryStream) -> None:
        self.candidates.pop(stream, None)
        stream.abort()

    def _stop_dialling(self) -> None:
        if self.session is not None:
            self.session.end()
            self.session = None

    # Sending.

    def pump(self) -> None:
        """Write what waits, as far as the kernel takes it; say BYE when that is all."""
        stream = self.chosen
        if stream is None:
            if self._owner.closing and not self.outgoing:
                self.abort()
            return
        if stream.said_bye:
            return
        while self.outgoing and not stream.paused and stream.open:
            stream.write(self.outgoing.take(UNSENT_BYTES_MAX))
        if not self.outgoing and (stream.got_bye or self._owner.closing):
            self.leave()

    def leave(self) -> None:
        """Say that nothing more comes; when the other side has said it too, the connection ends."""
        stream = self.chosen
        assert stream is not None
        assert not stream.said_bye, "BYE is said once"
        stream.said_bye = True
        stream.send(FrameKind.END if self._owner.closing else FrameKind.BYE)
        if stream.got_bye:
            self._over(stream)

    def bye(self, stream: DiscoveryStream, *, ends: bool) -> None:
        """The other side sends nothing more; when its process ends, it takes nothing more either.

        Raises RemoteProtocolError.
        """
        if stream is not self.chosen or stream.got_bye:
            raise RemoteProtocolError(f"{self.address} said BYE where nothing was begun")
        stream.got_bye = True
        if ends:
            self._owner.failed(self, "it ended", self.outgoing.clear())
        if stream.said_bye:
            self._over(stream)
        else:
            self.pump()

    # Endings.

    def _over(self, stream: DiscoveryStream) -> None:
        """Both sides have said BYE: nothing is lost."""
        self.chosen = None
        stream.close()
        self._next()

    def _next(self) -> None:
        """After a connection: another turn, with what came meanwhile."""
        self.turn = self._owner.next_turn()
        for stream in list(self.candidates):
            if stream.hello is not None and self.chosen is None:
                self._consider(stream)
        if self.chosen is None and self.outgoing:
            self._want()
        self._look()

    def lost(self, stream: DiscoveryStream, why: str) -> None:
        """A connection is gone."""
        if stream is self.chosen:
            self.chosen = None
            if stream.got_bye and not self.outgoing:
                self._next()  # It had nothing more to say, and neither had we.
            else:
                self._fail(why)
        elif stream in self.candidates:
            del self.candidates[stream]
            self.attempt_failed(why)

    def attempt_failed(self, why: str) -> None:
        """One way to connect is gone; give up when it was the last."""
        if self.session is not None and not self.session.busy and not self.candidates:
            self._fail(why)
        else:
            self._look()

    def give_up(self, why: str) -> None:
        """It took too long."""
        for stream in list(self.candidates):
            self._discard(stream)
        self._fail(why)

    def _fail(self, why: str) -> None:
        self._stop_dialling()
        dropped = self.outgoing.clear()
        self._owner.failed(self, why, dropped)
        self._next()

    def _look(self) -> None:
        if self.is_idle:
            self._owner.ended(self)

    @property
    def has_candidates(self) -> bool:
        """Whether connections stand that one could be chosen of."""
        return bool(self.candidates)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is left of this link."""
        return not (self.chosen or self.candidates or self.session or self.outgoing)

    def abort(self) -> None:
        """End all at once and tell nobody."""
        self._stop_dialling()
        self.outgoing.clear()
        for stream in list(self.candidates):
            self._discard(stream)
        chosen, self.chosen = self.chosen, None
        if chosen is not None:
            chosen.abort()
        self._owner.ended(self)
