"""Turn the number formats of a Scenario into pieces in Megatron's words: at rest, in products, of gradients."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.plan import NARROW
from ridgeline.plan.resolve import resolve
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Train
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say
from ridgeline.targets.megatron.names import RECIPES, STRATEGIES


def precision(scenario: Scenario) -> Iterator[Piece]:
    """bf16, fp16 or fp32 at rest; fp8 and fp4 products by Transformer Engine's recipes."""
    chosen = scenario.plan.precision
    compute, where = chosen.compute.id, "plan.precision"
    narrow = chosen.compute.peak in NARROW
    rest = chosen.activations.id
    if rest in ("bf16", "fp16"):
        yield Say(f"--{rest}", True, f"{where}.activations")
    yield Fixed(f"{where}.activations", "fp32", "fp32 unless told otherwise")
    if not narrow:
        if compute == rest and rest in ("bf16", "fp16"):
            yield Say(f"--{rest}", True, f"{where}.compute")
        yield Fixed(f"{where}.compute", rest if rest in ("bf16", "fp16") else "fp32", "as activations rest")
    else:
        yield from _narrow(compute, chosen.scaling or ("block" if chosen.compute.block else "tensor"), scenario)
    stored = chosen.weights.id
    if narrow and stored == compute and (lack := _cannot_keep_narrow(scenario)):
        yield Lose(f"{where}.weights", f"{lack}; written: {rest}")
    elif narrow and stored == compute:
        yield Say("--fp4-param-gather" if compute == "nvfp4" else "--fp8-param-gather", True, f"{where}.weights")
        if compute == "mxfp8" and scenario.plan.sharding.shard not in STRATEGIES:
            yield Say("--reuse-grad-buf-for-mxfp8-param-ag", True)
    elif stored == rest and rest in ("bf16", "fp16"):
        yield Say(f"--{rest}", True, f"{where}.weights")
    yield Fixed(f"{where}.weights", rest, "as activations rest")
    yield from _gradients(scenario, rest)


def _cannot_keep_narrow(scenario: Scenario) -> str:
    """Why weights cannot rest in the format they are multiplied in; empty where they can."""
    if scenario.plan.sharding.shard == "none":
        return "weights in fp8 or fp4 need the distributed optimizer"
    if _is_offloading(scenario) and not _delayed(scenario):
        return "states on the host go with fp8 weights under delayed scaling only"
    return ""


def _is_offloading(scenario: Scenario) -> bool:
    return scenario.plan.offload.optimizer > 0 and is_aware(scenario)


def _delayed(scenario: Scenario) -> bool:
    """Whether fp8 is scaled by the history of a tensor: only where states on the host and fp8 weights ask for it."""
    chosen = scenario.plan.precision
    tensor = chosen.compute.id == "fp8-e4m3" and chosen.scaling in (None, "tensor")
    again = set(scenario.plan.recompute.parts) & {"norm", "activation"} and scenario.plan.recompute.kind == "selective"
    return tensor and chosen.weights.id == "fp8-e4m3" and _is_offloading(scenario) and not again


def _narrow(compute: str, scaling: str, scenario: Scenario) -> Iterator[Piece]:
    paths = ("plan.precision.compute", "plan.precision.scaling")
    if compute == "nvfp4" and scaling == "block":
        yield Say("--fp4-format", "e2m1", *paths)
        yield Say("--fp4-recipe", "nvfp4", *paths)
    elif (compute, scaling) in RECIPES:
        yield Say("--fp8-format", "hybrid" if scaling == "tensor" else "e4m3", *paths)
        yield Say("--fp8-recipe", "delayed" if _delayed(scenario) else RECIPES[compute, scaling], *paths)
    else:
        for path in paths:
            yield Lose(path, "fp8 scaled by tensor or block, mxfp8 and nvfp4")


def _gradients(scenario: Scenario, rest: str) -> Iterator[Piece]:
    path = "plan.precision.gradients"
    wanted = resolve(scenario).gradients.id
    if rest == "bf16" and wanted == "bf16":
        yield Say("--grad-reduce-in-bf16", True, path)
    elif wanted == "fp32" and rest in ("bf16", "fp16"):
        yield Say("--accumulate-allreduce-grads-in-fp32", True, path)
    yield Fixed(path, {"bf16": "fp32"}.get(rest, rest), "bf16 reduces in fp32, the others in their own format")


def is_aware(scenario: Scenario) -> bool:
    """Whether states may have another format or place: adam, distributed."""
    return scenario.plan.sharding.shard != "none" and _has_adam(scenario)


def _has_adam(scenario: Scenario) -> bool:
    work = scenario.workload
    return isinstance(work, Train) and work.optimizer.name in ("adam", "adamw")
