"""Turn a prefill or decode scenario into a PhasePrediction: how long, why, what fits, and what a token costs.

prefill   prompts in steps of at most `chunk` tokens, behind what is cached
decode    one step of a batch, and the curve over batches: tokens/s/user against tokens/s/chip
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.evidence import Evidence
from ridgeline.core.records import NotebookValue, dataclass
from ridgeline.core.units import HOUR, MILLION
from ridgeline.cost import (
    Calibration,
    ServingCalibration,
    default_calibration,
    profile_for,
    serving_spread,
    shipped_serving,
)
from ridgeline.cost.step_part import Bound
from ridgeline.hardware.what_if import what_if_distance
from ridgeline.ir.forward_steps import ForwardSteps, chunk_pairs, forward_steps
from ridgeline.models.spec import Moe
from ridgeline.plan.check import check
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.workload import Decode, Prefill
from ridgeline.sim.forward_price import PARTS, ForwardSeconds, price_forward
from ridgeline.sim.memory.serving import ServingMemory, limits_of, serving_memory
from ridgeline.sim.prediction import (
    Bill,
    Impossible,
    Part,
    StepParts,
    step_bill,
    step_evidence,
    unless_impossible,
    unmeasured_host,
)
from ridgeline.sim.prediction_interval import Distance, Interval, widen_for_unread, widen_interval
from ridgeline.sim.unpriced_fields import unused_networks

CURVE = 14  # batches of the curve
COVERAGE = 0.9
MOST_STEPS = 65_536  # distinct steps of a prefill: 3 s and 1 GB


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """One batch of the curve: requests of the whole system at once, and what each and each chip gets."""

    batch: int
    step_time_s: float
    tokens_per_s_per_user: float
    tokens_per_s_per_chip: float
    cost_per_million_tokens_usd: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTitle:
    """What is predicted.

    mesh   degrees above 1, by axis
    """

    scenario: Scenario

    JSON = """
        name=scenario.name phase=scenario.workload.kind model=scenario.model.id system=scenario.system.name
        chips=scenario.system.chips seq=scenario.workload.seq sequences=scenario.workload.sequences
        mesh=scenario.plan.mesh.split precision=scenario.plan.precision.compute
        weights=scenario.plan.precision.weights kv=scenario.plan.precision.kv engine=scenario.plan.engine
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class PhasePrediction(StepParts, NotebookValue):
    """One prefill, or one decode step, of a scenario. The parts of `breakdown` sum to `step_time_s`.

    step_time_s    from the first prompt token to the last one's answer, or one decode step
    steps          engine steps in it
    tokens         prompt tokens read, or tokens written (accepted drafts among them)
    tokens_per_s_per_user   tokens/s of one request; of a prefill, prompt tokens/s of the batch over its sequences
    curve          decode: the same context at other batches, up to what fits
    """

    scenario: Scenario
    step_time_s: float
    steps: int
    tokens: float
    breakdown: tuple[Part, ...]
    memory: ServingMemory
    cached_tokens: int
    interval: Interval
    bill: Bill
    evidence: Evidence
    curve: tuple[CurvePoint, ...] = ()
    assumptions: tuple[str, ...] = ()

    JSON = """
        kind='phase' possible=true scenario=title step_time_s steps tokens tokens_per_s tokens_per_s_per_user
        tokens_per_s_per_chip cost_per_million_tokens_usd energy_j=bill.energy_j breakdown=seconds_by_part parts
        bounds memory cached_tokens fits curve interval evidence assumptions
    """

    @property
    def title(self) -> PhaseTitle:
        """What is predicted."""
        return PhaseTitle(scenario=self.scenario)

    @property
    def fits(self) -> bool:
        """Whether the weights and the workload's cached tokens fit on the chips."""
        return self.memory.fits and self.cached_tokens <= max(self.memory.tokens, 0)

    @property
    def tokens_per_s(self) -> float:
        """Of the whole system."""
        return self.tokens / self.step_time_s

    @property
    def tokens_per_s_per_chip(self) -> float:
        """Of one chip."""
        return self.tokens_per_s / self.scenario.system.chips

    @property
    def tokens_per_s_per_user(self) -> float:
        """Of one request."""
        return self.tokens_per_s / self.scenario.workload.sequences

    @property
    def cost_per_million_tokens_usd(self) -> float | None:
        """What a million of these tokens cost at the chips' price; None without one."""
        return None if self.bill.cost_usd is None else self.bill.cost_usd / self.tokens * MILLION


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStep(StepParts):
    """One decode step of a scheduler at a batch and a context that a load gave it. The parts sum to `step_time_s`."""

    batch: float
    context: float
    step_time_s: float
    breakdown: tuple[Part, ...]


