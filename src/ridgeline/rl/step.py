"""Turn a post-training scenario into the prediction of one step: phases of every role, what overlaps, what waits.

colocated      generate, log-probabilities, reference, critic, rewards, update and sync follow each other
split          the same on chips of their own: one pool works while the other waits
one-step-off   max(slowest replica, training side) + sync
async          max(samples of a step over the rate of a steady stream, longest sample over the versions that it
                   may live through, training side) + sync
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ridgeline.core.errors import InputError
from ridgeline.core.records import dataclass
from ridgeline.core.units import HOUR
from ridgeline.cost import Calibration
from ridgeline.plan.check import check
from ridgeline.plan.rl_roles import chip_shares
from ridgeline.plan.rl_workload import Agent, Lengths, Rl, TokensFile, Verifier
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.rl.lengths import LengthMoments, latency_quantiles, length_quantiles
from ridgeline.rl.memory import rl_memory
from ridgeline.rl.mixture import MIDDLE, document_lengths, mixture_moves, replay_cost, schedule_step
from ridgeline.rl.parameters import RlParameters, shipped_parameters
from ridgeline.rl.prediction import BoundBy, DriftPoint, PoolIdle, RlPhase, RlPrediction, Staleness
from ridgeline.rl.rollout import (
    RolloutEngine,
    RolloutTimes,
    StreamTimes,
    batch_rollout,
    draw_samples,
    rollout_engine,
    stream_rollout,
)
from ridgeline.rl.sync_time import WeightSyncTime, host_copy_seconds, weight_sync
from ridgeline.rl.training import RolePass, actor_pass, role_pass
from ridgeline.serving import StepPricing
from ridgeline.sim import Impossible, Interval, unless_impossible, widen_for_unread

DRAWS = 5  # steps that are drawn for the spread over steps
QUANTILES = 512  # of a latency, for means
SIGMAS_90 = 1.645  # of the normal distribution, either way, for nine in ten
TOLD = {
    "generate": "the slowest replica writes its last sample",
    "verify": "answers judged after the last one is written",
    "log-probabilities": "the actor's forward pass over what it wrote",
    "reference": "the frozen reference's forward pass",
    "reward_model": "the reward model's forward pass",
    "critic": "the critic's forward pass",
    "teacher": "the teacher's forward pass",
    "update": "the actor's optimizer steps",
    "critic update": "the critic's optimizer steps",
    "weight sync": "new weights on their way to the engines",
    "switch": "engines sleep and wake, trainer states leave and return",
    "other": "rewards, data and waiting between phases",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What is known of a step before it is put together."""

    scenario: Scenario[Rl]
    parameters: RlParameters
    engine: RolloutEngine | None
    lengths: LengthMoments
    growth: float
    actor: RolePass
    others: tuple[RolePass, ...]
    sync: WeightSyncTime | None

    @property
    def work(self) -> Rl:
        return self.scenario.workload

    @property
    def generated_prompts(self) -> int:
        """Prompts that a step samples answers to."""
        return max(round(self.work.data.prompts * self.work.data.oversampling), 1)


def predict_rl(
    scenario: Scenario, calibration: Calibration | None = None, priced: StepPricing | None = None,
    parameters: RlParameters | None = None, draws: int = DRAWS,
) -> RlPrediction | Impossible:  # fmt: skip
    """The predicted step of a post-training scenario, or the reasons why there is none.

    draws   steps whose lengths are drawn, for the spread over steps

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> found = predict_rl(read_scenario("examples/grpo-qwen2.5-7b-32xh20.toml"))
    >>> abs(sum(found.exposed_seconds.values()) / found.step_time_s - 1) < 1e-9
    True
    """
    built = post_training(scenario)
    pricing = priced or StepPricing(calibration=calibration)

    def answer() -> RlPrediction | Impossible:
        try:
            return _predict(built, calibration, pricing, parameters or shipped_parameters(), draws)
        except InputError as wrong:
            return Impossible(scenario=scenario, reasons=tuple(wrong.problems))

    return unless_impossible(scenario, check(scenario), answer)


