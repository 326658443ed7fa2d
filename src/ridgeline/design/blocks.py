"""Turn a library of blocks, each with its price and what it does to quality, into the best mixed stack of layers.

    least   sum of seconds over layers        one block in each layer
    such that the sum of quality penalties <= a budget, and cache bytes <= what memory leaves

An integer program, solved exactly (HiGHS). A block whose effect on quality nobody knows is refused, not taken as free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.models.spec import Block
from ridgeline.plan.scenario import Scenario
from ridgeline.sim.batches import MachineRows


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryBlock:
    """One kind of layer.

    seconds     that one layer of it adds to a step
    cache_bytes   of one token
    penalty     loss that replacing one layer by it adds, in nats, by layer or the same for all; None: unknown
    source      who measured that
    """

    name: str
    seconds: float
    cache_bytes: float
    penalty: float | tuple[float, ...] | None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedStack:
    """The block of every layer, and what the stack takes."""

    layers: tuple[str, ...]
    seconds: float
    penalty: float
    cache_bytes: float


def choose_stack(
    library: Sequence[LibraryBlock], layers: int, most_penalty: float, most_cache: float = float("inf")
) -> MixedStack:
    """The stack of least time within a budget of quality and of cache.

    >>> full = LibraryBlock(name="full", seconds=2.0, cache_bytes=4.0, penalty=0.0)
    >>> window = LibraryBlock(name="window", seconds=1.0, cache_bytes=1.0, penalty=(0.03, 0.01, 0.01, 0.03))
    >>> choose_stack([full, window], 4, most_penalty=0.02).layers
    ('full', 'window', 'window', 'full')
    """
    from scipy.optimize import Bounds, LinearConstraint, milp

    penalties = np.array([_penalties(block, layers) for block in library])
    many = len(library)
    seconds = np.repeat([block.seconds for block in library], layers)
    caches = np.repeat([block.cache_bytes for block in library], layers)
    one_each = np.tile(np.eye(layers), many)
    rows = [LinearConstraint(one_each, 1, 1), LinearConstraint(penalties.reshape(1, -1), -np.inf, most_penalty)]
    if np.isfinite(most_cache):
        rows.append(LinearConstraint(caches.reshape(1, -1), -np.inf, most_cache))
    solution = milp(seconds, constraints=rows, bounds=Bounds(0, 1), integrality=np.ones(many * layers, dtype=np.int64))
    if solution.x is None:
        expectation = "a budget that some stack of these blocks keeps"
        raise InputError(
            Problem(path="blocks", given=f"penalty {most_penalty:g}, cache {most_cache:g} B", expected=expectation)
        )
    choice = solution.x.reshape(many, layers).round().argmax(0)
    return MixedStack(
        layers=tuple(library[place].name for place in choice),
        seconds=float(sum(library[place].seconds for place in choice)),
        penalty=float(penalties[choice, np.arange(layers)].sum()),
        cache_bytes=float(sum(library[place].cache_bytes for place in choice)),
    )


def _penalties(block: LibraryBlock, layers: int) -> list[float]:
    if block.penalty is None:
        expectation = "a measured penalty in nats, with its source"
        raise InputError(Problem(path=f"blocks.{block.name}.penalty", given="unknown", expected=expectation))
    values = [block.penalty] * layers if isinstance(block.penalty, float) else [*block.penalty]
    if len(values) != layers:
        raise InputError(
            Problem(path=f"blocks.{block.name}.penalty", given=f"{len(values)} values", expected=f"{layers}")
        )
    return values


def block_seconds(scenario: Scenario, block: Block) -> float:
    """Seconds that one layer of a block adds to a scenario's step: a stack of it twice as deep, less the stack, by
    layer; nothing else of the two differs."""
    model = scenario.model
    layers = model.layers
    single = replace(model, blocks=(block,), order=(0,) * layers)
    two = replace(single, order=(0,) * (2 * layers))
    seconds = [float(MachineRows(replace(scenario, model=spec)).times({}, 1).seconds[0]) for spec in (single, two)]
    return (seconds[1] - seconds[0]) / layers
