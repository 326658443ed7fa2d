"""What a target declares that it can express is what its own writer says of plans: drawn ones, of many kinds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from types import MappingProxyType

import pytest

from ridgeline.core.dtype import dtype
from ridgeline.core.errors import InputError
from ridgeline.plan.capability import Capability, read_capability
from ridgeline.plan.check import check
from ridgeline.plan.mesh import ORDERS, Mesh
from ridgeline.plan.plan import Offload, Precision, Schedule, Sharding, Switches
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble
from ridgeline.plan.serving_plan import Speculation
from ridgeline.search.deployment.space import Shape, usual_knobs
from ridgeline.search.training.expressible import with_target_defaults
from ridgeline.search.training.space import Space, space_of
from ridgeline.targets.plan_target import capability_of, serving_target
from ridgeline.targets.registry import SERVE, TARGETS, TRAIN

SYSTEMS = {
    "mindspeed": ("16xascend-910b2",), "nxd-training": ("32xtrn2",), "primus": ("16xmi300x",),
    "maxtext": ("tpu-v5p:2x2x4", "16xh100-sxm"),
}  # fmt: skip
MODELS = ("llama3-8b", "mixtral-8x7b", "deepseek-v2-lite", "gemma2-9b", "qwen3-30b-a3b")
OVERLAPS = ("grad-reduce", "param-gather", "tp", "pp", "cp", "moe")
SMALL = dtype("fp16")
FORMATS = (
    *({},) * 8, {"compute": dtype("fp8")}, {"compute": dtype("fp8"), "scaling": "row"}, {"compute": dtype("mxfp8")},
    {"compute": SMALL, "weights": SMALL, "activations": SMALL}, {"gradients": dtype("bf16")},
)  # fmt: skip
LOAD = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 1.0}, "isl": 512, "osl": 64}


def _question(model: str, on: str, engine: str) -> Scenario:
    work = {"seq": 4096, "global_batch": 64}
    built, problems = assemble({"model": model, "system": on, "workload": work, "plan": {"engine": engine}})
    assert built is not None, problems
    return built


def _switches(space: Space, draw: random.Random) -> Switches:
    """Switches of the space, sometimes with overlaps that a plan states against them."""
    stated = {word: draw.random() < 0.5 for word in OVERLAPS if draw.random() < 0.1}
    chosen = draw.choice(space.switches)
    return replace(chosen, overlap=MappingProxyType({**chosen.overlap, **stated}))


def _drawn(question: Scenario, draw: random.Random, capability: Capability) -> Scenario | None:
    """A plan of the question's space that can run."""
    space, chips = with_target_defaults(space_of(question), question, capability), question.system.chips
    for _ in range(50):
        tp, cp, pp = (
            draw.choice(space.tp),
            draw.choice((1, 1, 2, 4) if len(space.cp) > 1 else (1,)),
            draw.choice(space.pp),
        )
        if chips % (tp * cp * pp) or pp > 8:
            continue
        dp, shard = chips // (tp * cp * pp), draw.choice(space.shard)
        order = draw.choice(ORDERS) if draw.random() < 0.05 else ORDERS[0]
        mesh = Mesh(pp=pp, dp=dp, cp=cp, tp=tp, ep=draw.choice(space.ep), etp=draw.choice(space.etp), order=order)
        degree = draw.choice((None, None, None, None, max(1, dp * cp // 2))) if shard != "none" else None
        share = draw.choice((0.0,) * 9 + (0.5, 1.0))
        plan = replace(
            question.plan, mesh=mesh, microbatch=draw.choice((1, 2, 4)),
            schedule=draw.choice(space.schedule) if pp > 1 else Schedule(),
            sharding=Sharding(shard=shard, shard_degree=degree), recompute=draw.choice(space.recompute),
            offload=Offload(activations=share, optimizer=draw.choice((0.0,) * 9 + (0.5, 1.0))),
            switches=_switches(space, draw),
            precision=replace(question.plan.precision, **draw.choice(FORMATS)),
        )  # fmt: skip
        scenario = replace(question, plan=plan)
        if not check(scenario):
            return scenario
    return None


def _lost(target: str, scenario: Scenario) -> set[str]:
    """What the writer loses of a plan."""
    try:
        lost = TARGETS[target].write(scenario).lost
    except InputError as error:
        return {problem.path for problem in error.problems}
    return {item.path for item in lost if item.path.startswith("plan.") and not item.yours}


def _is_writable(target: str, question: Scenario) -> bool:
    """Whether the target has words for the model: otherwise it writes none of what depends on it."""
    lost = TARGETS[target].write(question).lost
    return not any(item.path.startswith("model.blocks") and not item.yours for item in lost)


@pytest.mark.parametrize("target", TRAIN)
def test_the_table_of_a_target_agrees_with_its_writer(target: str) -> None:
    draw, capability, able = random.Random(29), capability_of(target), 0
    for on, engine, model in product(SYSTEMS.get(target, ("16xh100-sxm",)), capability.engines, MODELS):
        question = _question(model, on, engine)
        if not _is_writable(target, question):
            continue
        for _ in range(60):
            scenario = _drawn(question, draw, capability)
            if scenario is None:
                continue
            broken = {f"plan.{limit.decision}" for limit in capability.unsupported_decisions(scenario)}
            broken.discard("plan.optimizer.master")  # of the workload
            assert bool(broken) == bool(lost := _lost(target, scenario)), (model, on, scenario.plan, broken, lost)
            able += not broken
    assert able > 2


def _deployments(engine: str) -> Iterator[Scenario]:
    formats = [Precision(compute=dtype(name), weights=dtype(name)) for name in ("bf16", "fp8", "nvfp4", "mxfp8")]
    formats += [replace(formats[1], kv=dtype("fp8")), replace(formats[1], scaling="block"), Precision(kv=SMALL)]
    drafts = [None, *(Speculation(draft=draft, draft_tokens=3, acceptance=0.6) for draft in ("eagle", "ngram"))]
    for model, tp, dp, ep in product(("llama3-8b", "qwen3-30b-a3b"), (1, 2, 3), (1, 2), (1, 2, 4)):
        plan = {"engine": engine, "dp": 16}
        base, problems = assemble({"model": model, "system": "16xh100-sxm", "workload": LOAD, "plan": plan})
        assert base is not None, problems
        for precision, drafted in product(formats, drafts[: 3 if tp == dp == 1 else 1]):
            mesh = Mesh(tp=tp, dp=dp, ep=ep)
            shape = Shape(mesh=mesh, precision=precision, speculation=drafted, knobs=usual_knobs(base))
            yield shape.scenario(base)
            yield shape.pooled(base, (shape.pool("prefill", 1), shape.pool("decode", 1)))


@pytest.mark.parametrize("target", SERVE)
def test_the_table_of_a_server_agrees_with_its_writer(target: str) -> None:
    server = serving_target(target)
    for engine in server.capability.engines:
        for scenario in _deployments(engine):
            broken = [limit.decision for limit in server.capability.unsupported_decisions(scenario)]
            lost = [item.path for item in server.unsupported_decisions(scenario)]
            assert bool(broken) == bool(lost), (engine, scenario.plan, broken, lost)


def test_a_row_is_a_list_of_values() -> None:
    with pytest.raises(InputError, match="a list of values"):
        read_capability({"limits": [{"tp": 1}]})