def _predict(
    scenario: Scenario[Rl], calibration: Calibration | None, priced: StepPricing, parameters: RlParameters, draws: int
) -> RlPrediction:
    work, drift = scenario.workload, scenario.workload.data.drift
    engine = rollout_engine(scenario, parameters, priced) if work.generates else None
    middle = 1.0 if drift is None else (1 + drift.growth) / 2
    step = _prepare(scenario, engine, calibration, parameters, middle)
    answer = _assemble(step, draws)
    if drift is None and not (work.sources and mixture_moves(work)):
        return answer
    points = []
    for share in (0.0, MIDDLE, 1.0):
        growth = 1.0 if drift is None else 1 + (drift.growth - 1) * share
        at_share = _prepare(scenario, engine, calibration, parameters, growth, share)
        seconds = answer.step_time_s if share == MIDDLE else _assemble(at_share, 1).step_time_s
        mean = at_share.lengths.mean if drift is None else _answer_mean(work, growth)
        step_number = schedule_step(work, share) if drift is None else round(drift.steps * share)
        points.append(DriftPoint(step=step_number, mean_tokens=mean, step_time_s=seconds))
    over_training = (points[0].step_time_s + 4 * points[1].step_time_s + points[2].step_time_s) / 6
    cost = None if answer.cost_usd is None else answer.cost_usd * over_training / answer.step_time_s
    return replace(answer, drift=tuple(points), cost_usd=cost)


def _answer_mean(work: Rl, growth: float) -> float:
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    response = work.data.response_tokens
    return float(length_quantiles(response, shares, growth).mean()) if response else 0.0


def _prepare(
    scenario: Scenario[Rl], engine: RolloutEngine | None, calibration: Calibration | None, parameters: RlParameters,
    growth: float, progress: float = MIDDLE,
) -> _Step:  # fmt: skip
    work = scenario.workload
    lengths = _lengths_of(work, growth, progress)
    return _Step(
        scenario=scenario,
        parameters=parameters,
        engine=engine,
        lengths=lengths,
        growth=growth,
        actor=actor_pass(scenario, lengths, parameters, calibration),
        others=tuple(role_pass(scenario, role, lengths, parameters, calibration) for role in work.roles.models),
        sync=weight_sync(scenario, parameters) if work.generates else None,
    )


def _with_tools(lengths: LengthMoments, agent: Agent | None) -> LengthMoments:
    """Lengths with what tools said: it is trained on too, or at least attended to."""
    if agent is None:
        return lengths
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    turns, tokens = length_quantiles(agent.turns, shares), length_quantiles(agent.tool_tokens, shares)
    more = float(turns.mean() - 1) * float(tokens.mean())
    upper_limit = float(turns.max() - 1) * float(tokens.max())
    grown = (lengths.mean + more) / lengths.mean
    return LengthMoments(
        mean=lengths.mean + more, p90=lengths.p90 * grown, longest=lengths.longest + upper_limit,
        attended=lengths.attended * grown,
    )  # fmt: skip


def training_pass(
    scenario: Scenario[Rl], calibration: Calibration | None = None, parameters: RlParameters | None = None
) -> RolePass:
    """The actor's passes alone, for a search; an `InputError` where its plan cannot run."""
    return actor_pass(scenario, _lengths_of(scenario.workload, 1.0), parameters or shipped_parameters(), calibration)


def rollout_times(
    scenario: Scenario[Rl], priced: StepPricing | None = None, parameters: RlParameters | None = None
) -> RolloutTimes:
    """The rollout of one step alone, with one draw of lengths; an `InputError` where a sample fits no cache."""
    engine = rollout_engine(scenario, parameters or shipped_parameters(), priced)
    data = scenario.workload.data
    prompts = max(round(data.prompts * data.oversampling), 1)
    return batch_rollout(engine, draw_samples(scenario.workload, prompts, 0))


