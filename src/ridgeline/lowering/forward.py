"""Turn a scenario and engine steps into the sections that one rank of a serving instance executes for them."""

from __future__ import annotations

import numpy as np

from ridgeline.core.arrays import Array, Mask
from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps
from ridgeline.ir.program import Section
from ridgeline.lowering.context import Degrees, ForwardWork, LoweringContext
from ridgeline.lowering.program import sections_of, stages_of
from ridgeline.models.spec import Moe
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Prefill

BEYOND = 16.0  # tokens between captured sizes beyond 256


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ForwardProgram:
    """Sections of engine steps with columns for sizes, and how often each stands in each pipeline stage."""

    ctx: LoweringContext
    sections: tuple[Section, ...]
    stages: tuple[tuple[int, ...], ...]
    graphed: Mask


def captured_size(tokens: Array) -> Array:
    """The captured graph that a decode step of so many tokens runs in: 1, 2, 4, then every 8 to 256 and every 16.

    >>> captured_size(np.array([1.0, 3.0, 5.0, 100.0, 300.0])).tolist()
    [1.0, 4.0, 8.0, 104.0, 304.0]
    """
    few = np.where(tokens <= 2, np.ceil(tokens), np.where(tokens <= 4, 4.0, np.ceil(tokens / 8) * 8))
    return np.where(tokens <= 256, few, np.ceil(tokens / BEYOND) * BEYOND)


def expert_degrees(scenario: Scenario) -> Degrees:
    """Degrees of a serving instance: its experts stand on all ranks of a stage (tp x dp), ep of them apart and each
    split over the rest."""
    mesh = scenario.plan.mesh
    moe = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)
    etp = max(mesh.etp, mesh.tp * mesh.dp // mesh.ep) if moe else 1
    return Degrees(tp=mesh.tp, cp=1, ep=mesh.ep if moe else 1, etp=etp)


def lower_forward(scenario: Scenario, steps: ForwardSteps, graph_batch: int = 0) -> ForwardProgram:
    """The sections of engine steps; decode-only steps of at most `graph_batch` tokens run padded to a captured size."""
    graphed = (steps.prefill_tokens == 0) & (steps.tokens <= graph_batch)
    tokens = np.where(graphed, captured_size(steps.tokens), steps.tokens)
    work = ForwardWork(steps=steps, tokens=np.maximum(tokens, 1.0), dp=scenario.plan.mesh.dp)
    share = 1 / scenario.workload.seq if isinstance(scenario.workload, Prefill) else 0.0
    ctx = LoweringContext(
        model=scenario.model,
        engine=scenario.engine,
        resolved=resolve(scenario),
        degrees=expert_degrees(scenario),
        queries=1,
        source=scenario.source,
        seen=scenario.seen.times(share),
        heard=scenario.heard.times(share),
        keys=1,
        backward=False,
        forward=work,
    )
    return ForwardProgram(
        ctx=ctx, sections=sections_of(ctx), stages=stages_of(ctx, scenario.placement), graphed=graphed
    )
