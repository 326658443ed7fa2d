"""Turn the words of a command line into what a search of post-training is asked.

A model's name alone asks for a usual batch (`USUAL`); a scenario file says its own. Settings of [plan] pin: nothing
else is tried of what they name. The plan of a file is not pinned, it is compared with what is found.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Literal, Unpack

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.records import dataclass
from ridgeline.core.units import parse_quantity
from ridgeline.cost import Calibration
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.plan.scenario_file import apply_settings, assemble, scenario
from ridgeline.rl import RlParameters
from ridgeline.search.request import SearchOptions, SearchRequest, named_goal, named_systems, read_request

RlGoal = Literal["time", "chips"]
USUAL: JsonMapping = MappingProxyType(
    {
        "kind": "rl", "algorithm": "grpo", "prompts": 256, "samples": 16, "prompt_tokens": 512, "mini_batch": 64,
        "response_tokens": {"kind": "lognormal", "mean": 2000, "sigma": 0.8, "high": 8192},
    }
)  # fmt: skip
USUAL_NOTE = (
    "workload: 256 prompts x 16 samples, answers of 2,000 tokens up to 8,192, 4 optimizer steps; --set changes it"
)


class RlOptions(SearchOptions, total=False):
    """Words of `ridgeline plan --rl` beside those of any search.

    step_time   longest step, such as "120 s": asks for the fewest chips
    top         plans to list
    """

    step_time: str
    top: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RlRequest(SearchRequest):
    """What is asked.

    base        the scenario whose workload and system are kept
    given       the plan of a file, as a scenario; None where there is none
    pins        keys of [plan] that are not searched
    limit_s     longest step; with the goal `chips`
    parameters  of steps, at the pace of measured ones; None: those that ship
    """

    base: Scenario[Rl]
    given: Scenario[Rl] | None
    pins: Mapping[str, object]
    goal: RlGoal
    limit_s: float | None = None
    top: int = 5
    notes: tuple[str, ...] = ()
    calibration: Calibration | None = None
    parameters: RlParameters | None = None

    @classmethod
    def from_options(
        cls, model: str, *, calibration: Calibration | None = None, **options: Unpack[RlOptions]
    ) -> RlRequest:
        """The request that a command line means, or an `InputError` with everything wrong in it."""
        settings = tuple(options.get("settings", ()))
        table = dict(read_request(model, settings))
        problems: list[Problem] = []
        systems = named_systems(options, table, problems)
        if len(systems) > 1:
            problems.append(Problem(path="--on", given=", ".join(systems), expected="one system with --rl"))
        if problems:
            raise InputError(problems)
        notes = () if "workload" in table else (USUAL_NOTE,)
        table |= {"system": systems[0]} if systems else {}
        table["workload"] = dict(table.get("workload", USUAL))
        own_plan = dict(table.get("plan", {}))
        if options.get("engine"):
            own_plan["engine"] = options["engine"]
        limit = _limit(options.get("step_time", ""))
        base = _base(table, own_plan, settings)
        settled_table = copy.deepcopy({**table, "plan": {}})
        apply_settings(settled_table, [entry for entry in settings if not entry.strip().startswith("plan.")])
        given, wrong = assemble({**table, "plan": own_plan}, settings) if own_plan.keys() - {"engine"} else (None, ())
        return cls(
            table={**settled_table, "plan": own_plan},
            base=base,
            given=post_training(given) if given is not None and not wrong else None,
            pins=MappingProxyType(pinned_decisions(settings)),
            goal=named_goal(options, "chips" if limit else "time", ("time", "chips")),
            limit_s=limit,
            top=options.get("top", 5),
            notes=notes,
            calibration=calibration,
        )


def _limit(text: str) -> float | None:
    """A limit in seconds; None where none is given."""
    if not text:
        return None
    try:
        seconds = parse_quantity(text, "s")
    except InputError as wrong:
        raise InputError([replace(problem, path="--step-time") for problem in wrong.problems]) from None
    if seconds <= 0:
        raise InputError(Problem(path="--step-time", given=text, expected="a time above 0"))
    return seconds


def _base(table: JsonObject, plan: JsonObject, settings: Sequence[str]) -> Scenario[Rl]:
    """The scenario without a plan: its engine, formats and knobs stay, every split is open."""
    kept_part: JsonObject = {key: plan[key] for key in ("engine", "precision", "serving", "speculation") if key in plan}
    rl = plan.get("rl")
    if isinstance(rl, Mapping):
        kept_part["rl"] = {key: rl[key] for key in ("weight_sync", "pack", "offload", "free_engine") if key in rl}
    open_settings = [entry for entry in settings if not entry.partition("=")[0].strip().startswith("plan.")]
    formats = [entry for entry in settings if entry.partition("=")[0].strip().startswith(KEPT)]
    return replace(post_training(scenario({**table, "plan": kept_part}, [*open_settings, *formats])), assumptions=())


KEPT = (
    *("plan.engine", "plan.precision", "plan.serving", "plan.speculation", "plan.rl.weight_sync", "plan.rl.pack"),
    *("plan.rl.offload", "plan.rl.free_engine", "plan.rl.rollout.engine", "plan.rl.rollout.precision"),
    *("plan.rl.rollout.eager",),
)
SEARCHED = {
    "plan.tp": "tp", "plan.pp": "pp", "plan.cp": "cp", "plan.ep": "ep", "plan.shard": "shard",
    "plan.recompute": "recompute", "plan.rl.placement": "placement", "plan.rl.train_chips": "train_chips",
    "plan.rl.staleness": "staleness", "plan.rl.partial_rollouts": "partial_rollouts",
    "plan.rl.rollout.tp": "rollout_tp", "plan.rl.rollout.pp": "rollout_pp", "plan.rl.rollout.ep": "rollout_ep",
}  # fmt: skip


def pinned_decisions(settings: Sequence[str]) -> JsonObject:
    """Decisions that settings take from the search, by the search's name of them.

    >>> pinned_decisions(["plan.tp=2", "plan.rl.placement=async", "workload.prompts=8"])
    {'tp': 2, 'placement': 'async'}
    """
    table: JsonObject = {}
    if problems := apply_settings(table, [entry for entry in settings if entry.strip().startswith("plan.")]):
        raise InputError(problems)
    answer: JsonObject = {}
    unknown: list[Problem] = []
    for setting in settings:
        key = setting.partition("=")[0].strip()
        if not key.startswith("plan.") or key.startswith(KEPT):
            continue
        if key not in SEARCHED:
            expectation = f"one of {', '.join(SEARCHED)}, or what a scenario keeps: {', '.join(KEPT)}"
            unknown.append(Problem(path=key, given=setting.partition("=")[2], expected=expectation))
            continue
        value: object = copy.deepcopy(table)
        for part in key.split("."):
            assert isinstance(value, Mapping)
            value = value[part]
        answer[SEARCHED[key]] = value
    if unknown:
        raise InputError(unknown)
    return answer


def is_post_training_file(model: str) -> bool:
    """Whether a scenario file asks for post-training."""
    if not model.lower().endswith((".toml", ".json", ".yaml", ".yml")) or not Path(model).is_file():
        return False
    work = read_request(model).get("workload")
    return isinstance(work, Mapping) and work.get("kind") == "rl"