def _lengths_of(work: Rl, growth: float, progress: float = MIDDLE) -> LengthMoments:
    """Lengths of samples, with what tools said; of documents where the mixture has come so far."""
    return _with_tools(document_lengths(work, growth, progress), work.agent)


# -- one step put together --------------------------------------------------------------------------------------------


def _assemble(step: _Step, draws: int) -> RlPrediction:
    placement = step.scenario.plan.rl.placement
    if step.engine is None:
        phases = _one_after_the_other(_with_other(list(_training_phases(step)), step.parameters))
        return _answer(step, phases, (_total(phases),), "training", None)
    if placement in ("colocated", "split"):
        return _synchronous(step, step.engine, draws)
    return _overlapped_step(step, step.engine, draws)


def _training_phases(step: _Step) -> Iterator[tuple[str, str, float]]:
    """Name, pool and seconds of what follows the rollout; roles on chips of their own run beside each other."""
    work, separate = step.work, step.scenario.plan.rl.separate
    where = "train" if separate else "all"
    if _recomputes_log_probs(step.scenario):
        yield "log-probabilities", where, step.actor.forward_s
    own_chips = [role for role in step.others if role.chips != step.actor.chips]
    for role in step.others:
        if role not in own_chips:
            yield role.role, where, role.forward_s
    if own_chips:
        slowest = max(own_chips, key=lambda role: role.forward_s)
        yield slowest.role, slowest.role, slowest.forward_s
    for role in step.others:
        if role.update_s and role not in own_chips:
            yield "critic update", where, role.update_s
    beside_text = max((role.update_s for role in own_chips), default=0.0)
    yield "update", where, max(step.actor.update_s, beside_text)
    if work.generates and not separate:
        yield "switch", where, _switch_seconds(step)


def _recomputes_log_probs(scenario: Scenario[Rl]) -> bool:
    """Whether the trainer computes log-probabilities of the old policy."""
    work = scenario.workload
    if not work.generates:
        return False
    usual = "rollout" if scenario.plan.rl.placement == "async" else "trainer"
    return (work.updates.old_log_probs or usual) == "trainer"


def _switch_seconds(step: _Step) -> float:
    """Sleeping and waking, and the trainer's states on their way to the host and back."""
    rl = step.scenario.plan.rl
    state = step.actor.step.memory.fullest.state
    moved_bytes = sum(float(state.get(name, 0.0)) for name in rl.offload if name != "gradients")
    engine = step.parameters.switch_s if rl.free_engine else 0.0
    return engine + 2 * host_copy_seconds(step.scenario.system, moved_bytes)


def _with_other(phases: list[tuple[str, str, float]], parameters: RlParameters) -> list[tuple[str, str, float]]:
    """The phases, and what passes between them."""
    return [*phases, ("other", "all", parameters.other_share * sum(seconds for _, _, seconds in phases))]


def _one_after_the_other(rows: list[tuple[str, str, float]]) -> tuple[RlPhase, ...]:
    phases, now = [], 0.0
    for name, pool, seconds in rows:
        if seconds > 0:
            phases.append(_phase(name, pool, now, seconds, seconds))
            now += seconds
    return tuple(phases)


def _phase(name: str, pool: str, begin: float, seconds: float, exposed: float) -> RlPhase:
    return RlPhase(name=name, pool=pool, begin_s=begin, seconds=seconds, exposed_s=exposed, meaning=TOLD[name])


def _total(phases: tuple[RlPhase, ...]) -> float:
    return sum(phase.exposed_s for phase in phases)


