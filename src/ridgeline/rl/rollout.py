"""Turn a post-training scenario into the rollout of one step: its replicas, the slowest of them, and a steady stream.

batch      all samples of a step at once, dealt to the replicas by prompt; a step waits for the slowest replica
stream     samples follow each other in the places that a staleness bound leaves; what counts is the rate
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ridgeline.core.arrays import Array, Index
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.plan.rl_roles import rollout_scenario
from ridgeline.plan.rl_workload import Agent, Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.rl.lengths import Samples, latency_quantiles, length_quantiles, whole_tokens
from ridgeline.rl.parameters import RlParameters
from ridgeline.rl.rollout_batch import BatchRun, EngineLimits, run_batch
from ridgeline.serving import Instance, Settings, StepCost, StepPricing, instances_of

SEQS_FIELDS = ("max_num_seqs", "max_running_requests", "max_batch_size", "batch_size")
TOKENS_FIELDS = ("max_num_batched_tokens", "chunked_prefill_size", "max_num_tokens")
FEW = 0.1  # of the samples that begin: below this many left a replica is in its tail
STREAM = 3.0  # samples for every place of a stream, of which the first and the last do not count
MOST_STREAM = 1536  # samples of one replica that a stream is followed for


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutEngine:
    """One replica and how many there are."""

    instance: Instance
    limits: EngineLimits
    replicas: int
    cost: StepCost

    @property
    def chips(self) -> int:
        """Chips of all replicas."""
        return self.replicas * self.instance.chips


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutTimes:
    """The rollout of one step.

    seconds        of the slowest replica
    mean_s         of a replica, on average: the rest it waits
    tail_s         of the slowest replica with fewer than a tenth of its samples left
    tokens         written by all replicas
    rate           tokens per second of all replicas while they have enough samples
    latency_s      mean seconds from a sample's first token to its last
    preempted      share of samples that lost their cache
    prefilled      prompt tokens read, over all replicas
    cache_share    of the cache's tokens at the fullest moment
    batch          samples that decode at once in a replica, on average over its time
    steps          of the engine in the slowest replica
    """

    seconds: float
    mean_s: float
    tail_s: float
    tokens: float
    rate: float
    latency_s: float
    preempted: float
    prefilled: float
    cache_share: float
    batch: float
    steps: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopStepCost:
    """A step of an engine inside a training loop: a factor of what serving takes, and so many seconds more.

    more_s, token_s   of every step, and of every token that it samples
    """

    cost: StepCost
    factor: float
    more_s: float
    token_s: float

    def decode_line(self, decodes: int) -> tuple[float, float]:
        fixed, slope = self.cost.decode_line(decodes)
        return fixed * self.factor + self.more_s + self.token_s * decodes, slope * self.factor

    def mixed_step_seconds(self, chunks: Sequence[tuple[int, int]], decodes: int, kv_tokens: int) -> float:
        seconds = self.cost.mixed_step_seconds(chunks, decodes, kv_tokens) * self.factor
        return seconds + self.more_s + self.token_s * decodes


def rollout_engine(
    scenario: Scenario[Rl], parameters: RlParameters, priced: StepPricing | None = None
) -> RolloutEngine:
    """A replica of a scenario's rollout with its memory, scheduler settings and step cost."""
    (instance,) = instances_of(rollout_scenario(scenario), priced)
    agent = scenario.workload.agent
    ranks = instance.ranks
    settings = instance.settings
    return RolloutEngine(
        instance=instance,
        replicas=instance.count,
        cost=LoopStepCost(
            cost=instance.cost,
            factor=parameters.rollout_factor,
            more_s=step_seconds(scenario, parameters),
            token_s=parameters.token_s,
        ),
        limits=EngineLimits(
            tokens=max(instance.memory.tokens, 1) * ranks,
            seqs=_setting(settings, SEQS_FIELDS) * ranks,
            step_tokens=_setting(settings, TOKENS_FIELDS) * ranks,
            block=instance.memory.block_size,
            shares_prefix=_caches_prefixes(settings),
            frees_waiting=agent is not None and agent.waiting == "free",
        ),
    )


