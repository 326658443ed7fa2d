"""Turn a serve scenario into a fleet: what one replica of each pool is, its cache, its scheduler and its step cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from functools import partial
from types import MappingProxyType
from typing import TypeVar

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.cost import Calibration, ServingCalibration
from ridgeline.hardware.load import system as load_system
from ridgeline.ir.forward_steps import ForwardSteps
from ridgeline.models.facts import kv_cache_bytes_per_token
from ridgeline.plan.mesh import Mesh
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.serving_plan import (
    Failure,
    Knobs,
    SglangKnobs,
    StaticKnobs,
    TensorrtLlmKnobs,
    VllmKnobs,
    default_knobs,
)
from ridgeline.serving.engine.sglang import sglang_scheduler
from ridgeline.serving.engine.sglang_prefill import SglangSettings
from ridgeline.serving.engine.step import Policy, StaticBatcher
from ridgeline.serving.engine.tensorrt_llm import TensorrtLlmScheduler, TensorrtLlmSettings
from ridgeline.serving.engine.vllm import VllmScheduler, VllmSettings, vllm_rules
from ridgeline.serving.fleet import (
    CacheTransfer,
    Fleet,
    LeastLoaded,
    PrefixAware,
    ReplicaPool,
    RequestRouter,
    Role,
    RoundRobin,
)
from ridgeline.serving.replica import Replica, replica_of
from ridgeline.serving.request import Request
from ridgeline.serving.step_cost import Price, PricedSteps, StepCost, priced_steps
from ridgeline.sim import ServingMemory, limits_of, price_forward, serving_memory

LONG_CONTEXT = 1 << 17  # tokens of a model whose context nobody states
SGLANG_DP = 0.3  # of its conservativeness under DP attention
STATIC_TOKENS = 16384  # of a step of a static batcher that are priced
SGLANG_RUNNING = (2048, 4096)  # least and most `max_running_requests` by default
MOST_FAILURES = 100_000  # random ones of a run
HANDSHAKE_S = 5e-4  # before a cache moves: notification and descriptors, assumed
STAGES_NOTE = "pipeline stages: a step is a round of pp microbatches, each through all stages, one entering at a time"
DRAFTS_NOTE = "speculation: a token takes the step's time over the mean number of tokens that a step yields"
LIMITS = ("max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization", "block_size")
LIMIT_KNOBS: Mapping[type[Knobs], tuple[str, str, str, str]] = MappingProxyType(
    {
        VllmKnobs: ("max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization", "block_size"),
        SglangKnobs: ("chunked_prefill_size", "", "mem_fraction_static", "page_size"),
        TensorrtLlmKnobs: ("max_num_tokens", "max_batch_size", "free_gpu_memory_fraction", "tokens_per_block"),
        StaticKnobs: ("", "batch_size", "", ""),
    }
)
"""The engines' own names of `LIMITS`; empty: not theirs to say."""