def _synchronous(step: _Step, engine: RolloutEngine, draws: int) -> RlPrediction:
    """All phases one after the other, for several draws of lengths."""
    answer = []
    for seed in range(draws):
        samples = draw_samples(step.work, step.generated_prompts, seed, step.growth)
        times = batch_rollout(engine, samples)
        answer.append((_synchronous_phases(step, times, len(samples)), times))
    answer.sort(key=lambda entry: _total(entry[0]))
    phases, times = answer[len(answer) // 2]
    return _answer(step, phases, tuple(_total(entry) for entry, _ in answer), "one after the other", times)


def _synchronous_phases(step: _Step, times: RolloutTimes, answers: int) -> tuple[RlPhase, ...]:
    separate = step.scenario.plan.rl.separate
    rows = [("generate", "rollout" if separate else "all", times.seconds)]
    rows += [("verify", "hosts", _verify_seconds(step.work.roles.verifier, answers, times))]
    rows += list(_training_phases(step))
    sync = step.sync.seconds if step.sync else 0.0
    rows += [("weight sync", "all", sync / step.scenario.plan.rl.sync_every)]
    return _one_after_the_other(_with_other(rows, step.parameters))


def _verify_seconds(verifier: Verifier | None, answers: int, times: RolloutTimes) -> float:
    """Judging that the rollout does not hide: the last answers, and what the hosts did not get done before."""
    if verifier is None:
        return 0.0
    shares = (np.arange(QUANTILES) + 0.5) / QUANTILES
    seconds = latency_quantiles(verifier.latency, shares)
    backlog = answers * float(seconds.mean()) / verifier.concurrency - times.seconds
    return max(float(np.quantile(seconds, 0.9)), backlog)


def _overlapped_step(step: _Step, engine: RolloutEngine, draws: int) -> RlPrediction:
    """Rollout beside training: the longer of both, and a sync that stops both."""
    rl, work = step.scenario.plan.rl, step.work
    training = [*_training_phases(step)]
    train_s = sum(seconds for _, _, seconds in training)
    sync_s = (step.sync.seconds if step.sync else 0.0) / rl.sync_every
    stream: StreamTimes | None = None
    answers = step.generated_prompts * work.data.samples
    if rl.placement == "async" and rl.partial_rollouts:
        places = math.ceil((1 + (rl.staleness or 0.0)) * answers)
        stream = stream_rollout(engine, work, places, growth=step.growth)
        oldest = float(stream.latencies.max()) / ((1 + (rl.staleness or 0.0)) * rl.sync_every)
        seconds = [max(answers / stream.samples_per_s + stream.read_again_s / rl.sync_every, oldest)]
        times = [stream.times]
    else:
        times = [_batch_of_steps(step, engine, seed) for seed in range(draws)]
        seconds = [entry.seconds / rl.sync_every for entry in times]
    order = sorted(range(len(seconds)), key=lambda place: seconds[place])
    all_phases = [_overlapped_phases(step, training, train_s, seconds[place], sync_s) for place in order]
    middle = order[len(order) // 2]
    bound: BoundBy = "training" if train_s >= seconds[middle] else "rollout"
    phases = all_phases[len(order) // 2]
    answer = _answer(step, phases, tuple(_total(entry) for entry in all_phases), bound, times[middle])
    lag = _staleness(step, stream, _total(phases), seconds[middle])
    return replace(
        answer, staleness=lag, idle=_idle_beside(step, answer.step_time_s, train_s, seconds[middle], times[middle])
    )


def _batch_of_steps(step: _Step, engine: RolloutEngine, seed: int) -> RolloutTimes:
    """The samples between two weight syncs as one batch that ends with its slowest replica."""
    prompts = step.generated_prompts * step.scenario.plan.rl.sync_every
    return batch_rollout(engine, draw_samples(step.work, prompts, seed, step.growth))


def _overlapped_phases(
    step: _Step, training: list[tuple[str, str, float]], train_s: float, rollout_s: float, sync_s: float
) -> tuple[RlPhase, ...]:
    wait = max(rollout_s - train_s, 0.0)
    generate = _phase("generate", "rollout", 0.0, rollout_s, wait)
    phases = [replace(generate, meaning="as many samples are written as a step takes")]
    now = wait
    for name, pool, seconds in training:
        phases.append(_phase(name, pool, now, seconds, seconds))
        now += seconds
    if sync_s > 0:
        phases.append(_phase("weight sync", "all", now, sync_s, sync_s))
        now += sync_s
    other_part = step.parameters.other_share * (train_s + sync_s)
    return (*phases, _phase("other", "all", now, other_part, other_part))


def _idle_beside(
    step: _Step, step_s: float, train_s: float, rollout_s: float, times: RolloutTimes
) -> tuple[PoolIdle, ...]:
    shares = chip_shares(step.scenario)
    busy = rollout_s * (times.mean_s / times.seconds if times.seconds else 1.0)
    return (
        PoolIdle(pool="train", chips=shares.train, busy_s=train_s, idle_share=max(1 - train_s / step_s, 0.0)),
        PoolIdle(pool="rollout", chips=shares.rollout, busy_s=busy, idle_share=max(1 - busy / step_s, 0.0)),
    )


def _staleness(step: _Step, stream: StreamTimes | None, step_s: float, rollout_s: float) -> Staleness:
    """Versions between the weights that began a sample and those that are trained on it."""
    rl = step.scenario.plan.rl
    if rl.placement == "one-step-off":
        return Staleness(mean=1.0, p90=1.0, bound=1.0, shares={"1": 1.0})
    bound = rl.staleness or 0.0
    if stream is None:
        lag = min(bound, 1.0)
        shares = {"0": 1 - lag, "1": lag} if 0 < lag < 1 else {f"{lag:g}": 1.0}
        return Staleness(mean=lag, p90=lag, bound=bound, shares=shares)
    version_s = step_s * rl.sync_every
    waits = max(step_s - rollout_s, 0.0) * min(bound, 1.0) + 0.5 * rollout_s
    ages = np.minimum((stream.latencies + waits) / version_s, 1.0 + bound)
    whole_part = np.floor(ages)
    part = ages - whole_part  # a sample that lives so long sees one sync more with this probability
    counts = np.bincount(whole_part.astype(int), 1 - part, int(whole_part.max()) + 2)
    counts += np.bincount(whole_part.astype(int) + 1, part, len(counts))
    upper_limit = math.ceil(bound)
    counts = np.append(counts[:upper_limit], counts[upper_limit:].sum()) if len(counts) > upper_limit + 1 else counts
    counts = counts / counts.sum()
    reached_share = np.cumsum(counts)
    return Staleness(
        mean=float(counts @ np.arange(len(counts))),
        p90=float(np.searchsorted(reached_share, 0.9 - 1e-12)),
        bound=bound,
        shares={str(version): float(share) for version, share in enumerate(counts) if share > 0.0005},
    )


# -- what is answered -------------------------------------------------------------------------------------------------


def _answer(
    step: _Step, phases: tuple[RlPhase, ...], totals: tuple[float, ...], bound: BoundBy, times: RolloutTimes | None
) -> RlPrediction:
    scenario, work = step.scenario, step.work
    step_s = _total(phases)
    chips, price = scenario.system.chips, scenario.system.chip.price
    cost_usd = price.value * chips * step_s / HOUR if price else None
    tokens = work.answers * step.lengths.mean
    in_order = np.sort(totals)
    spread_value = _spread_of_tokens(step) if len(in_order) == 1 else 0.0
    p90 = max(float(np.quantile(in_order, 0.9)), step_s * (1 + spread_value))
    return RlPrediction(
        scenario=scenario,
        step_time_s=step_s,
        step_time_p90_s=p90,
        phases=phases,
        bound_by=bound,
        idle=_idle(step, phases, times),
        memory=rl_memory(scenario, step.engine, step.actor, step.others),
        tokens=tokens,
        answer_tokens=work.answers * _answer_mean(work, step.growth),
        staleness=Staleness(mean=0.0, p90=0.0, bound=0.0, shares={"0": 1.0}),
        interval=_interval(step, step_s),
        rollout=times,
        weight_sync=step.sync,
        cost_usd=cost_usd,
        replay=replay_cost(work, step_s, tokens, cost_usd),
        drift=(),
        assumptions=tuple(_assumptions(step)),
    )


def _spread_of_tokens(step: _Step) -> float:
    """How far a step's tokens lie above the mean in one of ten, as a share."""
    variance = max(step.lengths.attended / step.lengths.mean - 1, 0.0)
    return 1.28 * math.sqrt(variance / max(step.work.answers, 1))


def _idle(step: _Step, phases: tuple[RlPhase, ...], times: RolloutTimes | None) -> tuple[PoolIdle, ...]:
    """Waiting of the pools where phases follow each other."""
    shares, total = chip_shares(step.scenario), _total(phases)
    rollout = times.mean_s if times else 0.0
    trained_s = sum(
        phase.seconds for phase in phases if phase.name not in ("generate", "verify", "weight sync", "other")
    )
    sync = sum(phase.seconds for phase in phases if phase.name == "weight sync")
    if not step.scenario.plan.rl.separate:
        busy = rollout + trained_s + sync
        return (PoolIdle(pool="all", chips=shares.train, busy_s=busy, idle_share=max(1 - busy / total, 0.0)),)
    return tuple(
        PoolIdle(pool=pool, chips=chips, busy_s=busy, idle_share=max(1 - busy / total, 0.0))
        for pool, chips, busy in (
            ("train", shares.train, trained_s + sync),
            ("rollout", shares.rollout, rollout + sync),
        )
    )


def _interval(step: _Step, step_s: float) -> Interval:
    parameters = step.parameters
    reach = math.exp(SIGMAS_90 * parameters.spread)
    basis = f"{parameters.runs} runs of {parameters.families} frameworks, each predicted without its framework"
    if parameters.own_runs:
        basis += f"; {parameters.own_runs} of your own set the pace"
    span = Interval(low=step_s / reach, high=step_s * reach, coverage=0.9, runs=parameters.runs, basis=basis)
    return widen_for_unread(span, step_s, step.scenario.unread)


def _assumptions(step: _Step) -> Iterator[str]:
    work, rl = step.work, step.scenario.plan.rl
    yield from step.scenario.assumptions
    yield from (f"{name}: {_length_words(entry)}" for name, entry in _length_fields(work))
    if work.generates:
        if work.roles.verifier is None and "reward_model" not in work.roles.models:
            yield "rewards: rules that take no time; roles.verifier gives them a latency"
        yield "answers of a prompt are independent of each other in length"
        if rl.placement == "async" and rl.partial_rollouts:
            yield "interrupted samples are read again after every weight sync"
        if not rl.separate and step.scenario.system.chip.host.bandwidth is None:
            yield "offload: the chip's link to its host is not published, copies count nothing"
    if step.sync is not None and step.sync.method == "file":
        yield "weight sync through files: 2 GB/s of storage a node, assumed"
    for role in step.others:
        if role.role == "critic":
            yield "critic: as large as its model, with a head of one value counted as the model's own"
    values = step.parameters
    yield (
        f"fitted on {values.runs} published runs: rollout x {values.rollout_factor:.2f}, updates x "
        f"{values.training_factor:.2f}, forward passes x {values.forward_factor:.2f}, colocated passes x "
        f"{values.colocated_factor:.2f}, {values.other_share:.0%} between phases"
    )


def _length_fields(work: Rl) -> Iterator[tuple[str, Lengths]]:
    yield "prompts", work.data.prompt_tokens
    if work.data.response_tokens is not None:
        yield "answers", work.data.response_tokens


def _length_words(lengths: Lengths) -> str:
    """A distribution of lengths in words."""
    if isinstance(lengths, TokensFile):
        return f"lengths of {lengths.file}"
    words = {"constant": "{tokens} tokens each", "uniform": "{low} to {high} tokens"}
    if lengths.kind in words:
        return words[lengths.kind].format(**{key: getattr(lengths, key, None) for key in ("tokens", "low", "high")})
    high = getattr(lengths, "high", None)
    end = f", cut at {high:,}" if high else ""
    return f"lognormal, mean {getattr(lengths, 'mean', 0):,} tokens, sigma {getattr(lengths, 'sigma', 0):g}{end}"
