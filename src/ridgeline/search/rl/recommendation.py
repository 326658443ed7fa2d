"""Turn what a search of post-training found into an answer: the plan, whether to go asynchronous, what to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import Problem
from ridgeline.core.records import dataclass
from ridgeline.hardware.load import resize_name, subsystem
from ridgeline.plan.formats import precision_table
from ridgeline.plan.plan import Plan, plan_words, scenario_text
from ridgeline.plan.rl_plan import WeightSync
from ridgeline.plan.rl_roles import chip_shares
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario
from ridgeline.rl import RlPrediction, predict_rl
from ridgeline.search.rl.find import RlCandidate, RlSearch, best_of
from ridgeline.search.rl.request import RlRequest
from ridgeline.search.rl.space import sizes
from ridgeline.sim import Impossible

DRAWS = 5  # of the recommended plan, for its spread
LEAST_GAIN = 0.01  # of a step, below which a change is not worth naming
WORTH = 0.95  # an asynchronous step over a synchronous one from which it is worth its staleness


@dataclass(frozen=True, slots=True, kw_only=True)
class RlGain:
    """A change of the recommended plan, and the seconds that a step loses by it."""

    change: str
    step_time_s: float
    saved_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RlPlanRow:
    """One plan of the list."""

    candidate: RlCandidate

    JSON = """
        placement train_chips rollout_chips rollout_tp staleness step_time_s plan memory_share bound_by idle
    """

    @property
    def placement(self) -> str:
        return self.candidate.placement

    @property
    def train_chips(self) -> int:
        """Chips that train."""
        return chip_shares(self.candidate.scenario).train

    @property
    def rollout_chips(self) -> int:
        """Chips that generate; the same ones when colocated."""
        return chip_shares(self.candidate.scenario).rollout

    @property
    def rollout_tp(self) -> int:
        """Tensor ranks of a rollout replica."""
        return self.candidate.scenario.plan.rl.rollout.tp

    @property
    def staleness(self) -> float:
        """Versions that samples may lag."""
        return self.candidate.prediction.staleness.bound

    @property
    def step_time_s(self) -> float:
        return self.candidate.seconds

    @property
    def plan(self) -> str:
        """The trainer's plan in one line."""
        return plan_words(self.candidate.scenario.plan)

    @property
    def memory_share(self) -> float:
        """Of a chip at the fullest moment."""
        moment = self.candidate.prediction.memory.tightest
        return moment.total_bytes / moment.capacity_bytes

    @property
    def bound_by(self) -> str:
        """What the step waits for."""
        return self.candidate.prediction.bound_by

    @property
    def idle(self) -> dict[str, float]:
        """Share of the step that each pool waits."""
        return {pool.pool: pool.idle_share for pool in self.candidate.prediction.idle}


