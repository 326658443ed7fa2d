"""Turn a serve scenario and what is pinned of its plan into the replicas that are searched.

A replica (`Shape`) takes one choice of each axis. Degrees that divide nothing, formats that the chip has no peak for
and what the engine does not support are not offered; `plan.check` is the judge.

    tp           as far as the closest links go          pp    powers of two
    dp, ep       attention ranks and expert ranks, for models with experts: experts over all tp x dp ranks, as the
                 engines run them, or none
    precision    bf16; fp8 products and weights, with the cache in bf16 or fp8; nvfp4 where the chip has it
    speculation  none, unless it is pinned: how many drafts are accepted is a fact of the text
    tokens, seqs the engine's own limits first, then others
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, Literal

from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import dtype
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.core.records import dataclass
from ridgeline.hardware.system import System
from ridgeline.plan.capability import UnsupportedDecision, decision_words
from ridgeline.plan.check import check
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Precision
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import (
    KNOBS,
    SEARCHED_KNOBS,
    EngineKnobs,
    Pool,
    ServingPlan,
    Speculation,
    StaticKnobs,
    default_knobs,
)
from ridgeline.search.choices import has_experts, powers_of_two, tensor_degrees
from ridgeline.search.target import ExportTarget
from ridgeline.serving import Role
from ridgeline.sim import limits_of

AXES = ("tp", "pp", "ep", "dp", "precision", "speculation", "tokens", "seqs", "prefix")
"""What tells two replicas apart: degrees, formats of weights and cache, and settings of the scheduler."""
DEGREES = ("tp", "pp", "ep", "dp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """One kind of replica; dp of its mesh are the attention ranks that step together."""

    mesh: Mesh
    precision: Precision
    speculation: Speculation | None
    knobs: EngineKnobs

    @property
    def chips(self) -> int:
        return self.mesh.ranks

    @property
    def knob_names(self) -> Mapping[str, str]:
        """The engine's own names of the settings that are searched."""
        return SEARCHED_KNOBS[KNOBS.key_of(self.knobs)]

    def choice(self, axis: str) -> Any:
        """What is chosen along an axis of `AXES`; of the prefix cache whether it is on."""
        if axis in DEGREES:
            return getattr(self.mesh, axis)
        if axis in ("precision", "speculation"):
            return getattr(self, axis)
        name = self.knob_names[axis]
        value = getattr(self.knobs, name)
        return not value if name.startswith("disable_") else value

    def with_setting(self, axis: str, value: Any) -> Shape:
        """The same with another format, speculation or setting."""
        if axis in ("precision", "speculation"):
            change: JsonObject = {axis: value}
            return replace(self, **change)
        name = self.knob_names[axis]
        knob: JsonObject = {name: not value if name.startswith("disable_") else value}
        return replace(self, knobs=replace(self.knobs, **knob))

    def scenario(self, base: Scenario, replicas: int = 1) -> Scenario:
        """So many of these replicas on the chips of a scenario."""
        data_ranks, remainder = divmod(base.system.chips, self.mesh.tp * self.mesh.pp)
        if remainder or data_ranks % self.mesh.dp:
            return self.pooled(base, (self.pool("both", replicas),))
        serving = replace(base.plan.serving, replicas=replicas, data_parallel_size=self.mesh.dp, pools=())
        return self._with_plan(base, replace(self.mesh, dp=data_ranks), serving)

    def pooled(self, base: Scenario, pools: tuple[Pool, ...]) -> Scenario:
        """Pools of replicas with this shape's formats and settings."""
        serving = replace(base.plan.serving, pools=pools, replicas=None, data_parallel_size=1)
        return self._with_plan(base, self.mesh, serving)

    def pool(self, role: Role, replicas: int) -> Pool:
        """So many of these replicas with one role."""
        mesh = self.mesh
        return Pool(role=role, replicas=replicas, tp=mesh.tp, pp=mesh.pp, ep=mesh.ep, dp=mesh.dp)

    def _with_plan(self, base: Scenario, mesh: Mesh, serving: ServingPlan) -> Scenario:
        serving = replace(serving, knobs=self.knobs)
        plan = replace(base.plan, mesh=mesh, precision=self.precision, speculation=self.speculation, serving=serving)
        return replace(base, plan=plan)


def shape_words(shape: Shape) -> str:
    """A replica in one line: `tp=4 ep=4, fp8, cache fp8, max_num_seqs 256`.

    >>> from ridgeline.plan.serving_plan import VllmKnobs
    >>> shape_words(Shape(mesh=Mesh(tp=2), precision=Precision(), speculation=None, knobs=VllmKnobs(max_num_seqs=64)))
    'tp=2, bf16, max_num_seqs 64'
    """
    degrees = " ".join(f"{axis}={shape.choice(axis)}" for axis in DEGREES if shape.choice(axis) > 1)
    words = [degrees or "one chip", precision_words(shape.precision)]
    if shape.speculation is not None:
        words.append(speculation_words(shape.speculation))
    names = shape.knob_names
    words += [f"{names[axis]} {shape.choice(axis)}" for axis in ("tokens", "seqs") if shape.choice(axis)]
    return ", ".join([*words, *([] if shape.choice("prefix") else ["no prefix cache"])])


