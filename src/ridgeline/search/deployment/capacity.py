"""Turn one replica and requests into its capacity: the highest rate at which it keeps the objective.

What it could do at best, without any queue, bounds it; simulated trials on a part of the load bisect the rate.

    TTFT >= prefill of the prompt alone, stage by stage          TPOT >= a decode step of one request
    requests/s <= dp / (isl x c + (osl - 1) / g x min over b of step(b) / b)

c = seconds that one more prompt token adds to a step, g = tokens a step yields with speculation, b = requests that the
cache holds, the batch limit allows and whose step keeps the TPOT asked for. No schedule of the same steps does better,
so what misses the objective here is not simulated.

A replica of n behind a router sees every n-th request. Of a trace a part is therefore thinned first and then stretched
in time to the rate that is asked for, from where it is busiest; of a generated load the first requests do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property
from math import inf
from types import MappingProxyType

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import HOUR, MILLION
from ridgeline.ir.forward_steps import ForwardSteps, forward_steps
from ridgeline.plan.scenario import Scenario, serving
from ridgeline.plan.serving_plan import StaticKnobs
from ridgeline.plan.workload import Objective, Serve, TraceFile
from ridgeline.search.deployment.space import Shape
from ridgeline.serving import (
    FRONT_END_S,
    Instance,
    LinearStepCost,
    Request,
    Role,
    Served,
    ServingPrediction,
    SloMissed,
    StepPricing,
    instances_of,
    load_of,
    price_of,
    served_by,
)
from ridgeline.sim import ServingMemory

FEWEST, MOST = 400, 1600  # requests of a shortened load
RESIDENTS = 3.0  # times the requests in flight that it holds at least, so that most of them meet a busy engine
BATCHES = (1, 2, 4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048)
FEW, UNPRICED = 512.0, LinearStepCost(step_s=1.0)
STABLE = 0.95  # of the best case: beyond that a queue grows without end, however short the load shows it
QUIET = 0.12  # of the best case: a rate at which users are served fast, a point of the frontier
LOWEST = 0.06  # of the best case: a replica that cannot do so much is given up
HALVINGS = 4
FINER = 5  # where the rate itself is what is asked for
ROUGH = 2  # halvings where a replica is a point of the frontier and nothing else
BELOW = (0.8, 0.5)  # of a rate that another replica holds


@dataclass(frozen=True, kw_only=True)
class Load:
    """Requests in the order they are sent, and their mean rate over the whole time.

    traced   whether a file says when they come: bursts are then its own
    """

    requests: tuple[Request, ...]
    rate: float
    traced: bool

    @cached_property
    def prompts(self) -> Array:
        return np.array([request.prompt_tokens for request in self.requests], dtype=float)

    @cached_property
    def outputs(self) -> Array:
        return np.array([request.output_tokens for request in self.requests], dtype=float)

    @cached_property
    def hit_share(self) -> float:
        """Prompt tokens that an unlimited cache would hold, of all."""
        seen: set[tuple[int, int, int]] = set()
        hits = 0
        for request in self.requests:
            is_prefix = True
            for piece in request.prompt:
                key = (piece.seed, piece.start, piece.tokens)
                is_prefix = is_prefix and key in seen
                hits += piece.tokens * is_prefix
                seen.add(key)
            seen.add((request.output_seed, request.prompt_tokens, request.output_tokens))
        return hits / float(self.prompts.sum())

    def part(self, rate: float, most: int) -> tuple[Request, ...]:
        """At most so many requests as a replica sees them that gets this mean rate of the whole load."""
        roots, times = self._roots
        thinned, begin = 1, 0
        if self.traced:
            thinned = max(min(max(round(self.rate / rate), 1), len(roots) // most), 1)
            times = times[::thinned]
            if len(times) > most:  # where the shortest time begins in which so many come
                begin = int(np.argmin(times[most - 1 :] - times[: len(times) - most + 1]))
        selection = roots[begin * thinned : (begin + most) * thinned : thinned]
        stretch = float(self.rate / thinned / rate)  # a clock of numpy scalars is a slow one
        start = selection[0].arrival_s
        moved = tuple(item.sent_at((item.arrival_s - start) * stretch) for item in selection)
        return (*moved, *self._followers(selection)) if len(roots) < len(self.requests) else moved

    def at(self, rate: float) -> tuple[Request, ...]:
        """All requests, stretched in time to a mean rate."""
        stretch = float(self.rate / rate)
        if stretch == 1.0:
            return self.requests
        return tuple(item.sent_at(item.arrival_s * stretch) if item.after is None else item for item in self.requests)

    @cached_property
    def _roots(self) -> tuple[tuple[Request, ...], Array]:
        """The requests that follow no answer, and when they are sent."""
        roots = tuple(request for request in self.requests if request.after is None)
        return roots, np.array([root.arrival_s for root in roots])

    def _followers(self, roots: Sequence[Request]) -> Iterator[Request]:
        """The requests of sessions that these begin."""
        names = {item.id for item in roots}
        for request in self.requests:
            if request.after is not None and request.after in names:
                names.add(request.id)
                yield request


def searched_load(work: Serve) -> Load:
    """The requests of a workload; a closed loop has no rate to search and is refused."""
    requests = load_of(work)
    last = max((request.arrival_s for request in requests if request.after is None), default=0.0)
    if len(requests) < 2 or last <= 0:
        got = f"{len(requests)} request(s) within {last:g} s"
        expectation = "at least two requests that come at different times, whether or not others are answered"
        raise InputError(Problem(path="workload.arrivals", given=got, expected=expectation, todo="add --rate"))
    return Load(requests=requests, rate=len(requests) / last, traced=isinstance(work.arrivals, TraceFile))


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A simulated load.

    rate           requests per second that were sent
    taken          what each limit of the objective took at its percentile, over the limit
    user_speed     tokens per second of a typical request after its first: 1 / median TPOT
    chips          of the deployment
    output_tokens_per_s   at the rate that was sent, in the long run
    at_once        most requests that were there at one time; None of a trial that was given up
    """

    rate: float
    taken: Mapping[str, float]
    user_speed: float
    chips: int
    output_tokens_per_s: float
    at_once: int | None = None

    @property
    def met(self) -> bool:
        return all(share <= 1.0 for share in self.taken.values())

    @property
    def worst(self) -> str:
        """The limit that is nearest to being missed, or missed most; nothing without limits."""
        return max(self.taken, key=lambda name: self.taken[name], default="")

    def cost_per_million_tokens(self, price: float | None) -> float | None:
        """Price of a million output tokens, chips paid by the hour."""
        if price is None or not self.output_tokens_per_s:
            return None
        return self.chips * price / HOUR / self.output_tokens_per_s * MILLION