def decode_step(
    scenario: Scenario, batch: float, context: float, calibration: Calibration | None = None,
    serving: ServingCalibration | None = None,
) -> DecodeStep:  # fmt: skip
    """The step in which `batch` requests of one scheduler each read `context` cached tokens, and where it goes.

    >>> import ridgeline
    >>> scenario = ridgeline.scenario({"model": "llama3-8b", "system": "1xh100-sxm",
    ...     "workload": {"kind": "decode", "context": 1024, "batch": 16}, "plan": {"engine": "vllm"}})
    >>> step = decode_step(scenario, 16, 1024)
    >>> abs(step.step_time_s / predict_phase(scenario).step_time_s - 1) < 1e-9, next(iter(step.bounds))
    (True, 'memory')
    """
    microbatch = max(batch / scenario.plan.mesh.pp, 1.0)
    steps = forward_steps(decodes=microbatch, kv_tokens=microbatch * context)
    priced = price_forward(scenario, steps, calibration, serving)
    total = float(priced.seconds[0])
    return DecodeStep(batch=batch, context=context, step_time_s=total, breakdown=_breakdown(priced, np.ones(1), total))


def predict_phase(
    scenario: Scenario, calibration: Calibration | None = None, serving: ServingCalibration | None = None
) -> PhasePrediction | Impossible:
    """The predicted prefill or decode step of a scenario, or the reasons why there is none.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-70b", "system": "4xh100-sxm",
    ...     "workload": {"kind": "decode", "context": 2048, "batch": 32}, "plan": {"tp": 4}})
    >>> found = predict_phase(made)
    >>> abs(sum(part.seconds for part in found.breakdown) / found.step_time_s - 1) < 1e-9, found.fits
    (True, True)
    """
    used = calibration or default_calibration(), serving or shipped_serving()
    reasons = (*check(scenario), *_unserved_parts(scenario))
    return unless_impossible(scenario, reasons, lambda: _predict_phase(scenario, *used))


def _unserved_parts(scenario: Scenario) -> Iterator[Problem]:
    """What a possible scenario asks that serving does not do."""
    if isinstance(scenario.workload, Rl):
        expected = "prefill or decode: a step of post-training has many phases"
        yield Problem(path="workload.kind", given="rl", expected=expected)
        return
    if scenario.plan.mesh.cp > 1:
        given = str(scenario.plan.mesh.cp)
        yield Problem(path="plan.cp", given=given, expected="1: requests are not split over context ranks", todo="")
    if isinstance(scenario.workload, Decode) and not scenario.model.writes:
        expected = f"prefill: {scenario.model.id} reads its input at once and writes no tokens"
        yield Problem(path="workload.kind", given="decode", expected=expected, todo='use kind = "prefill"')
    drafts = scenario.plan.speculation
    if drafts is not None and drafts.draft == "mtp" and scenario.model.mtp is None:
        todo = 'use draft = "eagle" or "ngram"'
        expected = f"a drafter that {scenario.model.id} has"
        yield Problem(path="plan.speculation.draft", given="mtp", expected=expected, todo=todo)


