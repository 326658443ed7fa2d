"""Turn a row of a post-training table into a scenario: what its columns say, and what its framework does by default.

Columns of `rl.csv`: chips in all (`n`) and by pool, prompts x samples, lengths, parallelism as the framework writes it,
placement, precision. What they leave blank is a habit of the framework, read from the configurations that it publishes
for these runs, and noted as an assumption. Nobody prints lengths of answers for verl and MindSpeed-RL: where a model
has a fitted length it is taken, otherwise one that grows with the longest answer.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from types import MappingProxyType

from ridgeline.calibrate.truth.rows import TRUTH, Row, Skipped
from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError
from ridgeline.models.load import MODELS
from ridgeline.plan.rl_workload import Rl
from ridgeline.plan.scenario import Scenario, post_training
from ridgeline.plan.scenario_file import scenario as scenario_of
from ridgeline.rl import RlParameters, shipped_parameters

METRICS: Mapping[str, str] = MappingProxyType(
    {"step": "step_time_s", "weight sync": "t_sync_s", "throughput": "tokens_per_s"}
)
"""Column that a row of each `x_measure` is judged by."""
PHASE_COLUMNS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "t_rollout_s": ("generate",),
        "t_logprob_s": ("log-probabilities",),
        "t_ref_s": ("reference",),
        "t_train_s": ("update", "critic update"),
        "t_sync_s": ("weight sync",),
    }
)
"""Columns of phases, and the predicted phases that they hold."""
HABITS: JsonMapping = MappingProxyType(tomllib.loads((TRUTH / "rl_habits.toml").read_text(encoding="utf-8")))
FITTED_FILE = TRUTH / "rl_fitted.toml"
DEFAULT_LONGEST = 8192  # tokens of an answer where nothing is stated
USUAL_PROMPT = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class RlRow:
    """A row as a scenario, and what was measured of it."""

    row: Row
    scenario: Scenario[Rl]
    metric: str
    measured: float
    phases: Mapping[str, float]
    family: str
    fitted_length: bool


def rl_row(
    row: Row, parameters: RlParameters | None = None, lengths: Mapping[str, float] | None = None
) -> RlRow | Skipped:
    """The row's scenario, or the reason why nothing can be predicted for it.

    lengths   mean answer in tokens by `length_key`, where it is fitted; absent: those that ship
    """
    reason = _unusable(row)
    if reason:
        return Skipped(id=row.id, reason=reason)
    used, fitted = parameters or shipped_parameters(), shipped_lengths() if lengths is None else lengths
    table, notes = _table(row, used, fitted)
    try:
        built = post_training(scenario_of(table))
    except InputError as wrong:
        return Skipped(id=row.id, reason=str(wrong).replace("\n", "; ")[:300])
    metric = METRICS[row["x_measure"]]
    phases = {column: value for column in PHASE_COLUMNS if (value := _number(row[column])) and _is_phase(row, column)}
    return RlRow(
        row=row,
        scenario=replace(built, assumptions=(*notes, *built.assumptions)),
        metric=metric,
        measured=_number(row[metric]) or 1.0,
        phases=MappingProxyType(phases if row["x_measure"] == "step" else {}),
        family=row["x_family"],
        fitted_length=length_key(row) in fitted and not _number(row["response_len_mean"]),
    )


def _is_phase(row: Row, column: str) -> bool:
    """Whether a column is the time of a phase: an asynchronous rollout is printed as the wait for it."""
    return column != "t_rollout_s" or row["x_rollout_is"] != "exposed wait"


def _unusable(row: Row) -> str:
    """Why a row cannot be predicted; empty where it can."""
    measure = row["x_measure"]
    if measure not in METRICS:
        return f"x_measure {measure!r}: step, weight sync and throughput are predicted"
    if _number(row[METRICS[measure]]) is None:
        return f"nothing measured in {METRICS[measure]}"
    if not row["x_chip"]:
        return "the source does not say which chip"
    if not row["x_model"] or MODELS.resolve(row["x_model"]) is None:
        return "no catalog id of the model"
    if _chips(row) is None:
        return "the number of chips is not stated"
    if measure != "weight sync" and _batch(row) is None:
        return "prompts and samples of a step are not stated"
    return ""


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if 0 < value < 1e12 else None


def _chips(row: Row) -> int | None:
    value = _number(row["n"]) or _number(row["x_ranks"])
    return int(value) if value else None


def _batch(row: Row) -> tuple[int, int, int | None] | None:
    """Prompts, samples of each, and prompts of an optimizer step.

    >>> from ridgeline.calibrate.truth.rows import Row
    >>> [_batch(Row(id="a", table="", cells={"prompts_x_samples": text, "x_family": "nemo-rl"}))
    ...     for text in ("512x16", "G-GBS 2,048 T-GBS 512 samples/step", "?x16 mini 32")]
    [(512, 16, None), (64, 32, 16), None]
    """
    text = row["prompts_x_samples"].replace(",", "")
    if match := re.search(r"G-GBS (\d+)", text):
        total, train = int(match[1]), re.search(r"T-GBS (\d+)", text)
        per_item = 32 if total >= 2048 or "235" in row["x_model"] else 16
        prompts = max(total // per_item, 1)
        mini = max(int(train[1]) // per_item, 1) if train else prompts
        return prompts, per_item, mini if mini < prompts and prompts % mini == 0 else None
    if match := re.search(r"(\d+) *x *(\d+)", text):
        prompts = int(match[1])
        stated_length = re.search(r"mini(?:-batch)? (\d+)", f"{text} {row['trainer_parallelism']}")
        size = int(stated_length[1]) if stated_length else prompts
        return prompts, int(match[2]), size if size < prompts and prompts % size == 0 else None
    return None


def _habit(row: Row) -> JsonMapping:
    """What the framework of a row does by default: by family, then by what the trainer is."""
    family = HABITS.get(row["x_family"], HABITS["other"])
    trainer = row["trainer_parallelism"].lower()
    part = "fsdp" if "fsdp" in trainer or "fsdp" in row["framework"].lower() else "megatron"
    return {**family, **family.get(part, {})}


def _table(row: Row, parameters: RlParameters, fitted: Mapping[str, float]) -> tuple[JsonObject, list[str]]:
    """The scenario table of a row, and what it rests on beside the row."""
    habit, chips = _habit(row), _chips(row) or 1
    notes: list[str] = []
    batch = _batch(row) or (64, 16, None)
    train_chips = int(_number(row["x_train_chips"]) or 0)
    separate = row["x_placement"] == "disaggregated"
    if separate and not train_chips:
        train_chips = chips // 2
        notes.append(f"{train_chips} of {chips} chips train: the row does not say")
    workload = _workload(row, habit, batch, (parameters, fitted), notes)
    plan = _plan(row, habit, train_chips if separate else chips, notes)
    plan["rl"] = _placement(row, habit, train_chips if separate else 0, workload)
    _fit_rollout(row, plan, chips - train_chips if separate else chips, notes)
    table: JsonObject = {
        "model": row["x_model"], "system": f"{chips}x{row['x_chip']}", "workload": workload, "plan": plan,
        "name": row.id,
    }  # fmt: skip
    if row["x_chip"] == "ascend-910c" and not row["n"]:
        table["chip"] = dict(HABITS["half_chip"])
        notes.append("a rank is one of the two dies of an Ascend 910C")
    return table, notes


def _workload(
    row: Row, habit: JsonMapping, batch: tuple[int, int, int | None],
    lengths: tuple[RlParameters, Mapping[str, float]], notes: list[str],
) -> JsonObject:  # fmt: skip
    prompts, samples, mini = batch
    algorithm = next((word for word in ("dapo", "ppo", "grpo") if word in row["algorithm"].lower()), "grpo")
    prompt, mean, longest = _lengths(row, *lengths, notes)
    fewest = 1 if algorithm == "ppo" else 2
    work: JsonObject = {
        "kind": "rl", "algorithm": algorithm, "prompts": prompts, "samples": max(samples, fewest),
        "prompt_tokens": prompt,
        "response_tokens": {"kind": "lognormal", "mean": mean, "sigma": habit["sigma"], "high": longest},
    }  # fmt: skip
    usual_mini = mini or habit.get("mini_batch")
    if usual_mini and prompts % usual_mini == 0:
        work["mini_batch"] = usual_mini
    roles: JsonObject = {}
    if habit.get("reference") or _number(row["t_ref_s"]):
        roles["reference"] = True
    if algorithm == "ppo":
        roles["critic"] = True
    work["roles"] = roles
    if habit.get("old_log_probs"):
        work["old_log_probs"] = habit["old_log_probs"]
    if match := re.search(r"<=? ?(\d+) turns", row["algorithm"]):
        upper_limit = int(match[1])
        work["agent"] = {
            "turns": {"kind": "uniform", "low": 1, "high": upper_limit}, "tool_tokens": 200,
            "tool_latency": {"kind": "lognormal", "mean": "1 s", "sigma": 1.0},
        }  # fmt: skip
        notes.append(f"agent: 1 to {upper_limit} turns, tools of 1 s that say 200 tokens: the row does not say")
    return work


def _lengths(row: Row, parameters: RlParameters, fitted: Mapping[str, float], notes: list[str]) -> tuple[int, int, int]:
    """Prompt, mean answer and longest answer."""
    longest = int(_number(row["response_len_max"]) or DEFAULT_LONGEST)
    stated_length, prompt = _number(row["response_len_mean"]), _number(row["prompt_len"])
    if row["x_family"] == "nemo-rl":  # totals of prompt and answer
        prompt = prompt or min(USUAL_PROMPT, 0.25 * (stated_length or longest))
        return int(prompt), max(int((stated_length or longest / 3) - prompt), 16), max(longest - int(prompt), 32)
    # a prompt is limited to prompt_len: half of it is usual
    usual = int(prompt / 2) if prompt else USUAL_PROMPT
    if stated_length:
        return usual, int(stated_length), max(longest, 2 * int(stated_length))
    known_length = fitted.get(length_key(row))
    mean = max(int(known_length or parameters.usual_answer(longest)), 16)
    why = "fitted on runs of this model" if known_length else "as runs of other frameworks"
    notes.append(f"answers: {mean:,} tokens on average, {why}; the row does not say")
    return usual, min(mean, longest * 3 // 4), longest


def length_key(row: Row) -> str:
    """Rows that share a mean length: a model under one framework, with tools or without."""
    return f"{row['x_family']}/{row['x_model']}" + ("/agent" if "turns" in row["algorithm"] else "")


def _plan(row: Row, habit: JsonMapping, chips: int, notes: list[str]) -> JsonObject:
    """How the actor is trained."""
    plan: JsonObject = {"engine": habit["engine"], "recompute": habit["recompute"]}
    degrees = _degrees(row["trainer_parallelism"])
    degrees_by_axis = {
        name: degrees[key] for key, name in (("TP", "tp"), ("CP", "cp"), ("EP", "ep"), ("PP", "pp")) if key in degrees
    }
    if not degrees_by_axis:
        degrees_by_axis = {key: int(habit[key]) for key in ("tp", "cp", "ep", "pp") if key in habit}
        if row["x_model"] in habit.get("models", {}):
            degrees_by_axis |= habit["models"][row["x_model"]]
        words = " ".join(f"{key}={value}" for key, value in degrees_by_axis.items()) or "dp alone"
        notes.append(f"trainer {words}: as the framework's own recipes")
    if "ep" in degrees_by_axis and not _has_experts(row["x_model"]):
        degrees_by_axis.pop("ep")
    plan |= {name: degree for name, degree in degrees_by_axis.items() if degree > 1}
    inner = math.prod(degrees_by_axis.get(name, 1) for name in ("tp", "cp", "pp"))
    plan["dp"] = max(chips // inner, 1)
    plan["shard"] = habit["shard"]
    if habit.get("cp_kind"):
        plan["cp_kind"] = habit["cp_kind"]
    if habit.get("shard_degree") and (plan["dp"] * degrees_by_axis.get("cp", 1)) % habit["shard_degree"] == 0:
        plan["shard_degree"] = habit["shard_degree"]
    # rollout and training in fp8 where the row says so
    if row["x_precision"] == "fp8":
        plan["precision"] = "fp8"
    return plan


@cache
def _has_experts(model: str) -> bool:
    from ridgeline.models.blocks import Moe

    return any(isinstance(block.ffn, Moe) for block in MODELS[model].blocks)


def _degrees(text: str) -> dict[str, int]:
    """Degrees that a row writes as [TP,CP,...]=[2,1,...].

    >>> _degrees("[TP,CP,EP,PP,VPP]=[2,2,16,8,n/a]")
    {'TP': 2, 'CP': 2, 'EP': 16, 'PP': 8}
    """
    match = re.search(r"\[([A-Z,]+)\] *= *\[([^\]]+)\]", text)
    if not match:
        return {}
    pairs = zip(match[1].split(","), match[2].split(","), strict=False)
    return {name: int(value) for name, value in pairs if value.strip().isdigit()}


def _placement(row: Row, habit: JsonMapping, train_chips: int, workload: JsonMapping) -> JsonObject:
    """Pools, how they wait for each other, and the rollout engine."""
    degrees = _degrees(row["rollout_engine_tp"])
    bare = re.search(r"tp ?=? ?(\d+)", row["rollout_engine_tp"])
    tp = degrees.get("TP") or (int(bare[1]) if bare else 0) or int(habit["rollout_tp"])
    engine = "sglang" if "sglang" in f"{row['rollout_engine_tp']} {row['framework']}".lower() else "vllm"
    rollout: JsonObject = {"tp": tp, "engine": engine}
    if habit.get("eager"):
        rollout["eager"] = True
    if degrees.get("PP", 1) > 1:
        rollout["pp"] = degrees["PP"]
    if row["x_precision"] == "fp8":
        rollout["precision"] = {"name": "fp8", "weights": "fp8"}
    lengths = workload["response_tokens"]
    longest = int(lengths["high"]) + int(workload["prompt_tokens"])
    rl: JsonObject = {"rollout": rollout, "pack": max(int(longest * float(habit["packs"])), 1024)}
    rl["weight_sync"] = _sync_method(row, habit)
    if train_chips:
        rl |= {"placement": "async", "train_chips": train_chips, "partial_rollouts": True}
        rl["staleness"] = _number(row["x_staleness"]) or 1.0
    return rl


def _sync_method(row: Row, habit: JsonMapping) -> str:
    """How weights are synchronised, by the words of a row."""
    text = f"{row['notes']} {row.id}".lower()
    words = (("checkpoint-engine", "checkpoint-engine"), ("naive", "tensor"), ("tensor-by-tensor", "bucket"))
    return next((method for word, method in words if word in text), str(habit["weight_sync"]))


def _fit_rollout(row: Row, plan: JsonObject, chips: int, notes: list[str]) -> None:
    """Knobs of the rollout engine; fewer tensor ranks where the chips are fewer."""
    rollout, habit = plan["rl"]["rollout"], _habit(row)
    while rollout["tp"] > 1 and chips % (rollout["tp"] * rollout.get("pp", 1)):
        rollout["tp"] //= 2
    if _has_experts(row["x_model"]) and rollout["tp"] > 8:
        rollout["ep"] = rollout["tp"]
    match = re.search(r"gpu_mem[a-z_]* ?=? ?(0\.\d+)", row["rollout_engine_tp"])
    share = (
        float(match[1])
        if match
        else float(habit["utilization_split" if row["x_placement"] == "disaggregated" else "utilization"])
    )
    knobs: JsonObject = (
        {"gpu_memory_utilization": share} if rollout["engine"] == "vllm" else {"mem_fraction_static": share}
    )
    if rollout["engine"] == "vllm":
        knobs["max_num_seqs"] = int(habit["max_num_seqs"])
    plan["serving"] = {rollout["engine"]: knobs}
    notes.append(f"rollout: {share:.0%} of memory, {habit['max_num_seqs']} samples at once, as the framework's recipes")


@cache
def shipped_lengths() -> Mapping[str, float]:
    """Mean answer in tokens, by framework and model, where nobody prints it: one fitted number each."""
    return fitted_figures("answer_tokens")


@cache
def fitted_figures(name: str) -> Mapping[str, float]:
    """A table of `rl_fitted.toml`: answer_tokens by `length_key`; paces and spreads by framework."""
    table = tomllib.loads(FITTED_FILE.read_text(encoding="utf-8")).get(name, {})
    return MappingProxyType({str(key): float(value) for key, value in table.items()})