@dataclass(slots=True)
class TrialBench:
    """Where trials run: the load, the objective, and instances that are priced once.

    trials   how many were simulated, and their requests
    """

    base: Scenario
    load: Load
    objective: Objective
    priced: StepPricing
    trials: int = 0
    requests: int = 0
    _instances: dict[Shape, Instance] = field(default_factory=dict)

    def instance(self, shape: Shape) -> Instance:
        """One replica of a shape, priced."""
        if shape not in self._instances:
            (self._instances[shape],) = instances_of(shape.pooled(self.base, (shape.pool("both", 1),)), self.priced)
        return self._instances[shape]

    def trial(self, shape: Shape, rate: float, most: int, role: Role = "both") -> Trial | None:
        """One replica alone at a mean rate; None where it cannot hold a request.

        A replica that prefills answers with one token; one that decodes finds every prompt in its cache. Overload makes
        first tokens late first: the trial is then given up, whatever the rest of it would show. Where other limits are
        missed alone, it is a point of the frontier.
        """
        part = self.load.part(rate, most)
        limits = self.objective
        if role == "prefill":
            part = tuple(replace(item, output_tokens=1, max_new_tokens=1) for item in part)
            limits = replace(limits, tpot=None, itl=None, e2e=None)
        elif role == "decode":
            part = tuple(replace(item, remote_tokens=item.prompt_tokens - 1) for item in part)
            limits = replace(limits, ttft=None, e2e=None)
        scenario = shape.pooled(self.base, (shape.pool("both", 1),))
        scenario = replace(scenario, workload=replace(serving(scenario).workload, objective=limits))
        output_tokens_per_s = rate * float(self.load.outputs.mean())
        try:
            served = self.run(scenario, (self.instance(shape),), part, give_up=replace(limits, tpot=None, e2e=None))
        except SloMissed as missed:
            shares = MappingProxyType({missed.limit: missed.over})
            return Trial(
                rate=rate, taken=shares, user_speed=0.0, chips=shape.chips, output_tokens_per_s=output_tokens_per_s
            )
        if served is None:
            return None
        median = served.metrics.tpot.percentiles[50.0]
        return Trial(
            rate=rate,
            taken=MappingProxyType({name: item.found / item.limit for name, item in served.kept.items()}),
            user_speed=1.0 / median if median else 0.0,
            chips=served.run.chips,
            output_tokens_per_s=output_tokens_per_s,
            at_once=_at_once(served.run.served),
        )

    def run(
        self, scenario: Scenario, instances: tuple[Instance, ...], requests: tuple[Request, ...],
        give_up: Objective | None = None,
    ) -> ServingPrediction | None:  # fmt: skip
        """A deployment under requests; None where a request is too long for it. `SloMissed` where it is given up."""
        longest = max(request.prompt_tokens + request.output_tokens for request in requests)
        if any(longest - 1 > instance.longest for instance in instances):
            return None
        self.trials += 1
        self.requests += len(requests)
        try:
            return served_by(scenario, instances, requests, give_up=give_up)
        except InputError:
            return None

    def length(self, rate: float, tpot_s: float) -> int:
        """Requests of a shortened load at a rate: enough to fill an engine several times."""
        resident = rate * float(self.load.outputs.mean()) * tpot_s
        return int(min(max(RESIDENTS * resident, FEWEST), MOST))