def step_seconds(scenario: Scenario[Rl], parameters: RlParameters) -> float:
    """Software of one step of the engine: of the loop, and of every layer where no graph is replayed."""
    eager_layers = scenario.model.layers if scenario.plan.rl.rollout.eager else 0
    return parameters.decode_step_s + eager_layers * parameters.eager_layer_s


def _setting(settings: Settings, names: Sequence[str]) -> int:
    """The first of these settings that a scheduler has."""
    return next((int(value) for name in names if (value := getattr(settings, name, 0))), 8192)


def _caches_prefixes(settings: Settings) -> bool:
    named_parts = ("enable_prefix_caching", "enable_block_reuse")
    uses = next((bool(getattr(settings, name)) for name in named_parts if hasattr(settings, name)), True)
    return uses and not getattr(settings, "disable_radix_cache", False)


def draw_samples(work: Rl, prompts: int, seed: int, growth: float = 1.0) -> Samples:
    """So many prompts with their samples, drawn at random."""
    dice = np.random.default_rng((work.seed, seed))
    data, many = work.data, prompts * work.data.samples
    assert data.response_tokens is not None  # the workload's own check
    prompt = whole_tokens(length_quantiles(data.prompt_tokens, dice.random(prompts)))
    answer = whole_tokens(length_quantiles(data.response_tokens, dice.random(many), growth))
    turns, tool_s, tool_tokens = _tools(work.agent, many, dice)
    return Samples(
        prompt=np.repeat(prompt, data.samples),
        answer=np.maximum(answer, turns),
        group=np.repeat(np.arange(prompts), data.samples),
        turns=turns,
        tool_s=tool_s,
        tool_tokens=tool_tokens,
    )


def _tools(agent: Agent | None, many: int, dice: np.random.Generator) -> tuple[Index, Array, Index]:
    """Turns of every sample, and how long the tool takes and how much it says after each but the last."""
    if agent is None:
        return np.ones(many, dtype=np.int64), np.zeros((many, 0)), np.zeros((many, 0), dtype=np.int64)
    turns = whole_tokens(length_quantiles(agent.turns, dice.random(many)))
    pauses = int(turns.max()) - 1
    calls = np.arange(pauses)[None, :] < (turns - 1)[:, None]
    seconds = latency_quantiles(agent.tool_latency, dice.random(many * pauses)).reshape(many, pauses)
    tokens = whole_tokens(length_quantiles(agent.tool_tokens, dice.random(many * pauses))).reshape(many, pauses)
    return turns, np.where(calls, seconds, 0.0), np.where(calls, tokens, 0)