Settings = VllmSettings | SglangSettings | TensorrtLlmSettings | StaticKnobs
S = TypeVar("S", VllmSettings, SglangSettings, TensorrtLlmSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """One replica: the scenario it runs (its own mesh), its memory, step cost and a maker of schedulers.

    settings   of its scheduler, with nothing left open
    longest    prompt and output tokens of the longest request that it can serve
    """

    scenario: Scenario
    role: Role
    count: int
    memory: ServingMemory
    cost: StepCost
    settings: Settings
    longest: int
    notes: tuple[str, ...] = ()

    JSON = """
        role tokens=memory.tokens blocks=memory.blocks block_size=memory.block_size weights_bytes=memory.weights
        kv_bytes=memory.kv_bytes kv_bytes_per_token=memory.kv_bytes_per_token
    """

    @property
    def chips(self) -> int:
        return self.scenario.plan.mesh.ranks

    @property
    def ranks(self) -> int:
        """Schedulers that step together."""
        return self.scenario.plan.mesh.dp

    def make(self) -> Replica:
        return replica_of([self.scheduler() for _ in range(self.ranks)], self.cost)

    def scheduler(self) -> Policy:
        match self.settings:
            case VllmSettings():
                return VllmScheduler(self.settings)
            case SglangSettings():
                return sglang_scheduler(self.settings)
            case TensorrtLlmSettings():
                return TensorrtLlmScheduler(self.settings)
            case StaticKnobs():
                return StaticBatcher(self.settings.batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPricing:
    """What steps are priced with."""

    calibration: Calibration | None = None
    serving: ServingCalibration | None = None
    cost: StepCost | None = None


def instances_of(scenario: Scenario, priced: StepPricing | None = None) -> tuple[Instance, ...]:
    """The replicas of a scenario, one entry for each pool."""
    used = priced or StepPricing()
    mesh, serving = scenario.plan.mesh, scenario.plan.serving
    if not serving.pools:
        ranks = serving.data_parallel_size
        count = serving.autoscale.max_replicas if serving.autoscale else serving.replicas or mesh.dp // ranks
        return (_instance(scenario, replace(mesh, dp=ranks), "both", count, used),)
    return tuple(
        _instance(
            replace(scenario, system=load_system(pool.system)) if pool.system else scenario,
            Mesh(tp=pool.tp or mesh.tp, pp=pool.pp or mesh.pp, ep=pool.ep or mesh.ep, dp=pool.dp, etp=mesh.etp),
            pool.role,
            pool.replicas,
            used,
        )
        for pool in serving.pools
    )


def _instance(scenario: Scenario, mesh: Mesh, role: Role, count: int, priced: StepPricing) -> Instance:
    own = replace(scenario, plan=replace(scenario.plan, mesh=mesh))
    knobs = knobs_of(own)
    limits = limits_of(own)
    names = zip(LIMITS, LIMIT_KNOBS[type(knobs)], strict=True)
    limits = replace(limits, **{name: value for name, knob in names if knob and (value := getattr(knobs, knob))})
    if isinstance(knobs, SglangKnobs):  # DP attention deals a chunk out
        limits = replace(limits, max_num_batched_tokens=max(limits.max_num_batched_tokens // mesh.dp, 1))
    memory = serving_memory(own, limits)
    round_tokens = limits.max_num_batched_tokens * own.plan.mesh.pp  # every microbatch of a round has the budget
    settings, longest = _settings(own, knobs, memory, (round_tokens, limits.max_num_seqs))
    cost = priced.cost or _cost(own, priced, settings, limits.max_num_batched_tokens)
    notes = [STAGES_NOTE] if mesh.pp > 1 else []
    notes += [DRAFTS_NOTE] if scenario.plan.speculation else []
    return Instance(
        scenario=own, role=role, count=count, memory=memory, cost=cost, settings=settings, longest=longest,
        notes=tuple(notes),
    )  # fmt: skip


def knobs_of(scenario: Scenario) -> Knobs:
    """The knobs of the plan's engine: as given, or its defaults."""
    return scenario.plan.serving.knobs or default_knobs(scenario.engine.id)


def _settings(scenario: Scenario, knobs: Knobs, memory: ServingMemory, most: tuple[int, int]) -> tuple[Settings, int]:
    """The scheduler's settings, and the longest request they can serve."""
    context = scenario.model.context or LONG_CONTEXT
    match knobs:
        case VllmKnobs():
            rules = vllm_rules(knobs.version)
            vllm = _settings_of(
                VllmSettings,
                knobs,
                num_blocks=max(knobs.num_gpu_blocks_override or memory.blocks, 2),
                max_num_seqs=most[1],
                max_num_batched_tokens=most[0],
                max_model_len=knobs.max_model_len or context,
                scheduler_reserve_full_isl=knobs.scheduler_reserve_full_isl is not False,
                watermark=knobs.watermark or 0.0,
                async_scheduling=rules.async_scheduling if knobs.async_scheduling is None else knobs.async_scheduling,
                rules=rules,
            )
            return vllm, min(vllm.max_model_len, (vllm.num_blocks - 1) * knobs.block_size)
        case SglangKnobs():
            tokens = knobs.max_total_tokens or memory.tokens
            low, high = SGLANG_RUNNING
            usual = min(max(tokens // context * 512, low), high, max(tokens // 2, 1))
            threshold = knobs.priority_scheduling_preemption_threshold
            dealt = SGLANG_DP if scenario.plan.mesh.dp > 1 else 1
            sglang = _settings_of(
                SglangSettings,
                knobs,
                max_total_tokens=max(tokens, 2),
                max_running_requests=knobs.max_running_requests or usual,
                chunked_prefill_size=most[0] if knobs.chunked_prefill_size != -1 else 0,
                schedule_conservativeness=knobs.schedule_conservativeness * dealt,
                priority_scheduling_preemption_threshold=10 if threshold is None else threshold,
            )
            return sglang, min(context, tokens)
        case TensorrtLlmKnobs():
            tensorrt = _settings_of(
                TensorrtLlmSettings,
                knobs,
                blocks=max(memory.blocks, 1),
                max_batch_size=most[1],
                max_num_tokens=most[0],
                max_seq_len=knobs.max_seq_len or context,
            )
            return tensorrt, min(tensorrt.max_seq_len, tensorrt.blocks * knobs.tokens_per_block)
        case StaticKnobs():
            return knobs, min(context, memory.tokens // knobs.batch_size)


def _settings_of(kind: type[S], knobs: Knobs, **values: object) -> S:
    """Settings of an engine: its knobs as given, with values where they leave something open."""
    return kind(**{field.name: getattr(knobs, field.name) for field in fields(knobs)} | values)


def _cost(scenario: Scenario, priced: StepPricing, settings: Settings, budget: int) -> PricedSteps:
    if isinstance(settings, StaticKnobs):
        tokens, seqs = STATIC_TOKENS, settings.batch_size
    else:
        tokens, seqs = settings.step_limits
    if isinstance(settings, SglangSettings):
        tokens, seqs = max(tokens, settings.max_prefill_tokens), min(seqs, SGLANG_RUNNING[1])
    drafted = scenario.plan.speculation
    return priced_steps(
        price_of(scenario, priced, budget),
        max_num_seqs=seqs,
        max_tokens=tokens,
        tokens_per_step=drafted.tokens_per_step if drafted else 1.0,
    )


def price_of(scenario: Scenario, priced: StepPricing, budget: int = 0) -> Price:
    """Seconds of this replica's steps; `budget` tokens in one microbatch, as the engine's limits say unless told.

    Stages of a pipeline run different microbatches at once. A step of the replica is a round of `pp` of them: decodes
    are dealt evenly, prompts fill one microbatch after the other up to the token budget (k of them). A microbatch is
    through when it has passed every stage, and one enters whenever the slowest stage is free:

        round = max(all stages of a microbatch with prompts,  k x its slowest stage + (pp - k) x that of decodes alone)
    """
    stages = scenario.plan.mesh.pp
    known = (priced.calibration, priced.serving)
    most = budget or limits_of(scenario).max_num_batched_tokens

    def seconds(steps: ForwardSteps) -> Array:
        if stages == 1:
            return price_forward(scenario, steps, *known).seconds
        filled = np.clip(np.ceil(steps.prefill_tokens / most), 1.0, stages)
        chunks = np.where(steps.prefills > 0, np.maximum(steps.prefills / filled, 1.0), 0.0)
        decodes, cached = np.ceil(steps.decodes / stages), steps.kv_tokens / stages
        none = np.zeros(len(steps))
        both = replace(  # microbatches with prompts, then those of decodes alone, priced in one pass
            steps,
            prefill_tokens=np.concatenate([steps.prefill_tokens / filled, none]),
            prefill_pairs=np.concatenate([steps.prefill_pairs / filled, none]),
            prefills=np.concatenate([chunks, none]),
            decodes=np.tile(decodes, 2),
            kv_tokens=np.tile(cached, 2),
        )
        found = price_forward(scenario, both, *known)
        first, others = np.split(found.interval_s, 2)
        entering = filled * first + (stages - filled) * np.where(decodes > 0, others, 0.0)
        return np.asarray(np.maximum(found.seconds[: len(steps)], entering), dtype=np.float64)

    return seconds


def fleet_of(scenario: Scenario, instances: tuple[Instance, ...], until: float) -> Fleet:
    """The fleet that a scenario's plan describes; random failures until a time."""
    serving = scenario.plan.serving
    transfer = _transfer(scenario, instances)
    routers: dict[str, Callable[[], RequestRouter]] = {
        "prefix-aware": partial(PrefixAware, max(one.memory.tokens * one.ranks for one in instances)),
        "least-loaded": LeastLoaded,
    }
    return Fleet(
        pools=[
            ReplicaPool(make=one.make, count=one.count, chips=one.chips, role=one.role, transfer=transfer.get(place))
            for place, one in enumerate(instances)
        ],
        router=routers.get(serving.router, RoundRobin),
        autoscale=serving.autoscale,
        failures=(*serving.failures, *_random_failures(scenario, sum(one.count for one in instances), until)),
    )


def _random_failures(scenario: Scenario, replicas: int, until: float) -> Iterator[Failure]:
    """Failures of every replica with exponential gaps, from the workload's seed."""
    serving = scenario.plan.serving
    if not serving.mtbf:
        return
    if (many := until / (serving.mtbf + serving.restart) * replicas) > MOST_FAILURES:
        frequency = f"{serving.mtbf:g} s, about {many:.3g} failures while requests come"
        todo = "raise mtbf or restart, or ask for fewer requests"
        raise InputError(
            Problem(
                path="plan.serving.mtbf", given=frequency, expected=f"at most {MOST_FAILURES:,} failures", todo=todo
            )
        )
    seed = getattr(scenario.workload, "seed", 0)
    for place in range(replicas):
        dice = np.random.default_rng((seed, 2, place))
        at = float(dice.exponential(serving.mtbf))
        while at < until:
            yield Failure(at=at, replica=place, down=serving.restart)
            at += serving.restart + float(dice.exponential(serving.mtbf))


def _transfer(scenario: Scenario, instances: tuple[Instance, ...]) -> dict[int, CacheTransfer]:
    """How prefill replicas send a cache: all their chips at once over the closest links that both pools share."""
    if not any(one.role == "prefill" for one in instances):
        return {}
    chips = sum(one.chips * one.count for one in instances)
    each = kv_cache_bytes_per_token(scenario.model, scenario.plan.precision.kv)
    transfers = {}
    for place, one in enumerate(instances):
        if one.role == "prefill":
            tiers = one.scenario.system.tiers
            tier = next((tier for tier in tiers if tier.chips >= chips), tiers[-1])  # innermost that holds all of them
            shards = one.scenario.plan.mesh.tp * one.scenario.plan.mesh.pp
            transfers[place] = CacheTransfer(
                bytes_per_token=each,
                bytes_per_s=tier.need_bandwidth().value * shards,
                latency_s=(tier.latency.value if tier.latency else 0.0) + HANDSHAKE_S,
            )
    return transfers


def unservable(instances: tuple[Instance, ...], requests: tuple[Request, ...]) -> Iterator[Problem]:
    """Why a deployment cannot serve these requests at all."""
    for one in instances:
        name = f"{one.scenario.model.id} on {one.chips} x {one.scenario.system.chip.id}"
        if not one.memory.fits:
            need = one.memory.weights + one.memory.activations + one.memory.graphs + one.memory.runtime
            yield Problem(
                path="plan.tp",
                given=f"{name}: {need / 2**30:.1f} GiB a chip before any cache",
                expected=f"less than the {one.memory.capacity / 2**30:.1f} GiB that a chip has",
                todo="use more tensor or pipeline ranks, narrower weights, or a larger gpu_memory_utilization",
            )
            continue
        longest = max(requests, key=lambda request: request.prompt_tokens + request.output_tokens)
        tokens = longest.prompt_tokens + longest.output_tokens
        if tokens - 1 > one.longest:
            many = sum(request.prompt_tokens + request.output_tokens - 1 > one.longest for request in requests)
            yield Problem(
                path="workload",
                given=f"{many} request(s) that are too long; {longest.id} has {tokens:,} tokens",
                expected=f"at most {one.longest:,} tokens, prompt and answer: what {name} can hold",
                todo="raise max_model_len or the cache, or leave such requests out",
            )
