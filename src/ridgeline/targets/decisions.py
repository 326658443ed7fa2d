"""Turn a Scenario into every decision that takes effect in it, by path, as it is meant.

Absent values are filled in with the engine's habits, because that is what was predicted: a plan that leaves
`overlap.grad-reduce` to an engine which overlaps it has decided so. What has no effect is left out: how context ranks
exchange keys where there is one of them, how experts are dispatched in a dense model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.dtype import DType
from ridgeline.models.numerics import Numerics, numerics_of, unknown_numerics
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.decisions import has_experts as has_experts
from ridgeline.plan.decisions import plan_decisions
from ridgeline.plan.plan import NARROW
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import Serve
from ridgeline.plan.serving_plan import KNOBS
from ridgeline.plan.workload import Train
from ridgeline.targets.tables import names
from ridgeline.targets.target import refusal

# parts that few models have: decisions where a model has them, and a target that does not speak of them loses them
RARE = frozenset(names("decisions", "rare"))
LABELS = ("model.id", "model.name", "model.source", "model.numerics")  # what a model is called decides nothing


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
    media = {key: getattr(work, key) for key in ("videos", "height", "width", "image_tokens", "audio_s")}
    decisions |= {f"workload.{key}": value for key, value in media.items() if value}
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
    spec = {path: value for path, value in _flat("model", replace(model, numerics=None)) if path not in LABELS}
    return MappingProxyType(spec | dict(_numerics(model)))


def _numerics(model: ModelSpec) -> Iterator[tuple[str, Any]]:
    """What costs nothing and has to be right for the model to train, where it is known; what is not, by name."""
    numerics = numerics_of(model)
    for path, value in _flat("model.numerics", numerics):
        if path != "model.numerics.models" and value is not None:
            yield path, value
    if unknown := unknown_numerics(model):
        yield "model.numerics.unknown", unknown


def _flat(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves of nested dataclasses; a tuple of dataclasses is numbered."""
    if isinstance(value, DType):
        yield path, value.id
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            if field.name in RARE and getattr(value, field.name) == field.default:
                continue
            yield from _flat(f"{path}.{field.name}", getattr(value, field.name))
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        for index, part in enumerate(value):
            yield from _flat(f"{path}.{index}", part)
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
    decisions = {
        "system.chips": scenario.system.chips,
        "plan.engine": scenario.plan.engine,
        **_serving_mesh(scenario),
        **_serving_precision(scenario),
        **_serving_switches(scenario),
        **_serving(scenario),
        **dict(_leaves("plan.speculation", scenario.plan.speculation)),
        **dict(_leaves("workload", work)),
        **{path: value for path, value in _leaves("model", scenario.model, keep_none=True) if path not in LABELS},
    }
    decisions.pop("workload.kind")
    return MappingProxyType(decisions)


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
        if mesh.etp not in (
            1,
            remainder,
        ):  # otherwise as engines do: ranks that expert parallelism leaves split experts
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


def _serving_switches(scenario: Scenario) -> JsonObject:
    switches, decisions = scenario.plan.switches, {}
    for name in ("attention", "graph", "compiled"):
        if getattr(switches, name) is not None:
            decisions[f"plan.{name}"] = getattr(switches, name)
    if switches.moe_dispatch is not None and scenario.plan.mesh.ep > 1:
        decisions["plan.moe_dispatch"] = switches.moe_dispatch
    return decisions


def _serving(scenario: Scenario) -> JsonObject:
    knobs = scenario.plan.serving.knobs
    decisions = dict(_leaves(f"plan.serving.{KNOBS.key_of(knobs)}", knobs)) if knobs else {}
    decisions |= dict(_leaves("plan.serving", replace(scenario.plan.serving, knobs=None)))
    pools, mesh = scenario.plan.serving.pools, scenario.plan.mesh
    axes = ("tp", "pp", "ep") if has_experts(scenario.model) else ("tp", "pp")
    for number, pool in enumerate(pools):
        decisions |= {
            f"plan.serving.pools.{number}.{axis}": getattr(pool, axis) or getattr(mesh, axis) for axis in axes
        }
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


def _leaves(path: str, value: Any, keep_none: bool = False) -> Iterator[tuple[str, Any]]:
    """Leaves of nested dataclasses that are set; a tuple of dataclasses is numbered."""
    if isinstance(value, DType):
        yield path, value.id
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from _leaves(f"{path}.{field.name}", getattr(value, field.name), keep_none)
    elif isinstance(value, tuple) and value and is_dataclass(value[0]):
        for index, part in enumerate(value):
            yield from _leaves(f"{path}.{index}", part, keep_none)
    elif keep_none or (value is not None and value != () and value != ""):
        yield path, value
