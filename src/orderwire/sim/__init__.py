"""The deterministic simulator: the cores of the real runtime, in simulated time, with drawn faults.

`simulate(scenario, seed)` is a function: the same arguments give the same run, to the last event.
`world`, `network`, `clocks` and `host` know no protocol; `group` and `run` are the ordering family.
"""

from orderwire.sim.diagram import space_time
from orderwire.sim.run import Run, simulate
from orderwire.sim.scenario import Scenario, read_scenario
from orderwire.sim.scenarios import SCENARIOS, find_scenario

__all__ = [
    "SCENARIOS",
    "Run",
    "Scenario",
    "find_scenario",
    "read_scenario",
    "simulate",
    "space_time",
]
