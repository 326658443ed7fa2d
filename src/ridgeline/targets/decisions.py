"""Turn a Scenario into every decision that takes effect in it, by path, as it is meant.

Absent values are filled in with the engine's habits, because that is what was predicted: a plan that leaves
`overlap.grad-reduce` to an engine which overlaps it has decided so. What has no effect is left out: how context ranks
exchange keys where there is one of them, how experts are dispatched in a dense model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.dtype import DType
from ridgeline.models.numerics import Numerics, numerics_of, unknown_numerics
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.plan import NARROW
from ridgeline.plan.resolve import has_experts as has_experts
from ridgeline.plan.resolve import plan_decisions
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import KNOBS
from ridgeline.plan.workload import Serve, Train
from ridgeline.targets.tables import names
from ridgeline.targets.target import refusal

# parts that few models have: decisions where a model has them, and a target that does not speak of them loses them
RARE = frozenset(names("decisions", "rare"))
Leaf = tuple[str, Any]  # a decision's path and value
# what a model is called and where its numbers were read decides nothing
LABELS = ("model.id", "model.name", "model.source", "model.numerics", "model.numerics.models", "model.numerics.family")


def _is_unset(_: str, value: object, __: object) -> bool:
    return value is None or value in ((), "")


def _is_rare(name: str, value: object, default: object) -> bool:
    return name in RARE and value == default


def decisions_of(scenario: Scenario) -> JsonMapping:
    """Every decision by path: strings, numbers, booleans, None, tuples and dicts of them.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "16xh100-sxm",
    ...     "workload": {"seq": 8192, "global_batch": 64}, "plan": {"tp": 4, "pp": 2}})
    >>> found = decisions_of(made)
    >>> found["plan.tp"], found["plan.placement"], found["plan.overlap.grad-reduce"], "plan.cp_kind" in found
    (4, (16, 16), True, False)
    """
    if not isinstance(scenario.workload, Train):
        raise refusal(scenario.workload.kind, "train", path="workload.kind", todo="only training runs are exported")
    decisions = {
        "system.chips": scenario.system.chips,
        "plan.engine": scenario.plan.engine,
        **_workload(scenario.workload),
        **{f"plan.{name}": value for name, value in plan_decisions(scenario).items()},
        **_model(scenario.model, scenario.model.numerics),
    }
    return MappingProxyType(decisions)


def _workload(work: Train) -> JsonObject:
    decisions: JsonObject = {
        "workload.seq": work.seq,
        "workload.global_batch": work.sequences,
        "workload.task": work.task,
        "workload.packed": work.packed,
        "workload.images": work.images,
        "workload.optimizer.name": work.optimizer.name,
        "workload.optimizer.states": work.optimizer.states.id,
        "workload.optimizer.master": work.optimizer.master.id if work.optimizer.master else "none",
    }
    if work.encoder_seq is not None:
        decisions["workload.encoder_seq"] = work.encoder_seq
    media = ("videos", "height", "width", "image_tokens", "audio_s")
    decisions |= {f"workload.{key}": getattr(work, key) for key in media if getattr(work, key)}
    if work.videos:
        decisions["workload.frames"] = work.frames
    if work.towers != "trained":
        decisions["workload.towers"] = work.towers
    if work.document is not None:
        decisions["workload.document"] = work.document
    if work.lora is not None:
        decisions |= {"workload.lora.rank": work.lora.rank, "workload.lora.targets": work.lora.targets}
    return decisions


@lru_cache(maxsize=8)
def _model(model: ModelSpec, _: Numerics | None) -> JsonMapping:
    """Decisions of the model; a search asks about many plans of one. Models that differ in numerics alone are equal."""
    spec = {
        path: value for path, value in _leaves("model", replace(model, numerics=None), _is_rare) if path not in LABELS
    }
    return MappingProxyType(spec | dict(_numerics(model)))


def _numerics(model: ModelSpec) -> Iterator[Leaf]:
    """What costs nothing and has to be right for the model to train, where it is known; what is not, by name."""
    for path, value in _leaves("model.numerics", numerics_of(model), _is_rare):
        if path not in LABELS and value is not None:
            yield path, value
    if unknown := unknown_numerics(model):
        yield "model.numerics.unknown", unknown


def _leaves(path: str, value: object, skips: Callable[[str, object, object], bool] = _is_unset) -> Iterator[Leaf]:
    """Leaves of nested dataclasses but those to skip by name, value and default; a tuple of dataclasses is numbered."""
    if isinstance(value, DType):
        yield path, value.id
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            part = getattr(value, field.name)
            if not skips(field.name, part, field.default):
                yield from _leaves(f"{path}.{field.name}", part, skips)
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        for index, part in enumerate(value):
            yield from _leaves(f"{path}.{index}", part, skips)
    else:
        yield path, value


def serving_decisions_of(scenario: Scenario) -> JsonMapping:
    """Every decision by path; a scenario that does not serve is an `InputError`.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "8xh100-sxm", "plan": {"engine": "vllm", "tp": 2},
    ...     "workload": {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 12}, "isl": 1024, "osl": 211}})
    >>> found = serving_decisions_of(made)
    >>> found["plan.tp"], found["plan.serving.replicas"], found["workload.arrivals.rate"]
    (2, 4, 12.0)
    """
    work = scenario.workload
    if not isinstance(work, Serve):
        todo = 'set workload.kind = "serve", or export to a software that trains'
        raise refusal(work.kind, "serve", path="workload.kind", todo=todo)
    switches = {name: getattr(scenario.plan.switches, name) for name in ("attention", "graph", "compiled")}
    switches["moe_dispatch"] = scenario.plan.switches.moe_dispatch if scenario.plan.mesh.ep > 1 else None
    decisions = {
        "system.chips": scenario.system.chips,
        "plan.engine": scenario.plan.engine,
        **_serving_mesh(scenario),
        **_serving_precision(scenario),
        **{f"plan.{name}": value for name, value in switches.items() if value is not None},
        **_serving(scenario),
        **(dict(_leaves("plan.speculation", scenario.plan.speculation)) if scenario.plan.speculation else {}),
        **dict(_leaves("workload", work)),
        **{path: value for path, value in _leaves("model", scenario.model, lambda *_: False) if path not in LABELS},
    }
    decisions.pop("workload.kind")
    return MappingProxyType(decisions)


def divisor_below(whole: int, most: int) -> int:
    """The largest part of at most `most` that divides a whole.

    >>> divisor_below(160, 23), divisor_below(7, 3)
    (20, 1)
    """
    return next(part for part in range(min(most, whole), 0, -1) if whole % part == 0)


def replicas_of(scenario: Scenario) -> int:
    """Engines with a scheduler of their own: as the plan says, else as many as the chips make."""
    serving, mesh = scenario.plan.serving, scenario.plan.mesh
    return serving.replicas or max(1, mesh.dp // serving.data_parallel_size)


def _serving_mesh(scenario: Scenario) -> JsonObject:
    mesh = scenario.plan.mesh
    if scenario.plan.serving.pools:
        return {}  # every pool has its own
    decisions: JsonObject = {"plan.tp": mesh.tp, "plan.pp": mesh.pp}
    if has_experts(scenario.model):
        decisions["plan.ep"] = mesh.ep
        remainder = mesh.tp * scenario.plan.serving.data_parallel_size // mesh.ep
        if mesh.etp not in (1, remainder):  # otherwise as engines do: ranks that are left split experts
            decisions["plan.etp"] = mesh.etp
    return decisions


def _serving_precision(scenario: Scenario) -> JsonObject:
    precision = scenario.plan.precision
    decisions: JsonObject = {
        f"plan.precision.{name}": getattr(precision, name).id for name in ("compute", "weights", "activations", "kv")
    }
    if precision.scaling is not None and precision.compute.peak in NARROW:
        decisions["plan.precision.scaling"] = precision.scaling
    return decisions


def _serving(scenario: Scenario) -> JsonObject:
    knobs = scenario.plan.serving.knobs
    decisions = dict(_leaves(f"plan.serving.{KNOBS.key_of(knobs)}", knobs)) if knobs else {}
    decisions |= dict(_leaves("plan.serving", replace(scenario.plan.serving, knobs=None)))
    pools, mesh = scenario.plan.serving.pools, scenario.plan.mesh
    axes = ("tp", "pp", "ep") if has_experts(scenario.model) else ("tp", "pp")
    for number, pool in enumerate(pools):
        at = f"plan.serving.pools.{number}"
        decisions |= {f"{at}.{axis}": getattr(pool, axis) or getattr(mesh, axis) for axis in axes}
    if pools:
        decisions.pop("plan.serving.data_parallel_size")
        decisions.pop("plan.serving.replicas", None)
    else:
        decisions["plan.serving.replicas"] = replicas_of(scenario)
        if decisions["plan.serving.replicas"] == 1:
            decisions.pop("plan.serving.router")  # nobody to choose among
    if scenario.plan.serving.mtbf is None and not scenario.plan.serving.failures:
        decisions.pop("plan.serving.restart")
    return decisions
