"""Turn roles and the lengths of their samples into seconds: updates, log-probabilities, reference, critic, rewards.

A step's tokens are packed. Each data-parallel rank has as many microbatches as its share needs, of equal size:

    m = ceil(T / (n d p))        tokens of a microbatch = T / (n d m)

T = tokens of the step, n = optimizer steps in it, d = data-parallel ranks, p = tokens of a pack at most. A forward pass
is the part of the training step that runs forward: a third of the products, a quarter where they are computed again.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ridgeline.core.errors import InputError
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration
from ridgeline.cost.step_part import StepPart
from ridgeline.hardware.load import subsystem
from ridgeline.plan.plan import Plan
from ridgeline.plan.rl_roles import actor_scenario, chip_shares, role_model, role_plan
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.rl.lengths import LengthMoments
from ridgeline.rl.parameters import RlParameters
from ridgeline.sim import Impossible, Prediction, predict

ATTENTION_PASSES = 3.5  # of flash attention, forward being one: its backward computes five products of two
ONCE = (StepPart.OPTIMIZER, StepPart.DP, StepPart.WAITING)  # parts that a forward pass has not
ALIGNED = 64  # tokens that a packed sequence is a multiple of, for every context and tensor rank


@dataclass(frozen=True, slots=True, kw_only=True)
class RolePass:
    """One role's work in a step, in seconds.

    forward_s    a forward pass over all samples
    update_s     all optimizer steps; 0 for a role that is not trained
    chips        that it runs on
    step         the prediction of one optimizer step
    """

    role: str
    forward_s: float
    update_s: float
    chips: int
    updates: int
    step: Prediction

    @property
    def offers_chips(self) -> bool:
        """Whether the role has chips that nobody else uses."""
        return self.step.scenario.system.chips == self.chips


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedBatch:
    """Packed sequences of one optimizer step."""

    seq: int
    sequences: int
    document: int
    updates: int


def packed_batch(plan: Plan, work: Rl, lengths: LengthMoments, *, trains: bool = True) -> PackedBatch:
    """How the samples of a step are packed; one pass over all of them where nothing is trained."""
    updates = work.mini_batches if trains else 1
    ranks, inner = plan.mesh.dp, plan.mesh.cp * plan.mesh.tp * ALIGNED
    pack = plan.rl.pack or int(lengths.longest)
    tokens = work.answers * lengths.mean / updates / ranks
    many = max(math.ceil(tokens / pack), 1)
    many = -(-many // plan.mesh.pp) * plan.mesh.pp if plan.mesh.pp > 1 and many > plan.mesh.pp else many
    seq = max(math.ceil(tokens / many / inner), 1) * inner
    return PackedBatch(
        seq=seq, sequences=many * ranks, document=max(min(round(lengths.attended), seq), 1), updates=updates
    )


def actor_pass(
    scenario: Scenario[Rl], lengths: LengthMoments, parameters: RlParameters, calibration: Calibration | None = None
) -> RolePass:
    """The actor's updates, and a forward pass of it."""
    return _role_pass("actor", scenario, scenario, lengths, (parameters, calibration))


def role_pass(
    scenario: Scenario[Rl], role: str, lengths: LengthMoments, parameters: RlParameters,
    calibration: Calibration | None = None,
) -> RolePass:  # fmt: skip
    """A role's forward pass, and a critic's updates."""
    own, plan = role_plan(scenario, role), scenario.plan
    chips = chip_shares(scenario).train
    if own is not None:
        chips = own.chips or chips
        mesh = own.mesh
        inner = mesh.tp * mesh.pp * mesh.cp
        mesh = replace(mesh, dp=chips // inner) if mesh.ranks != chips and chips % inner == 0 else mesh
        plan = replace(plan, mesh=mesh, sharding=own.sharding, precision=own.precision, placement=())
    rl = replace(plan.rl, placement="colocated", train_chips=None, staleness=None, partial_rollouts=False, roles={})
    model = role_model(scenario, role)
    own_scenario = replace(scenario, model=model, plan=replace(plan, rl=rl))
    return _role_pass(role, scenario, own_scenario, lengths, (parameters, calibration), chips)


def _role_pass(
    role: str, whole: Scenario[Rl], own: Scenario[Rl], lengths: LengthMoments,
    priced: tuple[RlParameters, Calibration | None], chips: int = 0,
) -> RolePass:  # fmt: skip
    parameters, calibration = priced
    work, shares = whole.workload, chip_shares(whole)
    used = chips or shares.train
    trains = role in ("actor", "critic")
    packed_rows = packed_batch(own.plan, work, lengths, trains=trains)
    step = actor_scenario(own, seq=packed_rows.seq, sequences=packed_rows.sequences, document=packed_rows.document)
    step = replace(step, system=subsystem(whole.system, used) if used < whole.system.chips else whole.system)
    step = replace(step, plan=replace(step.plan, microbatch=1))
    answer = predict(step, calibration)
    if isinstance(answer, Impossible):
        raise InputError(answer.reasons)
    shared = parameters.colocated_factor if work.generates and not whole.plan.rl.separate else 1.0
    forward = forward_seconds(answer) * packed_rows.updates * parameters.forward_factor * shared
    update = answer.step_time_s * packed_rows.updates * work.updates.epochs * parameters.training_factor * shared
    return RolePass(
        role=role,
        forward_s=forward,
        update_s=update if trains else 0.0,
        chips=used,
        updates=packed_rows.updates * work.updates.epochs if trains else 0,
        step=answer,
    )


def forward_seconds(step: Prediction) -> float:
    """The forward part of a training step.

    passes of products: forward, two backward, and forward again where all is recomputed
    """
    recompute = step.scenario.plan.recompute
    again_s = 1.0 if recompute.kind == "full" else 0.0
    seconds = 0.0
    for part in step.breakdown:
        if part.name in ONCE:
            continue
        passes = (ATTENTION_PASSES if part.name == StepPart.ATTENTION else 3.0) + again_s
        seconds += part.seconds / passes
    return seconds
