"""The simulated applications: who sends what to whom, and when."""

from collections.abc import Callable
from math import lcm
from random import Random

from orderwire.kernel import Destinations, ProcessId, destinations, stream
from orderwire.ordering.pdu import Multicast
from orderwire.ordering.settings import OrderingSettings
from orderwire.sim.scenario import ScriptedSend, Workload
from orderwire.sim.world import COMMAND, EARLY_COMMAND, World


class Applications:
    """Draws all multicasts, from one stream per process, whatever the algorithm does."""

    def __init__(
        self,
        world: World,
        workload: Workload,
        settings: OrderingSettings,
        seed: int,
        submit: Callable[[ProcessId, Multicast], bool],
        *,
        grid_ns: int,
        until_ns: int | None,
    ) -> None:
        """`submit` says whether the process could send; what it could not is skipped."""
        members = settings.members
        self._world = world
        self._workload = workload
        self._submit = submit
        self._grid_ns = grid_ns
        self._until_ns = until_ns
        self._left = workload.messages
        self._answers_left = workload.answers_max
        self._chance = [stream(seed, f"workload/{me}") for me in range(members)]
        self._answering = [stream(seed, f"answers/{me}") for me in range(members)]
        self._living = [stream(seed, f"lifetimes/{me}") for me in range(members)]
        self._granule_ns = lcm(settings.tick_ns, grid_ns)
        self._granules = (settings.lifetime_ns or 0) // self._granule_ns
        """Of a lifetime: a message's own one is some of them."""
        self._own_lifetime_ratio = workload.own_lifetime_ratio
        self._others = [[p for p in range(members) if p != me] for me in range(members)]
        self._everyone = destinations(range(members))
        self._serial = 0
        self.open = members
        """Processes that have not sent all they will."""
        for me in range(members):
            self._plan(ProcessId(me))
        for send in workload.script:
            self.open += 1
            priority = EARLY_COMMAND if send.before_arrivals else COMMAND
            world.at(send.at_ns, priority, self._send_scripted, send)

    def delivered(self, me: ProcessId) -> None:
        """Perhaps answer, at this very instant."""
        ratio = self._workload.answer_ratio
        if ratio and self._answers_left and self._answering[me].random() < ratio:
            self._answers_left -= 1
            world = self._world
            world.at(world.now_ns, COMMAND, self._answer, me)

    def live_alike(self) -> None:
        """From now on give no message a lifetime of its own."""
        self._own_lifetime_ratio = 0.0

    def payload(self) -> bytes:
        """Return the next payload: a serial number, padded."""
        self._serial += 1
        return b"%d." % self._serial + b"." * (self._workload.payload_bytes - 8)

    def _plan(self, me: ProcessId) -> None:
        """Schedule this process's next multicast, or note that there is none."""
        chance = self._chance[me]
        world = self._world
        gap_ns = 0
        if not world.now_ns or chance.random() >= self._workload.burst_ratio:
            gap_ns = int(chance.expovariate(1.0) * self._workload.gap_mean_ns)
            gap_ns -= gap_ns % self._grid_ns
        at_ns = world.now_ns + gap_ns
        if self._left > 0 and (self._until_ns is None or at_ns < self._until_ns):
            self._left -= 1
            world.at(at_ns, COMMAND, self._send, me)
        else:
            self.open -= 1

    def _send(self, me: ProcessId, _: None) -> None:
        to = self._draw(me, self._chance[me])
        self._submit(me, Multicast(self.payload(), to, self._own_lifetime_ns(me)))
        self._plan(me)

    def _answer(self, me: ProcessId, _: None) -> None:
        to = self._draw(me, self._answering[me])
        self._submit(me, Multicast(self.payload(), to, self._own_lifetime_ns(me)))

    def _send_scripted(self, send: ScriptedSend, _: None) -> None:
        to = destinations(send.destinations)
        self._submit(ProcessId(send.source), Multicast(send.payload, to, send.lifetime_ns))
        self.open -= 1

    def _own_lifetime_ns(self, me: ProcessId) -> int | None:
        """Draw a lifetime below the domain's, or None."""
        ratio = self._own_lifetime_ratio
        if not ratio or self._living[me].random() >= ratio:
            return None
        return self._granule_ns * self._living[me].randint(1, max(1, self._granules - 1))

    def _draw(self, me: ProcessId, chance: Random) -> Destinations:
        """Draw a destination set."""
        workload = self._workload
        others = self._others[me]
        if not others:
            return self._everyone
        if workload.fan_out:
            mask: int = destinations(chance.sample(others, workload.fan_out))
        else:
            mask = self._everyone & ~(1 << me)
        if workload.to_self_ratio and chance.random() < workload.to_self_ratio:
            mask |= 1 << me
        return Destinations(mask)