@dataclass(frozen=True, slots=True, kw_only=True)
class RlAnswer:
    """What is recommended.

    best           the plan; None where none fits or keeps the limit
    by_placement   the best of each placement
    rows           the fastest plans
    ratio          asynchronous over synchronous step time, best against best; None where only one was searched
    advice         whether to go asynchronous, in words
    gains          what to change next, most first
    given_s        the step of the plan that the file has; None without one
    seconds, cpu_seconds   that the search took, where whoever asked looked at a clock
    """

    request: RlRequest
    best: RlCandidate | None
    by_placement: dict[str, RlCandidate]
    rows: tuple[RlPlanRow, ...]
    ratio: float | None
    advice: str
    gains: tuple[RlGain, ...]
    given_s: float | None
    tried: dict[str, int]
    problems: tuple[Problem, ...] = ()
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    JSON = """
        kind='rl-plan' possible recommended=prediction chips step_time_s go_async ratio advice placements plans=rows
        gains given_step_time_s=given_s tried seconds cpu_seconds scenario=scenario_text notes problems
    """

    @property
    def possible(self) -> bool:
        """Whether a plan fits, and keeps the limit where there is one."""
        return self.best is not None

    @property
    def prediction(self) -> RlPrediction | None:
        """The recommended step."""
        return self.best.prediction if self.best else None

    @property
    def chips(self) -> int | None:
        """Of the recommended plan."""
        return self.best.scenario.system.chips if self.best else None

    @property
    def step_time_s(self) -> float | None:
        """Of the recommended plan."""
        return self.best.seconds if self.best else None

    @property
    def go_async(self) -> bool | None:
        """Whether overlapping rollout and training is worth its staleness; None where only one was searched."""
        return None if self.ratio is None else self.ratio < WORTH

    @property
    def placements(self) -> dict[str, float]:
        """Step of the best plan of each placement."""
        return {name: entry.seconds for name, entry in self.by_placement.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """What was assumed of the question."""
        return self.request.notes

    @property
    def scenario_text(self) -> str | None:
        """The scenario file of the recommended plan; None without one."""
        if self.best is None:
            return None
        table: JsonObject = dict(self.request.table)
        whole_part = self.request.base.system.chips
        if self.best.scenario.system.chips != whole_part and isinstance(table.get("system"), str):
            table["system"] = resize_name(str(table["system"]), self.best.scenario.system.chips)
        note = f"Found by `ridgeline plan --rl`: {self.best.seconds:.1f} s a step, {self.best.placement}."
        return scenario_text(table, self.best.scenario.plan, note)


def recommend_rl(request: RlRequest) -> RlAnswer:
    """Search the whole system, or the fewest chips that keep a limit, and explain the choice."""
    search, answer = _fewest(request) or _run_search(request, request.base)
    best = best_of(answer)
    problems = _problems(request, search, best)
    by_placement = {
        name: entry
        for name in ("colocated", "split", "one-step-off", "async")
        if (entry := best_of(item for item in answer if item.placement == name))
    }
    ratio, advice = _advice(by_placement)
    best = _with_spread(best, request) if best is not None and not problems else None
    given_text = _predicted_step(request.given, request) if request.given else None
    gains = tuple(sorted(_gains(best, request), key=lambda gain: -gain.saved_s)) if best else ()
    return RlAnswer(
        request=request,
        best=best,
        by_placement=by_placement,
        rows=tuple(RlPlanRow(candidate=entry) for entry in answer[: request.top]),
        ratio=ratio,
        advice=advice,
        gains=gains,
        given_s=given_text.step_time_s if isinstance(given_text, RlPrediction) else None,
        tried={
            "trainers": search.trainer_trials, "replicas": search.rollout_trials, "steps": search.step_trials,
            "out of memory": search.out_of_memory,
        },
        problems=problems,
    )  # fmt: skip


def _fewest(request: RlRequest) -> tuple[RlSearch, list[RlCandidate]] | None:
    """What the smallest part of the system found that keeps the limit; None without a limit or such a part."""
    whole_part = request.base.system
    for chips in sizes(whole_part.chips, whole_part.node) if request.limit_s is not None else ():
        if chips == whole_part.chips:
            return None
        search, answer = _run_search(request, _over(replace(request.base, system=subsystem(whole_part, chips))))
        if answer and answer[0].seconds <= (request.limit_s or 0.0):
            return search, answer
    return None


def _run_search(request: RlRequest, base: Scenario[Rl]) -> tuple[RlSearch, list[RlCandidate]]:
    search = RlSearch(base=base, pins=request.pins, calibration=request.calibration, parameters=request.parameters)
    return search, search.run()


def _over(base: Scenario[Rl]) -> Scenario[Rl]:
    """The base with its open mesh over all its chips."""
    mesh = replace(base.plan.mesh, dp=base.system.chips, tp=1, pp=1, cp=1, ep=1)
    return replace(base, plan=replace(base.plan, mesh=mesh))


def _problems(request: RlRequest, search: RlSearch, best: RlCandidate | None) -> tuple[Problem, ...]:
    system = request.base.system
    if best is None:
        given_text = f"{search.step_trials} steps tried, {search.out_of_memory} of them out of memory"
        expectation = f"a plan that fits on {system.name}"
        todo = "use more chips, shorter answers, narrower formats, or offload"
        return (Problem(path="plan", given=given_text, expected=expectation, todo=todo),)
    if request.limit_s is not None and best.seconds > request.limit_s:
        given_text = f"{best.seconds:.1f} s with all {system.chips} chips"
        expectation = f"at most {request.limit_s:g} s a step"
        return (
            Problem(
                path="--step-time", given=given_text, expected=expectation, todo="use more chips, or a longer step"
            ),
        )
    return ()


def _advice(by_placement: dict[str, RlCandidate]) -> tuple[float | None, str]:
    """Whether to overlap rollout and training, by the best of both."""
    synchronous = best_of(entry for name, entry in by_placement.items() if name in ("colocated", "split"))
    overlapping = best_of(entry for name, entry in by_placement.items() if name in ("one-step-off", "async"))
    if synchronous is None or overlapping is None:
        return None, ""
    ratio = overlapping.seconds / synchronous.seconds
    lag = overlapping.prediction.staleness.bound
    if ratio < WORTH:
        return ratio, (
            f"go {overlapping.placement}: a step takes {1 - ratio:.0%} less than the best {synchronous.placement} one, "
            f"with samples up to {lag:g} versions behind"
        )
    if ratio < 1:
        return ratio, f"do not go asynchronous: {1 - ratio:.0%} less is not worth samples {lag:g} versions behind"
    return (
        ratio,
        f"do not go asynchronous: the best such plan takes {ratio - 1:.0%} longer than {synchronous.placement}",
    )


def _predicted_step(built: Scenario[Rl], request: RlRequest, draws: int = 1) -> RlPrediction | Impossible:
    """A step as the request has it priced."""
    return predict_rl(built, request.calibration, parameters=request.parameters, draws=draws)


def _with_spread(best: RlCandidate, request: RlRequest) -> RlCandidate:
    """The recommended plan predicted with several draws of lengths."""
    answer = _predicted_step(best.scenario, request, DRAWS)
    return replace(best, prediction=answer) if isinstance(answer, RlPrediction) else best


# -- what to change next ----------------------------------------------------------------------------------------------


Change = Callable[[Scenario[Rl]], Scenario[Rl] | None]


def _gains(best: RlCandidate, request: RlRequest) -> Iterator[RlGain]:
    """Changes that shorten the recommended step."""
    for words, change in CHANGES:
        changed_plan = change(best.scenario)
        if changed_plan is None:
            continue
        answer = _predicted_step(changed_plan, request)
        if isinstance(answer, RlPrediction) and answer.fits:
            saved = best.seconds - answer.step_time_s
            if saved > LEAST_GAIN * best.seconds:
                yield RlGain(change=words, step_time_s=answer.step_time_s, saved_s=saved)


def _with_rl(built: Scenario[Rl], **changes: object) -> Scenario[Rl]:
    return replace(built, plan=replace(built.plan, rl=replace(built.plan.rl, **changes)))  # type: ignore[arg-type]


def _direct_sync(built: Scenario[Rl]) -> Scenario[Rl] | None:
    return (
        None
        if built.plan.rl.weight_sync.method == "direct"
        else _with_rl(built, weight_sync=WeightSync(method="direct"))
    )


def _seldom_sync(built: Scenario[Rl]) -> Scenario[Rl] | None:
    return _with_rl(built, sync_every=2 * built.plan.rl.sync_every) if built.plan.rl.placement == "async" else None


def _more_staleness(built: Scenario[Rl]) -> Scenario[Rl] | None:
    lag = built.plan.rl.staleness
    return _with_rl(built, staleness=2 * lag) if lag else None


def _fp8_rollout(built: Scenario[Rl]) -> Scenario[Rl] | None:
    if "fp8" not in built.system.chip.peak or not built.workload.generates:
        return None
    from ridgeline.core.table import decode

    formats = decode(Plan, {"precision": precision_table({"name": "fp8", "weights": "fp8", "kv": "fp8"})}).precision
    return _with_rl(built, rollout=replace(built.plan.rl.rollout, precision=formats))


def _rollout_log_probs(built: Scenario[Rl]) -> Scenario[Rl] | None:
    work = built.workload
    if not work.generates or work.updates.old_log_probs == "rollout":
        return None
    return replace(built, workload=replace(work, updates=replace(work.updates, old_log_probs="rollout")))


def _shorter_tail(built: Scenario[Rl]) -> Scenario[Rl] | None:
    data = built.workload.data
    high = getattr(data.response_tokens, "high", None)
    mean = getattr(data.response_tokens, "mean", 0)
    if data.response_tokens is None or not high or high // 2 <= 2 * mean:
        return None
    lengths = replace(data.response_tokens, high=high // 2)
    return replace(built, workload=replace(built.workload, data=replace(data, response_tokens=lengths)))


def _fewer_updates(built: Scenario[Rl]) -> Scenario[Rl] | None:
    work = built.workload
    mini = work.updates.mini_batch
    if mini is None or work.data.prompts % (2 * mini):
        return None
    return replace(built, workload=replace(work, updates=replace(work.updates, mini_batch=2 * mini)))


CHANGES: tuple[tuple[str, Change], ...] = (
    ("weights written into the engines directly (plan.rl.weight_sync = direct)", _direct_sync),
    ("a weight sync every second step (plan.rl.sync_every)", _seldom_sync),
    ("twice the staleness (plan.rl.staleness)", _more_staleness),
    ("rollout in fp8 (plan.rl.rollout.precision)", _fp8_rollout),
    ("old log-probabilities from the rollout (workload.old_log_probs)", _rollout_log_probs),
    ("answers cut at half the length (workload.response_tokens.high)", _shorter_tail),
    ("mini-batches twice as large (workload.mini_batch)", _fewer_updates),
)