def _at_once(served: Served) -> int:
    """Most requests between sending and their last token at one time."""
    finished_counts = np.searchsorted(np.sort(served.finished_s), np.sort(served.sent_s), side="left")
    return int((np.arange(1, len(finished_counts) + 1) - finished_counts).max(initial=0))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaBound:
    """The best case of one replica.

    ttft_s, tpot_s   of requests at the objective's percentile that never meet others; a first token found in a cache
                     may be faster, so of prompts that share prefixes TTFT is what one new token takes
    rate             requests per second that it could serve, 0 where nothing fits
    prefill_rate     of prompts alone, decode_rate of answers alone
    """

    shape: Shape
    memory: ServingMemory
    longest: int
    ttft_s: float = inf
    tpot_s: float = inf
    rate: float = 0.0
    prefill_rate: float = 0.0
    decode_rate: float = 0.0

    @property
    def fits(self) -> bool:
        """Whether weights and some cache fit on its chips."""
        return self.memory.fits


def bound_of(bench: TrialBench, shape: Shape) -> ReplicaBound:
    """The best case of a shape under the load of a bench."""
    load, objective = bench.load, bench.objective
    unpriced = replace(bench.priced, cost=UNPRICED)
    (instance,) = instances_of(shape.pooled(bench.base, (shape.pool("both", 1),)), unpriced)
    worst = ReplicaBound(shape=shape, memory=instance.memory, longest=instance.longest)
    if not instance.memory.fits:
        return worst  # nothing is priced
    settings = instance.settings
    tokens, seqs = (0, settings.batch_size) if isinstance(settings, StaticKnobs) else settings.step_limits
    share = 1.0 - load.hit_share * bool(shape.choice("prefix"))
    isl, osl = float(load.prompts.mean()), float(load.outputs.mean())
    long_prompt = float(np.percentile(load.prompts, objective.percentile))
    batches = np.array([float(many) for many in BATCHES if many <= max(seqs, 1)])
    price = price_of(instance.scenario, bench.priced, tokens // shape.mesh.pp)
    seconds = price(_steps(batches, isl + osl / 2, (min(long_prompt, tokens), float(tokens))))
    tokens_per_step = shape.speculation.tokens_per_step if shape.speculation else 1.0
    step, few, prompt, budget = seconds[: len(batches)], *seconds[len(batches) :]
    seconds_per_token = max((budget - few) / max(tokens - FEW, 1.0), budget / tokens / 4)
    prefill = isl * share * seconds_per_token
    tpot = min(objective.tpot or np.inf, objective.itl or np.inf)
    room = instance.memory.requests(isl + osl / 2)
    able = (batches <= max(room, 1.0)) & (step / tokens_per_step <= tpot)
    decode = float((step[able] / batches[able]).min()) * max(osl - 1, 0.0) / tokens_per_step if able.any() else np.inf
    ranks = shape.mesh.dp if np.isfinite(decode) else 0
    ttft = prompt * max(long_prompt / tokens, 1.0) if share == 1.0 else few / FEW
    return replace(
        worst,
        ttft_s=float(ttft) + FRONT_END_S,
        tpot_s=float(step[0]) / tokens_per_step,
        rate=float(ranks / (prefill + decode)),
        prefill_rate=float(ranks / max(prefill, 1e-12)),
        decode_rate=float(ranks / max(decode, 1e-12)),
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What one replica holds.

    rate     requests per second; 0 where it keeps the objective at no rate that was tried
    kept     the trial at that rate; None where there is none
    missed   the lowest rate that was tried and misses the objective; None where all were kept
    tried    every trial, lowest rate first
    """

    shape: Shape
    role: Role
    rate: float
    kept: Trial | None
    missed: Trial | None
    tried: tuple[Trial, ...]

    @property
    def breaks(self) -> str:
        """The limit that is missed first when the rate rises."""
        last = self.missed or self.kept
        return last.worst if last is not None else ""

    @property
    def rate_per_chip(self) -> float:
        return self.rate / self.shape.chips


def capacity(
    bench: TrialBench, bound: ReplicaBound, role: Role = "both", *, near: Capacity | None = None,
    halvings: int = HALVINGS,
) -> Capacity:  # fmt: skip
    """The highest rate of a replica under the objective; told another's, how it compares with that.

    The best case is tried first: where a replica holds nearly that, nothing needs to be halved; then a quiet rate, for
    one that misses even there is given up. Another's comparison is at its own rates: more is held where it missed, as
    much where it kept. One that keeps nothing is no comparison.
    """
    near = near if near is not None and near.rate else None
    ceiling = STABLE * {"both": bound.rate, "prefill": bound.prefill_rate, "decode": bound.decode_rate}[role]
    tpot = max(min(bench.objective.tpot or 0.1, 0.1), bound.tpot_s) if role != "prefill" else 0.0
    maximum = bench.length(ceiling, tpot)
    trials: list[Trial] = []

    def holds(rate: float) -> bool:
        trial = bench.trial(bound.shape, rate, maximum, role)
        trials.extend([trial] if trial is not None else [])
        return trial is not None and trial.met

    low, high = 0.0, ceiling
    if near:
        missed_at = near.missed.rate if near.missed else near.rate * 1.08
        for rate in (min(missed_at, ceiling), *(near.rate * share for share in (1.0, *BELOW))):
            if rate <= ceiling and holds(rate):
                low = rate
                break
            high = rate
    elif holds(ceiling):
        low = ceiling
        if role == "both":
            holds(QUIET * ceiling)
    else:
        for rate in (QUIET * ceiling, LOWEST * ceiling):
            if holds(rate):
                low = rate
                break
            high = rate
    for _ in range(0 if not low or (near and low <= near.rate) else halvings):
        rate = (low + high) / 2
        if high - low < 0.03 * ceiling:
            break
        low, high = (rate, high) if holds(rate) else (low, rate)
    met = [trial for trial in trials if trial.met and trial.rate <= low]
    missed = [trial for trial in trials if not trial.met and trial.rate > low]
    return Capacity(
        shape=bound.shape,
        role=role,
        rate=low,
        kept=max(met, key=lambda trial: trial.rate, default=None),
        missed=min(missed, key=lambda trial: trial.rate, default=None),
        tried=tuple(sorted(trials, key=lambda trial: trial.rate)),
    )