def batch_rollout(engine: RolloutEngine, samples: Samples) -> RolloutTimes:
    """The rollout of all samples at once: prompts are dealt to replicas in turn.

    The replica with most tokens and the one with the longest sample are followed, and two that are usual: the slowest
    is one of the first, the mean that of the others.
    """
    owner = samples.group % engine.replicas
    work = np.bincount(owner, samples.answer, engine.replicas)
    longest = int(owner[np.argmax(samples.answer)])
    usual = np.argsort(work, kind="stable")[[engine.replicas // 3, engine.replicas * 2 // 3]]
    chosen = list(dict.fromkeys([int(np.argmax(work)), longest, *map(int, usual)]))
    runs = {place: _follow(engine, samples.at(np.flatnonzero(owner == place))) for place in chosen}
    slowest = max(runs.values(), key=lambda run: run.seconds)
    mean = float(np.mean([runs[int(place)].seconds for place in usual]))
    return _times(engine, samples, slowest, mean)


def _follow(engine: RolloutEngine, samples: Samples) -> BatchRun:
    if len(samples) and int(samples.cache_tokens.max()) > engine.limits.tokens:
        given_text = f"a sample of {int(samples.cache_tokens.max()):,} tokens"
        expectation = f"at most {engine.limits.tokens:,}: what the cache of a replica holds"
        todo = "use more tensor ranks for the rollout, or a larger share of memory"
        raise InputError(Problem(path="plan.rl.rollout", given=given_text, expected=expectation, todo=todo))
    return run_batch(samples, engine.cost, engine.limits)


def _times(engine: RolloutEngine, samples: Samples, slowest: BatchRun, mean_s: float) -> RolloutTimes:
    many = len(slowest.ended_s)
    end_times = np.sort(slowest.ended_s)
    few = max(math.ceil(many * FEW), 1)
    tail = slowest.seconds - float(end_times[-few - 1]) if many > few else 0.0
    steady = _steady_rate(slowest)
    lengths = np.diff(slowest.points[:, 0])
    batch = float((slowest.points[1:, 1] * lengths).sum() / max(slowest.seconds, 1e-9))
    share = len(samples) / max(many, 1)
    return RolloutTimes(
        seconds=slowest.seconds,
        mean_s=min(mean_s, slowest.seconds),
        tail_s=tail,
        tokens=float(samples.answer.sum()),
        rate=steady * engine.replicas,
        latency_s=float((slowest.ended_s - slowest.started_s).mean()),
        preempted=slowest.preemptions / max(many, 1),
        prefilled=slowest.prefilled * share,
        cache_share=slowest.most_tokens / engine.limits.tokens,
        batch=batch,
        steps=slowest.steps,
    )


def _steady_rate(run: BatchRun) -> float:
    """Tokens per second until the last sample was admitted; over the whole run where all were there at once."""
    times, written = run.points[:, 0], run.points[:, 2]
    until = run.fed_s if run.fed_s > 0.2 * run.seconds else run.seconds
    return float(np.interp(until, times, written)) / max(until, 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimes:
    """A steady stream of samples.

    samples_per_s   that end, over all replicas
    latency_s       seconds from a sample's start to its end: mean, and every followed sample's
    places          samples in flight in all replicas
    read_again_s    seconds a replica reads interrupted samples again, each weight sync
    """

    samples_per_s: float
    latency_s: float
    latencies: Array
    places: int
    read_again_s: float
    times: RolloutTimes


def stream_rollout(engine: RolloutEngine, work: Rl, places: int, *, growth: float) -> StreamTimes:
    """Samples that follow each other, `places` of them in flight over all replicas."""
    per_item = max(min(places // engine.replicas, engine.limits.seqs), 1)
    many = min(math.ceil(per_item * STREAM), MOST_STREAM)
    prompts = max(math.ceil(many / work.data.samples), 1)
    samples = draw_samples(work, prompts, 7, growth)
    limits = replace(engine.limits, seqs=per_item)
    run = _follow(replace(engine, limits=limits), samples)
    latencies = run.ended_s - np.maximum(run.started_s, 0.0)
    rate = _stream_rate(run)
    mean_tokens = float(samples.answer.mean())
    context = float(samples.cache_tokens.mean()) / 2
    chunk = engine.limits.step_tokens
    again_s = (
        engine.cost.mixed_step_seconds([(chunk, int(context / 2))], 0, 0)
        * min(per_item, len(samples))
        * context
        / chunk
    )
    return StreamTimes(
        samples_per_s=rate / mean_tokens * engine.replicas,
        latency_s=float(latencies.mean()),
        latencies=latencies,
        places=per_item * engine.replicas,
        read_again_s=again_s,
        times=_times(engine, samples, run, run.seconds),
    )


def _stream_rate(run: BatchRun) -> float:
    """Tokens per second from when the first third was written until nobody waited any more."""
    times, written = run.points[:, 0], run.points[:, 2]
    end = run.fed_s if run.fed_s > 0 else run.seconds
    begin = end / 3
    if end - begin <= 0:
        return run.tokens / max(run.seconds, 1e-9)
    return float(np.interp(end, times, written) - np.interp(begin, times, written)) / (end - begin)