def precision_words(precision: Precision) -> str:
    """Formats of products and weights, and of the cache where it differs from activations."""
    weights, compute = precision.weights.id, precision.compute.id
    words = compute if weights == compute else f"{compute}, weights {weights}"
    return words if precision.kv == precision.activations else f"{words}, cache {precision.kv.id}"


def speculation_words(speculation: Speculation | None) -> str:
    """Who drafts how many tokens."""
    if speculation is None:
        return "no speculation"
    return f"{speculation.draft} drafts {speculation.draft_tokens}, {speculation.acceptance:.0%} accepted"


def choice_words(shape: Shape, axis: str) -> str:
    """What a shape chooses along an axis, in words."""
    value = shape.choice(axis)
    if axis in DEGREES:
        return f"{'attention dp' if axis == 'dp' else axis} {value}"
    if axis == "precision":
        return precision_words(shape.precision)
    if axis == "speculation":
        return speculation_words(shape.speculation)
    if axis == "prefix":
        return "prefix cache" if value else "no prefix cache"
    return f"{shape.knob_names[axis]} {value or 'by default'}"


DEEPEST = 8  # pipeline stages of a replica that are tried
TOKENS = (512, 1024, 2048, 4096, 8192, 16384)
SEQS = (64, 128, 256, 512)

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
    experts = has_experts(scenario)
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
            mesh = Mesh(tp=tp, pp=pp, dp=dp, ep=ep)
            shape = Shape(mesh=mesh, precision=precision, speculation=speculation, knobs=knobs)
            for axis in ("tokens", "seqs", "prefix"):
                if (first := space.of(axis)[0]) is not None:
                    shape = shape.with_setting(axis, first)
            if can_run(scenario, shape) and (
                space.target is None or _expresses(space.target, shape.scenario(scenario))
            ):
                yield shape


def _expresses(target: ExportTarget, scenario: Scenario) -> bool:
    return not target.capability.unsupported_decisions(scenario)


def _expert_degrees(space: DeploymentSpace, tp: int, dp: int) -> tuple[int, ...]:
    """Expert ranks: none or all; attention ranks that step together share experts, else they were replicas."""
    if space.ep is not None:
        return space.ep
    return (tp * dp,) if dp > 1 else tuple(dict.fromkeys((1, tp)))


def can_run(scenario: Scenario, shape: Shape) -> bool:
    """Whether one replica can run; that its data ranks do not fill the chips is no problem of its fleet."""
    return all(problem.path == "plan.dp" for problem in check(shape.pooled(scenario, (shape.pool("both", 1),))))


SETTINGS = ("precision", "speculation", "tokens", "seqs", "prefix")  # what is set replica by replica


def target_engines(target: ExportTarget, system: System, engines: tuple[str, ...]) -> tuple[str, ...]:
    """Engines that the target runs on a system, of those asked for; an `InputError` where it runs none of them."""
    able = target.engines(system)
    if wrong := [id for id in engines if id not in able]:
        raise InputError(not_among("--engine", wrong[0], able, f"{target.id} runs these"))
    return engines or able


def expressible_space(scenario: Scenario, space: DeploymentSpace, target: ExportTarget) -> DeploymentSpace:
    """The choices that the target supports; an `InputError` where an axis is left without any."""
    replicas = list(shapes(scenario, space))
    if not replicas:
        return space  # the search says why none can run
    plain = next((shape for shape in replicas if _expresses(target, shape.scenario(scenario))), replicas[0])

    def changed(axis: str, choice: object) -> Scenario:
        if axis != "split":
            return plain.with_setting(axis, choice).scenario(scenario)
        pools = (plain.pool("prefill", 1), plain.pool("decode", 1))
        return plain.scenario(scenario) if choice == "aggregated" else plain.pooled(scenario, pools)

    if decisions := target.unsupported_decisions(plain.scenario(scenario)):
        raise _nothing(target, decisions)
    choices: JsonObject = {
        axis: tuple(choice for choice in space.of(axis) if _expresses(target, changed(axis, choice)))
        for axis in (*SETTINGS, "split")
    }
    for axis, able in choices.items():
        if not able:
            raise _nothing(target, target.unsupported_decisions(changed(axis, space.of(axis)[0])))
    return replace(space, **choices, target=target)


def _nothing(target: ExportTarget, decisions: tuple[UnsupportedDecision, ...]) -> InputError:
    why = "; ".join(dict.fromkeys(item.why for item in decisions))
    got = f"{target.id} for {decision_words(decisions)}"
    return InputError(Problem(path="--to", given=got, expected=why[:200], todo="unpin it, or choose another target"))
