"""Turn a post-training scenario into one ordinary scenario for each role: what the other floors predict and check.

actor          a training step on the chips that train
rollout        requests on the chips that generate: one replica is `plan.rl.rollout`
reference, critic, reward_model, teacher    a forward pass (a critic: a training step too) on their chips
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from ridgeline.core.errors import InputError, Problem, RidgelineError, not_among
from ridgeline.core.records import dataclass
from ridgeline.hardware.load import subsystem
from ridgeline.hardware.system import System
from ridgeline.models.load import model as load_model
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.plan import Plan, Switches
from ridgeline.plan.rl_plan import RolePlan
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.plan.workload import ClosedLoop, Prefill, Serve, Train

Rules = Callable[[Scenario], Iterable[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipShares:
    """Chips of each pool; when colocated, train and rollout are the same chips."""

    train: int
    rollout: int
    total: int


def chip_shares(scenario: Scenario[Rl]) -> ChipShares:
    """Chips that train and that generate; those of roles with their own chips are neither."""
    rl, total = scenario.plan.rl, scenario.system.chips
    rest_chips = total - rl.role_chips
    if not scenario.workload.generates:
        return ChipShares(train=rest_chips, rollout=0, total=total)
    train = (rl.train_chips or 0) if rl.separate else rest_chips
    return ChipShares(train=train, rollout=rest_chips - train if rl.separate else rest_chips, total=total)


def actor_scenario(
    scenario: Scenario[Rl], *, seq: int = 0, sequences: int = 0, document: int | None = None
) -> Scenario[Train]:
    """One optimizer step of the actor: `sequences` packed ones of `seq` tokens, documents of `document` tokens each."""
    work, plan = scenario.workload, scenario.plan
    lanes = plan.mesh.dp * plan.microbatch
    training = Train(
        seq=seq or plan.rl.pack or work.seq,
        global_batch=sequences or lanes,
        task="lora" if work.updates.lora else "finetune",
        lora=work.updates.lora,
        optimizer=work.updates.optimizer,
        document=document,
    )
    part = _part(scenario, chip_shares(scenario).train)
    return Scenario(
        model=scenario.model, system=part, workload=training, engine=scenario.engine,
        plan=replace(plan, rl=type(plan.rl)()), assumptions=scenario.assumptions, name=scenario.name,
    )  # fmt: skip


def rollout_scenario(scenario: Scenario[Rl]) -> Scenario[Serve]:
    """The rollout engine's replicas on the chips that generate."""
    plan, rollout = scenario.plan, scenario.plan.rl.rollout
    chips = chip_shares(scenario).rollout
    replicas = rollout.replicas or max(chips // rollout.chips, 1)
    used = replicas * rollout.chips
    mesh = Mesh(tp=rollout.tp, pp=rollout.pp, ep=rollout.ep, dp=rollout.dp * replicas)
    return Scenario(
        model=scenario.model,
        system=_part(scenario, min(used, chips) if used else chips),
        workload=Serve(arrivals=ClosedLoop(concurrency=1), isl=1, osl=1),
        engine=ENGINES[rollout.engine],
        plan=Plan(
            mesh=mesh, precision=rollout.precision, engine=ENGINES.resolve(rollout.engine) or rollout.engine,
            speculation=plan.speculation,
            switches=Switches(graph="none" if rollout.eager else None),
            serving=replace(plan.serving, replicas=replicas, data_parallel_size=rollout.dp),
        ),
    )  # fmt: skip


def role_model(scenario: Scenario[Rl], role: str) -> ModelSpec:
    """The model that a role runs: its own, or the actor's."""
    ref = scenario.workload.roles.models[role].model
    return load_model(ref) if ref else scenario.model


def role_plan(scenario: Scenario[Rl], role: str) -> RolePlan | None:
    """The plan of a role where it has one."""
    return scenario.plan.rl.roles.get(role)


def forward_scenario(scenario: Scenario[Rl], role: str, *, seq: int = 0, batch: int = 0) -> Scenario[Prefill]:
    """A forward pass of a role (or of the actor, for log-probabilities) over `batch` packed sequences."""
    plan, own_part = scenario.plan, role_plan(scenario, role)
    shares = chip_shares(scenario)
    if own_part is None:
        mesh, precision, sharding, chips = plan.mesh, plan.precision, plan.sharding, shares.train
    else:
        mesh, precision, sharding, chips = (
            own_part.mesh,
            own_part.precision,
            own_part.sharding,
            own_part.chips or shares.train,
        )
        inner = mesh.tp * mesh.pp * mesh.cp
        mesh = mesh if mesh.ranks == chips or chips % inner else replace(mesh, dp=chips // inner)
    return Scenario(
        model=scenario.model if role == "actor" else role_model(scenario, role),
        system=_part(scenario, chips),
        workload=Prefill(seq=seq or plan.rl.pack or scenario.workload.seq, batch=batch or mesh.dp, chunk=0),
        engine=scenario.engine,
        plan=Plan(mesh=mesh, precision=precision, sharding=sharding, engine=scenario.engine.id),
    )


def _part(scenario: Scenario, chips: int) -> System:
    """So many chips of the scenario's system; all of it where that is impossible, which is told elsewhere."""
    whole_part = scenario.system
    return subsystem(whole_part, chips) if 0 < chips < whole_part.chips else whole_part


# -- what makes it impossible -----------------------------------------------------------------------------------------


def rl_problems(scenario: Scenario, rules: Rules) -> Iterator[Problem]:
    """Why a post-training scenario cannot run: the pools first, then every role by the rules of its own scenario."""
    if scenario.workload.kind != "rl":
        return
    built = post_training(scenario)
    pools = tuple(_pool_problems(built))
    yield from pools
    if any(problem.path.startswith("plan.rl.") and "chips" in problem.path for problem in pools):
        return
    yield from rules(actor_scenario(built))
    for role in built.workload.roles.models:
        yield from _role_problems(built, role, rules)
    if built.workload.generates and built.plan.rl.rollout.engine in ENGINES:
        yield from _rollout_problems(built, rules)


def _pool_problems(scenario: Scenario[Rl]) -> Iterator[Problem]:
    rl, total = scenario.plan.rl, scenario.system.chips
    rollout, shares = rl.rollout, chip_shares(scenario)
    name = scenario.system.name
    if rl.role_chips >= total:
        yield Problem(
            path="plan.rl.roles.chips", given=f"{rl.role_chips} chips", expected=f"fewer than {total}: {name}"
        )
        return
    if not scenario.workload.generates:
        if rl.separate:
            expectation = f"colocated: {scenario.workload.algorithm} generates nothing"
            yield Problem(path="plan.rl.placement", given=rl.placement, expected=expectation)
        return
    if rl.separate and shares.rollout < 1:
        expectation = f"less than {total - rl.role_chips}: some chips of {name} have to generate"
        yield Problem(path="plan.rl.train_chips", given=str(rl.train_chips), expected=expectation)
        return
    if rollout.engine not in ENGINES:
        engines = [id for id in ENGINES if ENGINES[id].serves is not None]
        yield not_among("plan.rl.rollout.engine", rollout.engine, engines)
    elif ENGINES[rollout.engine].serves is None:
        expectation = "software that serves: vllm or sglang"
        yield Problem(path="plan.rl.rollout.engine", given=rollout.engine, expected=expectation)
    per_item = rollout.chips
    if shares.rollout % per_item and rollout.replicas is None:
        given_text = f"replicas of {per_item} chips (tp {rollout.tp} x pp {rollout.pp} x dp {rollout.dp})"
        yield Problem(path="plan.rl.rollout.tp", given=given_text, expected=f"a divisor of {shares.rollout} chips")
    if rollout.replicas is not None and rollout.replicas * per_item > shares.rollout:
        expectation = f"at most {shares.rollout // per_item}: {shares.rollout} chips generate, {per_item} each"
        yield Problem(path="plan.rl.rollout.replicas", given=str(rollout.replicas), expected=expectation)
    unknown = [role for role in rl.roles if role not in scenario.workload.roles.models]
    for role in unknown:
        todo = f"add {role} = true under [workload.roles]"
        expectation = "a role of [workload.roles]"
        yield Problem(path=f"plan.rl.roles.{role}", given="a table", expected=expectation, todo=todo)


def _role_problems(scenario: Scenario[Rl], role: str, rules: Rules) -> Iterator[Problem]:
    try:
        built = forward_scenario(scenario, role)
    except InputError as wrong:
        problems = wrong.problems or (Problem(path="", given=str(wrong), expected="a model"),)
        yield from (replace(problem, path=f"workload.roles.{role}.model") for problem in problems)
        return
    if role_plan(scenario, role) is None and built.model is scenario.model:
        return  # the actor's own rules have said it
    yield from _under(rules(built), "plan.", f"plan.rl.roles.{role}.")


def _rollout_problems(scenario: Scenario[Rl], rules: Rules) -> Iterator[Problem]:
    if any(True for _ in _pool_problems(scenario)):
        return
    try:
        problems = tuple(rules(rollout_scenario(scenario)))
    except RidgelineError as wrong:
        problems = (Problem(path="plan.rl.rollout", given=str(wrong), expected="a replica"),)
    kept_part = (problem for problem in problems if not problem.path.startswith("plan.serving"))
    yield from _under(kept_part, "plan.", "plan.rl.rollout.")


def _under(problems: Iterable[Problem], start: str, instead: str) -> Iterator[Problem]:
    """Problems of a role's own scenario with the places that they have in the whole one."""
    for problem in problems:
        path = problem.path
        yield replace(problem, path=instead + path.removeprefix(start)) if path.startswith(start) else problem
