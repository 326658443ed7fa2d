"""One replica as a search chooses it: degrees, formats, speculation and the scheduler's settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ridgeline.core.documents import JsonObject
from ridgeline.core.records import dataclass
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Precision
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import KNOBS, SEARCHED_KNOBS, EngineKnobs, Pool, ServingPlan
from ridgeline.plan.serving_settings import Speculation
from ridgeline.serving.fleet.fleet_loop import Role

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
        serving = replace(self._serving(base), replicas=replicas, data_parallel_size=self.mesh.dp, pools=())
        return self._with_plan(base, replace(self.mesh, dp=data_ranks), serving)

    def pooled(self, base: Scenario, pools: tuple[Pool, ...]) -> Scenario:
        """Pools of replicas with this shape's formats and settings."""
        serving = replace(self._serving(base), pools=pools, replicas=None, data_parallel_size=1)
        return self._with_plan(base, self.mesh, serving)

    def pool(self, role: Role, replicas: int) -> Pool:
        """So many of these replicas with one role."""
        mesh = self.mesh
        return Pool(role=role, replicas=replicas, tp=mesh.tp, pp=mesh.pp, ep=mesh.ep, dp=mesh.dp)

    def _serving(self, base: Scenario) -> ServingPlan:
        return replace(base.plan.serving, knobs=self.knobs)

    def _with_plan(self, base: Scenario, mesh: Mesh, serving: ServingPlan) -> Scenario:
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
