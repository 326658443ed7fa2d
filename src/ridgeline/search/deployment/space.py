"""Turn a serve scenario and what is pinned of its plan into the replicas that are searched.

A replica takes one choice of each axis of `shape.AXES`. Degrees that divide nothing, formats that the chip has no peak
for and what the engine does not support are not offered; `plan.check` is the judge.

    tp           as far as the closest links go          pp    powers of two
    dp, ep       attention ranks and expert ranks, for models with experts: experts over all tp x dp ranks, as the
                 engines run them, or none
    precision    bf16; fp8 products and weights, with the cache in bf16 or fp8; nvfp4 where the chip has it
    speculation  none, unless it is pinned: how many drafts are accepted is a fact of the text
    tokens, seqs the engine's own limits first, then others
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, Literal

from ridgeline.core.dtype import dtype
from ridgeline.core.records import dataclass
from ridgeline.models.spec import Moe
from ridgeline.plan.check import check
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Precision
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import EngineKnobs, StaticKnobs, default_knobs
from ridgeline.plan.serving_settings import Speculation
from ridgeline.search.deployment.shape import Shape
from ridgeline.search.space import powers_of_two, tensor_degrees
from ridgeline.search.target import ExportTarget
from ridgeline.sim import limits_of

DEEPEST = 8  # pipeline stages of a replica that are tried
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
SEQS = (64, 128, 256, 512)
OF_THE_MESH = ("plan.dp",)  # problems of a replica alone that its fleet does not have

Split = Literal["aggregated", "disaggregated"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentSpace:
    """Choices along each axis; of tokens, seqs and prefix the first is tried first.

    ep         None: none, or all ranks of the replica
    replicas   None: as many as it takes
    target     who has to be told the replicas; None: nobody
    """

    tp: tuple[int, ...]
    pp: tuple[int, ...]
    dp: tuple[int, ...]
    ep: tuple[int, ...] | None
    precision: tuple[Precision, ...]
    speculation: tuple[Speculation | None, ...]
    tokens: tuple[int | None, ...]
    seqs: tuple[int | None, ...]
    prefix: tuple[bool, ...]
    replicas: tuple[int, ...] | None
    split: tuple[Split, ...]
    target: ExportTarget | None = None

    def of(self, axis: str) -> tuple[Any, ...]:
        """The choices along an axis."""
        values: tuple[Any, ...] | None = getattr(self, axis)
        return values or ()


def deployment_space(scenario: Scenario, shares_prefixes: bool = False) -> DeploymentSpace:
    """Everything that the engine supports on these chips."""
    axes: set[str] = set(scenario.engine.supports.axes)
    experts = any(isinstance(block.ffn, Moe) for block in scenario.model.blocks)
    chips, limits = scenario.system.chips, limits_of(scenario)
    return DeploymentSpace(
        tp=tensor_degrees(scenario.system) if "tp" in axes else (1,),
        pp=tuple(powers_of_two(min(chips, DEEPEST, scenario.model.layers))) if "pp" in axes else (1,),
        dp=tuple(powers_of_two(chips)) if experts and {"dp", "ep"} <= axes else (1,),
        ep=None if experts and "ep" in axes else (1,),
        precision=tuple(_formats(scenario)),
        speculation=(scenario.plan.speculation,),
        tokens=(None, *(many for many in TOKENS if many != limits.max_num_batched_tokens)),
        seqs=(None, *(many for many in SEQS if many < limits.max_num_seqs)),
        prefix=(True, False) if shares_prefixes else (True,),
        replicas=None,
        split=("aggregated", "disaggregated"),
    )


def _formats(scenario: Scenario) -> Iterator[Precision]:
    """Formats that the chip multiplies in and the engine serves."""
    yield Precision()
    chip, catalog_entry = scenario.system.chip, scenario.engine.supports.precision
    for name in ("fp8", "nvfp4"):
        narrow = dtype(name)
        if narrow.peak in chip.peak and name in catalog_entry:
            if name == "fp8":
                yield Precision(compute=narrow, weights=narrow)
            yield Precision(compute=narrow, weights=narrow, kv=dtype("fp8"))


def usual_knobs(scenario: Scenario) -> EngineKnobs:
    """The scheduler's settings that the plan names, or the engine's own."""
    knobs = scenario.plan.serving.knobs
    return default_knobs(scenario.engine.id) if knobs is None or isinstance(knobs, StaticKnobs) else knobs


def shapes(scenario: Scenario, space: DeploymentSpace) -> Iterator[Shape]:
    """Every replica that fits on the chips and can run, with the first choice of each setting."""
    knobs = usual_knobs(scenario)
    for tp, pp, dp in product(space.tp, space.pp, space.dp):
        if tp * pp * dp > scenario.system.chips:
            continue
        for ep, precision, speculation in product(_expert_degrees(space, tp, dp), space.precision, space.speculation):
            candidate_value = Shape(
                mesh=Mesh(tp=tp, pp=pp, dp=dp, ep=ep), precision=precision, speculation=speculation, knobs=knobs
            )
            for axis in ("tokens", "seqs", "prefix"):
                first = space.of(axis)[0]
                candidate_value = candidate_value.with_setting(axis, first) if first is not None else candidate_value
            if not _problems(scenario, candidate_value) and _is_expressible(scenario, space, candidate_value):
                yield candidate_value


def _is_expressible(scenario: Scenario, space: DeploymentSpace, shape: Shape) -> bool:
    return space.target is None or not space.target.capability.unsupported_decisions(shape.scenario(scenario))


def _expert_degrees(space: DeploymentSpace, tp: int, dp: int) -> tuple[int, ...]:
    """Expert ranks: none or all; attention ranks that step together share experts, else they were replicas."""
    if space.ep is not None:
        return space.ep
    return (tp * dp,) if dp > 1 else tuple(dict.fromkeys((1, tp)))


def _problems(scenario: Scenario, shape: Shape) -> list[str]:
    single = shape.pooled(scenario, (shape.pool("both", 1),))
    single = replace(single, plan=replace(single.plan, mesh=shape.mesh))
    return [problem.path for problem in check(single) if problem.path not in OF_THE_MESH]
