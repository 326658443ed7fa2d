"""Turn a replica into what it could do at best: first token, token, and requests a second, without any queue.

    TTFT >= prefill of the prompt alone, stage by stage          TPOT >= a decode step of one request
    requests/s <= dp / (isl x c + (osl - 1) / g x min over b of step(b) / b)

c = seconds that one more prompt token adds to a step, g = tokens a step yields with speculation, b = requests that the
cache holds, the batch limit allows and whose step keeps the TPOT asked for. No schedule of the same steps does better,
so what misses the objective here is not simulated.
"""

from __future__ import annotations

from math import inf

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.records import dataclass
from ridgeline.ir.forward_steps import ForwardSteps, forward_steps
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serve import Objective
from ridgeline.plan.serving_plan import StaticKnobs
from ridgeline.search.deployment.load import Load
from ridgeline.search.deployment.shape import Shape
from ridgeline.serving.deployment import Instance, Priced, instances_of, price_of
from ridgeline.serving.serving_prediction import FRONT_END_S
from ridgeline.serving.step_cost import LinearStepCost
from ridgeline.sim import ServingMemory

BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
FEW, UNPRICED = 512.0, LinearStepCost(step_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The best case of one replica.

    ttft_s, tpot_s   of requests at the objective's percentile that never meet others; a first token found in a cache
                     may be faster, so of prompts that share prefixes TTFT is what one new token takes
    rate             requests per second that it could serve, 0 where nothing fits
    prefill_rate     of prompts alone, decode_rate of answers alone
    batch            requests of a step at that rate
    """

    shape: Shape
    memory: ServingMemory
    longest: int
    ttft_s: float
    tpot_s: float
    rate: float
    prefill_rate: float
    decode_rate: float
    batch: float

    @property
    def fits(self) -> bool:
        """Whether weights and some cache fit on its chips."""
        return self.memory.fits


def bound_of(base: Scenario, shape: Shape, load: Load, objective: Objective, priced: Priced) -> Bound:
    """The best case of a shape under a load."""
    told = Priced(calibration=priced.calibration, serving=priced.serving, cost=UNPRICED)
    (instance,) = instances_of(shape.pooled(base, (shape.pool("both", 1),)), told)
    if not instance.memory.fits:
        return _none(shape, instance)
    tokens, seqs = _limits(instance)
    share = 1.0 - load.hit_share * bool(shape.choice("prefix"))
    isl, osl = float(load.prompts.mean()), float(load.outputs.mean())
    long_prompt = float(np.percentile(load.prompts, objective.percentile))
    batches = np.array([float(many) for many in BATCHES if many <= max(seqs, 1)])
    price = price_of(instance.scenario, priced, tokens // shape.mesh.pp)
    seconds = price(_steps(batches, isl + osl / 2, (min(long_prompt, tokens), float(tokens))))
    tokens_per_step = shape.speculation.tokens_per_step if shape.speculation else 1.0
    step, few, prompt, budget = seconds[: len(batches)], *seconds[len(batches) :]
    seconds_per_token = max((budget - few) / max(tokens - FEW, 1.0), budget / tokens / 4)
    prefill = isl * share * seconds_per_token
    tpot = min(objective.tpot or np.inf, objective.itl or np.inf)
    room = instance.memory.requests(isl + osl / 2)
    able = (batches <= max(room, 1.0)) & (step / tokens_per_step <= tpot)
    decode = float((step[able] / batches[able]).min()) * max(osl - 1, 0.0) / tokens_per_step if able.any() else np.inf
    works = bool(np.isfinite(decode))
    ranks = shape.mesh.dp
    ttft = prompt * max(long_prompt / tokens, 1.0) if share == 1.0 else few / FEW
    return Bound(
        shape=shape,
        memory=instance.memory,
        longest=instance.longest,
        ttft_s=float(ttft) + FRONT_END_S,
        tpot_s=float(step[0]) / tokens_per_step,
        rate=float(ranks / (prefill + decode)) if works else 0.0,
        prefill_rate=float(ranks / max(prefill, 1e-12)) if works else 0.0,
        decode_rate=float(ranks / max(decode, 1e-12)) if works else 0.0,
        batch=float(batches[able].max()) if able.any() else 0.0,
    )


def _limits(one: Instance) -> tuple[int, int]:
    """Tokens of a step, and requests that run together."""
    return (0, one.settings.batch_size) if isinstance(one.settings, StaticKnobs) else one.settings.step_limits


def _none(shape: Shape, one: Instance) -> Bound:
    """Of a replica whose chips do not hold the model: nothing is priced."""
    return Bound(
        shape=shape, memory=one.memory, longest=one.longest, ttft_s=inf, tpot_s=inf, rate=0.0, prefill_rate=0.0,
        decode_rate=0.0, batch=0.0,
    )  # fmt: skip


def _steps(batches: Array, context: float, prompts: tuple[float, float]) -> ForwardSteps:
    """Decode steps of these batches; prefill of few tokens, of a long prompt, and of a whole budget."""
    batch_tokens = np.array([FEW, *prompts])
    none = np.zeros(len(batches))
    return forward_steps(
        prefill_tokens=np.concatenate([none, batch_tokens]),
        prefill_pairs=np.concatenate([none, batch_tokens**2 / 2]),
        decodes=np.concatenate([batches, np.zeros(3)]),
        kv_tokens=np.concatenate([batches * context, np.zeros(3)]),
    )
