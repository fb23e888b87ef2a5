"""Mutual TLS: members of the domain talk, everyone else learns nothing and is counted."""

import asyncio
import ssl
from pathlib import Path

import pytest
from certificates import Authority
from discovery_net import Place, RawPeer, in_virtual_time, until

from orderwire.aio.discovery_faults import Fault
from orderwire.aio.discovery_tls import Credentials
from orderwire.aio.discovery_transport import DiscoveryTransport
from orderwire.kernel import NS_PER_S, LocalProtocolError

pytestmark = pytest.mark.network


def test_members_talk(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "domain")

    async def work() -> None:
        places = [
            await Place.open(credentials=authority.credentials(name)) for name in ("ana", "bo")
        ]
        for sender, receiver in (places, places[::-1]):
            sender.post(receiver, b"m")
            sender.post(receiver, bytes(1 << 20))
        await until(lambda: all(len(place.got) == 2 for place in places))
        assert [place.unreachable for place in places] == [[], []]
        await asyncio.gather(*(place.transport.close() for place in places))
        assert [place.refused for place in places] == [0, 0]

    in_virtual_time(work)


def client(authority: Authority | None, shows: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if shows is not None:
        context.load_cert_chain(*shows)
    return context


@pytest.mark.parametrize("outsider", ["plain", "no certificate", "another CA", "old TLS"])
def test_outsiders_learn_nothing(tmp_path: Path, outsider: str) -> None:
    authority, other = Authority(tmp_path, "domain"), Authority(tmp_path, "other")
    context = {
        "plain": None,
        "no certificate": client(None, None),
        "another CA": client(other, other.issue("eve")),
        "old TLS": client(authority, authority.issue("old")),
    }[outsider]
    if outsider == "old TLS":
        assert context is not None
        context.maximum_version = ssl.TLSVersion.TLSv1_2

    async def work() -> None:
        place = await Place.open(credentials=authority.credentials("ana"))
        try:
            peer = await RawPeer.call(place, ssl=context)
            peer.send(peer.hello(place))
            learnt = await peer.rest()
            await peer.close()
        except (ssl.SSLError, ConnectionResetError):
            learnt = b""
        assert b"OWD1" not in learnt
        assert not learnt or outsider == "plain", "an alert, at most"
        assert len(learnt) < 20
        await until(lambda: place.transport.refusals == {"127.0.0.1": 1})
        assert place.transport.faults == {Fault.UNPROTECTED: 1}
        await place.transport.close()

    in_virtual_time(work)


def test_a_member_does_not_talk_to_an_outsider_that_it_calls(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path, "domain"), Authority(tmp_path, "other")

    async def work() -> None:
        member = await Place.open(credentials=authority.credentials("ana"))
        outsider = await Place.open(credentials=other.credentials("eve"))
        member.post(outsider, b"secret")
        await until(lambda: member.unreachable == [outsider.address])
        assert not outsider.got
        await until(lambda: outsider.refused >= 1)
        await asyncio.gather(member.transport.close(), outsider.transport.close())

    in_virtual_time(work)


def test_a_handshake_that_does_not_go_on_is_given_up(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "domain")

    async def work() -> None:
        place = await Place.open(
            credentials=authority.credentials("ana"), hello_ns=2 * NS_PER_S, unknown_max=5
        )
        silent = [await RawPeer.call(place) for _ in range(8)]
        await until(lambda: place.refused == 3)  # The oldest made room …
        await until(lambda: place.refused == 8)  # … and the others took too long.
        assert place.transport.open_sockets == 0
        for peer in silent:
            await peer.close()
        await place.transport.close()

    in_virtual_time(work)


def test_handshakes_that_failed_leave_their_place_to_others(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "domain")

    async def work() -> None:
        places = [
            await Place.open(credentials=authority.credentials(name), inbound_max=2)
            for name in ("ana", "bo")
        ]
        for number in range(4):
            peer = await RawPeer.call(places[0])
            peer.send(b"no TLS at all, but long enough to be taken for some")
            await peer.rest()
            await peer.close()
            await until(lambda: places[0].refused == number + 1)  # noqa: B023
        places[1].post(places[0], b"m")
        await until(lambda: places[0].messages() == [b"m"])
        await asyncio.gather(*(place.transport.close() for place in places))

    in_virtual_time(work)


def test_with_credentials_other_machines_may_call(tmp_path: Path) -> None:
    credentials = Authority(tmp_path, "domain").credentials("ana")

    async def work() -> None:
        transport = await DiscoveryTransport.open(
            "0.0.0.0:0", domain="d", credentials=credentials, advertise="127.0.0.1:7400"
        )
        transport.start(lambda source, data: None, lambda address: None)
        await transport.close()

    in_virtual_time(work)


def test_files_that_do_not_fit_are_named(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "domain")
    cert, _ = authority.issue("ana")
    _, key = authority.issue("bo")
    with pytest.raises(LocalProtocolError, match=r"ana\.pem"):
        Credentials.load(cert=cert, key=key, ca=authority.ca)
    with pytest.raises(LocalProtocolError, match=r"missing\.pem"):
        Credentials.load(cert=tmp_path / "missing.pem", key=key, ca=authority.ca)
