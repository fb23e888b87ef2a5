"""Interest-only delivery on real sockets: samples flow as with complete MAPs."""

import logging
from contextlib import AsyncExitStack
from typing import Any

import pytest
from discovered import domain, first, in_a_loop, until

from orderwire import Backbone, DeltaCausal, LocalProtocolError, Participant, Topic

pytestmark = [pytest.mark.network, pytest.mark.timeout(240)]

CHAT = Topic("chat/a", DeltaCausal(lifetime_ms=2_000))
NEWS = Topic("news", CHAT.order)
SECRET = Topic("secret", CHAT.order)


def member(name: str, bootstrap: str, **more: Any) -> Participant:
    return Participant(name, domain="test", bootstrap=bootstrap, interest_only=True, **more)


def topics(of: Participant, name: str) -> list[str]:
    (peer,) = [each for each in of.peers() if each.name == name]
    return [each.topic for each in peer.map.endpoints]


@in_a_loop
async def test_samples_flow_and_only_what_matches_is_known() -> None:
    async with AsyncExitStack() as stack:
        at = await stack.enter_async_context(domain("test"))
        ana, ben, carl = [
            await stack.enter_async_context(member(name, at)) for name in ("ana", "ben", "carl")
        ]
        writer = ana.writer(CHAT)
        ana.writer(SECRET)
        reader = ben.reader("chat/*", order=CHAT.order)
        await writer.wait_matched(1, timeout_s=60)
        writer.write(b"one")
        assert await first(reader) == b"one"
        await until(lambda: len(ana.peers()) == len(carl.peers()) == 2)
        assert [each.name for each in carl.peers() if each.address is not None]
        assert topics(ben, "ana") == ["chat/a"]
        assert topics(ana, "ben") == ["chat/*"]
        assert topics(carl, "ana") == topics(carl, "ben") == []
        assert (ana.connected, carl.connected) == (("ben",), ())

        late = carl.reader(CHAT)  # and a reader that appears is told, and gets what is written
        await writer.wait_matched(2, timeout_s=60)
        writer.write(b"two")
        assert [await first(reader), await first(late)] == [b"two", b"two"]
        reader.close()
        await until(lambda: writer.matched == 1 and ana.connected == ("carl",))
        assert topics(ben, "ana") == []
        back = carl.writer(NEWS)
        ana.reader("**", order=NEWS.order)
        await back.wait_matched(1, timeout_s=60)
        await until(lambda: ana.shared_topics(ana.peers()[1]) == ["chat/a", "news"]
                    or ana.shared_topics(ana.peers()[0]) == ["chat/a", "news"])  # fmt: skip


@in_a_loop
async def test_who_leaves_and_comes_again_is_matched_again() -> None:
    async with domain("test") as at, member("ana", at) as ana:
        writer = ana.writer(CHAT)
        for _ in range(3):
            async with member("ben", at) as ben:
                reader = ben.reader(CHAT)
                await writer.wait_matched(1, timeout_s=60)
                writer.write(b"hello")
                assert await first(reader) == b"hello"
            await until(lambda: writer.matched == 0 and ana.peers() == [])


@pytest.mark.parametrize("first_is", [True, False])
def test_in_a_mixed_domain_the_oldest_is_right(
    first_is: bool, caplog: pytest.LogCaptureFixture
) -> None:
    @in_a_loop
    async def mixed() -> None:
        async with AsyncExitStack() as stack:
            at = await stack.enter_async_context(domain("test"))

            async def start(name: str, interest_only: bool) -> Participant:
                return await stack.enter_async_context(
                    Participant(name, domain="test", bootstrap=at, interest_only=interest_only)
                )

            ana = await start("ana", first_is)
            wrong = await start("wrong", not first_is)
            ben = await start("ben", first_is)  # it meets one of the other kind that is older
            also = await start("also wrong", not first_is)
            for each in (wrong, also):
                await until(lambda each=each: bool(each._lost_id))  # type: ignore[misc]
                with pytest.raises(LocalProtocolError, match=r"must be the same at all"):
                    each.writer(CHAT)
            carl = await start("carl", first_is)
            writer = ana.writer(CHAT)
            for each in (ben, carl):
                each.reader(CHAT)
            await writer.wait_matched(2, timeout_s=60)
            await until(lambda: {each.name for each in ana.peers()} == {"ben", "carl"})
            assert "'ana' has" in caplog.text

    with caplog.at_level(logging.WARNING):
        mixed()


def test_such_a_domain_has_no_gateways() -> None:
    with pytest.raises(LocalProtocolError, match="has no gateways"):
        member("ana", "127.0.0.1:1", gateway=Backbone(domain="bone", bootstrap="127.0.0.1:2"))
