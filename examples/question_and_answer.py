"""An answer never overtakes its question, though they are on different topics.

Ana asks; Ben answers at once; Carl reads both.  The way from Ana to Carl is slow, so the answer
reaches him first.  In Δ-causal order it is held until the question has come.
"""

import asyncio

from orderwire import DeltaCausal, Order, Participant, Sample, Topic, Unordered

MEMBERS = {"ana": "127.0.0.1:7411", "ben": "127.0.0.1:7412", "carl": "127.0.0.1:7413"}
CARL = 2


class SlowToCarl:
    """An impairment: what is sent to Carl takes 60 ms, everything else no time."""

    def fate(self, to: int, data: bytes) -> list[int]:
        return [60_000_000] if to == CARL else [0]


async def talk(order: Order) -> None:
    questions, answers = Topic("talk/questions", order), Topic("talk/answers", order)
    async with (
        Participant("ana", members=MEMBERS, impairment=SlowToCarl()) as ana,
        Participant("ben", members=MEMBERS) as ben,
        Participant("carl", members=MEMBERS) as carl,
    ):
        asking, answering = ana.writer(questions), ben.writer(answers)

        def answer(question: Sample) -> None:
            answering.write(b"Yes, at noon.")

        ben.reader(questions, callback=answer)
        reader = carl.reader("talk/**", order=order)
        await asking.wait_matched(2)
        await answering.wait_matched(1)

        asking.write(b"Lunch today?")
        for _ in range(2):
            sample = await reader.read()
            held = "held" if sample.held_ms > 1 else "at once"
            print(f"  {sample.source}: {sample.data.decode():<14} ({held})")


async def main() -> None:
    for order in (Unordered(), DeltaCausal.conference()):
        print(f"Carl reads, {type(order).__name__}:")
        await talk(order)


asyncio.run(main())