def _predict_phase(scenario: Scenario, calibration: Calibration, serving: ServingCalibration) -> PhasePrediction:
    steps, times, tokens = phase_steps(scenario)
    priced = price_forward(scenario, steps, calibration, serving)
    memory = serving_memory(scenario)
    total = _through(scenario, priced, times)
    work, mesh = scenario.workload, scenario.plan.mesh
    cached = -(-work.sequences // mesh.dp) * work.seq if memory.kv_bytes_per_token else 0
    asked = "step" if isinstance(work, Decode) else "ttft"
    low, high, rows = serving_spread(scenario.engine, asked)
    basis = f"{rows} measured {'decodes' if asked == 'step' else 'prefills'} and serving runs of other configurations"
    span = Interval(low=total * low, high=total * high, coverage=COVERAGE, runs=rows, basis=basis)
    span = widen_interval(span, total, Distance(*what_if_distance(scenario.system.chip)))
    return PhasePrediction(
        scenario=scenario,
        step_time_s=total,
        steps=int(times.sum()),
        tokens=tokens,
        breakdown=_breakdown(priced, times, total),
        memory=memory,
        cached_tokens=cached,
        interval=widen_for_unread(span, total, scenario.unread),
        bill=step_bill(scenario, total),
        evidence=step_evidence(scenario, fitted=serving.knows(scenario.engine)),
        curve=_curve(scenario, memory, calibration, serving) if isinstance(work, Decode) else (),
        assumptions=(*scenario.assumptions, *_assumptions(scenario, serving, calibration)),
    )


def phase_steps(scenario: Scenario) -> tuple[ForwardSteps, Array, float]:
    """The engine steps of a workload on one scheduler, how often each runs, and its tokens over the whole system.

    A prefill fills each step with tokens of its sequences in order, the last of a step cut where chunks end; sequences
    that are seen both ways (encoders, latents) are never cut. The step that ends a prefill comes last, and once.
    """
    work, mesh = scenario.workload, scenario.plan.mesh
    if isinstance(work, Decode):
        own = work.batch / mesh.dp
        drafts = scenario.plan.speculation
        gained = drafts.tokens_per_step if drafts else 1.0
        return forward_steps(decodes=own, kv_tokens=own * work.context), np.ones(1), work.batch * gained
    assert isinstance(work, Prefill)
    many = -(-work.batch // mesh.dp)
    chunk = limits_of(scenario).max_num_batched_tokens if work.chunk is None else work.chunk
    if not scenario.model.causal:  # tokens that see each other both ways are of one step
        chunk = max(1, chunk // work.seq) * work.seq if chunk else 0
    columns = np.array(_distinct_steps(many, work.seq - work.cached, work.cached, chunk or many * work.seq))
    steps = forward_steps(prefill_tokens=columns[:, 0], prefill_pairs=columns[:, 1], prefills=columns[:, 2])
    return steps, columns[:, 3], float(work.batch * (work.seq - work.cached))


def _distinct_steps(many: int, own: int, cached: int, chunk: int) -> list[tuple[float, float, float, float]]:
    """Tokens, pairs, chunks and how often it runs of each distinct step that reads `many` x `own` tokens.

    Step i begins at token i C mod T of a sequence (C = chunk, T = own tokens), so steps repeat after T / gcd(T, C).
    """
    before = -(-many * own // chunk) - 1  # steps before the last one
    period = min(own // math.gcd(own, chunk), before)
    if period > MOST_STEPS:
        cut = f"{chunk:,} tokens, which cut these prompts into {period:,} steps that all differ"
        todo = "use a chunk that divides the prompt, or larger chunks"
        raise InputError(
            Problem(path="workload.chunk", given=cut, expected=f"at most {MOST_STEPS:,} of them", todo=todo)
        )
    rows = [(place * chunk % own, chunk, -(-(before - place) // period)) for place in range(period)]
    rows.append((before * chunk % own, many * own - before * chunk, 1))
    return [(float(size), *_cut_prompts(begin, size, own, cached), float(times)) for begin, size, times in rows]


def _cut_prompts(begin: int, size: int, own: int, cached: int) -> tuple[float, float]:
    """Query-key pairs, and chunks of prompts, of `size` tokens from token `begin` of a sequence on."""
    sequences, tail = divmod(begin + size, own)
    pairs = sequences * chunk_pairs(own, cached) + chunk_pairs(tail, cached) - chunk_pairs(begin, cached)
    return pairs, float(sequences + (tail > 0))


def _through(scenario: Scenario, priced: ForwardSeconds, times: Array) -> float:
    """Steps that follow each other: each enters once the slowest stage is free, and the last one leaves them all."""
    waits = priced.interval_s if scenario.plan.mesh.pp > 1 else priced.seconds
    return float((waits * times)[:-1].sum() + priced.seconds[-1])


def _breakdown(priced: ForwardSeconds, times: Array, total: float) -> tuple[Part, ...]:
    """Parts of the time, those of zero seconds left out; stages that work side by side share it."""
    sums = {name: float((column * times).sum()) for name, column in priced.parts.items()}
    share = total / sum(sums.values())
    memory = float(np.average(priced.memory_bound, weights=np.maximum(priced.parts["matmul"] * times, 1e-30)))
    limits: dict[str, Bound] = {"matmul": "memory" if memory > 0.5 else "compute"}
    return tuple(
        Part(name=name, seconds=sums[name] * share, bound=limits.get(name, bound), meaning=meaning)
        for name, (bound, meaning) in PARTS.items()
        if sums[name] > 0
    )


def _curve(
    scenario: Scenario, memory: ServingMemory, calibration: Calibration, serving: ServingCalibration
) -> tuple[CurvePoint, ...]:
    """Decode steps of other batches at the same context, from one request a scheduler to what fits."""
    work, mesh = scenario.workload, scenario.plan.mesh
    most = min(memory.requests(work.seq), limits_of(scenario).max_num_seqs) if memory.fits else 0
    most = max(int(most), -(-work.sequences // mesh.dp))
    own: Array = np.unique(np.round(np.geomspace(1, most, CURVE)))
    priced = price_forward(scenario, forward_steps(decodes=own, kv_tokens=own * work.seq), calibration, serving)
    step_s = np.maximum(priced.seconds, mesh.pp * priced.interval_s)
    drafts = scenario.plan.speculation
    gained = drafts.tokens_per_step if drafts else 1.0
    chip, chips = scenario.system.chip, scenario.system.chips
    made = []
    for batch, seconds in zip(own.tolist(), step_s.tolist(), strict=True):
        rate = batch * mesh.dp * mesh.pp * gained / seconds
        cost = chip.price.value * chips / HOUR / rate * MILLION if chip.price else None
        made.append(
            CurvePoint(
                batch=int(batch * mesh.dp * mesh.pp),
                step_time_s=seconds,
                tokens_per_s_per_user=gained / seconds,
                tokens_per_s_per_chip=rate / chips,
                cost_per_million_tokens_usd=cost,
            )
        )
    return tuple(made)


def _assumptions(scenario: Scenario, serving: ServingCalibration, calibration: Calibration) -> Iterator[str]:
    chip, engine, limits = scenario.system.chip, scenario.engine, limits_of(scenario)
    if caution := unmeasured_host(scenario, calibration.profiles):
        yield caution
    if not serving.knows(engine):
        yield f"no measured serving run of engine {engine.id} took part in the fit: common values used"
    if any(isinstance(block.ffn, Moe) for block in scenario.model.blocks):
        yield "experts: every choice of experts is as likely as any other"
    if scenario.plan.speculation is not None:
        yield f"acceptance {scenario.plan.speculation.acceptance:g} of a drafted token: given, not predicted"
    yield from unused_networks(scenario)
    share = "what is free once the model is loaded" if limits.memory_of == "free" else "a chip's memory"
    yield f"cache: {limits.gpu_memory_utilization:g} of {share}; graphs and runtime from general knowledge"
    if profile_for(calibration.profiles, chip.fitted_id) is not None:
        yield f"kernels priced by the profile of {chip.id} where it reaches"
    if chip.price is None:
        yield f'no price of {chip.id} in the catalog: set one with --set chip.price="… USD/h" for cost per token'
    elif chip.price.evidence is Evidence.ASSUMED:
        yield f"price {chip.price.value:g} USD/h a chip: assumed"
