"""Turn a Scenario that serves into every decision that takes effect in it, by path.

Decisions of a deployment are how an engine is split over chips, the formats of its weights and cache, the knobs of its
scheduler that the plan sets, how many replicas there are and who deals requests to them. What a plan leaves open is
left to the engine that runs it, so it is no decision here. The load is one: an export writes it down for the load
generator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from types import MappingProxyType
from typing import Any

from ridgeline.core.dtype import DType
from ridgeline.core.errors import InputError, Problem
from ridgeline.plan.plan import NARROW
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import Serve
from ridgeline.targets.decisions import LABELS, has_experts


def serving_decisions_of(scenario: Scenario) -> Mapping[str, Any]:
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
        raise InputError(Problem(path="workload.kind", given=work.kind, expected="serve", todo=todo))
    found = {
        "system.chips": scenario.system.chips,
        "plan.engine": scenario.plan.engine,
        **_mesh(scenario),
        **_precision(scenario),
        **_switches(scenario),
        **_serving(scenario),
        **dict(_leaves("plan.speculation", scenario.plan.speculation)),
        **dict(_leaves("workload", work)),
        **{path: value for path, value in _leaves("model", scenario.model, keep_none=True) if path not in LABELS},
    }
    found.pop("workload.kind")
    return MappingProxyType(found)


def replicas_of(scenario: Scenario) -> int:
    """Engines with a scheduler of their own: as the plan says, else as many as the chips make."""
    serving, mesh = scenario.plan.serving, scenario.plan.mesh
    return serving.replicas or max(1, mesh.dp // serving.data_parallel_size)


def _mesh(scenario: Scenario) -> dict[str, Any]:
    mesh = scenario.plan.mesh
    if scenario.plan.serving.pools:
        return {}  # every pool has its own
    found: dict[str, Any] = {"plan.tp": mesh.tp, "plan.pp": mesh.pp}
    if has_experts(scenario.model):
        found["plan.ep"] = mesh.ep
        rest = mesh.tp * scenario.plan.serving.data_parallel_size // mesh.ep
        if mesh.etp not in (1, rest):  # otherwise as engines do: ranks that expert parallelism leaves split experts
            found["plan.etp"] = mesh.etp
    return found


def _precision(scenario: Scenario) -> dict[str, Any]:
    precision = scenario.plan.precision
    found: dict[str, Any] = {
        f"plan.precision.{name}": getattr(precision, name).id for name in ("compute", "weights", "activations", "kv")
    }
    if precision.scaling is not None and precision.compute.peak in NARROW:
        found["plan.precision.scaling"] = precision.scaling
    return found


def _switches(scenario: Scenario) -> dict[str, Any]:
    switches, found = scenario.plan.switches, {}
    for name in ("attention", "graph", "compiled"):
        if getattr(switches, name) is not None:
            found[f"plan.{name}"] = getattr(switches, name)
    if switches.moe_dispatch is not None and scenario.plan.mesh.ep > 1:
        found["plan.moe_dispatch"] = switches.moe_dispatch
    return found


def _serving(scenario: Scenario) -> dict[str, Any]:
    found = dict(_leaves("plan.serving", scenario.plan.serving))
    pools, mesh = scenario.plan.serving.pools, scenario.plan.mesh
    axes = ("tp", "pp", "ep") if has_experts(scenario.model) else ("tp", "pp")
    for number, pool in enumerate(pools):
        found |= {f"plan.serving.pools.{number}.{axis}": getattr(pool, axis) or getattr(mesh, axis) for axis in axes}
    if pools:
        found.pop("plan.serving.data_parallel_size")
        found.pop("plan.serving.replicas", None)
    else:
        found["plan.serving.replicas"] = replicas_of(scenario)
        if found["plan.serving.replicas"] == 1:
            found.pop("plan.serving.router")  # nobody to choose among
    if scenario.plan.serving.mtbf is None and not scenario.plan.serving.failures:
        found.pop("plan.serving.restart")
    return found


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
