"""Turn a scenario and the number of chips that are left into the best scenario for them, for elastic runs.

The model, the workload (so the global batch and the order of its data), the engine and the precision stay; degrees,
schedule, sharding, microbatch and recompute are searched again. Not every number of chips can be used: dp must divide
the global batch, tp the heads. So the largest numbers without large prime factors are tried, and the fastest step wins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ridgeline.hardware.load import resize_name
from ridgeline.hardware.system import System
from ridgeline.plan.check import check
from ridgeline.plan.scenario import Scenario
from ridgeline.search.plan_search import find_plan

TRIED = 6  # numbers of chips
SMOOTH = (2, 3, 5, 7)


def fit_to(scenario: Scenario, chips: int, accept: Callable[[Scenario], bool] | None = None) -> Scenario | None:
    """The scenario with its fastest plan on at most so many chips; None where nothing fits in memory.

    accept   whether whoever will run a plan can; of the search's best, the first that it takes is taken

    >>> from ridgeline.plan.scenario_file import assemble
    >>> table = {"model": "llama3-8b", "system": "16xh100-sxm", "workload": {"seq": 4096, "global_batch": 32}}
    >>> fit_to(assemble(table)[0], 9).plan.mesh.ranks
    8
    """
    values: list[tuple[float, Scenario]] = []
    for count in usable(chips):
        fewer = replace(scenario, system=on_fewer(scenario.system, count))
        for entry in find_plan(fewer, most=0).swept.best:
            candidate = replace(fewer, plan=entry.plan)
            if not check(candidate) and (accept is None or accept(candidate)):
                values.append((entry.step_s, candidate))
                break
    return min(values, key=lambda one: one[0])[1] if values else None


def usable(chips: int) -> tuple[int, ...]:
    """Numbers of chips worth a search, at most `chips`: the largest smooth ones, and a power of two.

    >>> usable(9), usable(1023)
    ((9, 8, 7, 6, 5, 4), (1008, 1000, 980, 972, 960, 945, 512))
    """
    smooth = tuple(count for count, _ in zip(_smooth_below(chips), range(TRIED), strict=False))
    power = 1 << (chips.bit_length() - 1)
    return smooth if power in smooth else (*smooth, power)


def _smooth_below(chips: int) -> Iterator[int]:
    for count in range(chips, 0, -1):
        remainder = count
        for prime in SMOOTH:
            while remainder % prime == 0:
                remainder //= prime
        if remainder == 1:
            yield count


def on_fewer(system: System, chips: int) -> System:
    """The machine with some of its chips left: networks as they were, a tier that would join one chip left out."""
    tiers, chips_below = [], 1
    for tier in system.tiers:
        if min(tier.chips, chips) > chips_below:
            chips_below = min(tier.chips, chips)
            tiers.append(replace(tier, chips=chips_below))
    name = resize_name(system.name, chips)
    name_words = name if isinstance(name, str) else f"{chips} chips of {system.name}"
    return replace(system, name=name_words, chips=chips, node=min(system.node, chips), tiers=tuple(tiers))
