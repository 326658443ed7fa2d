"""Turn a row of a post-training table into a scenario: what its columns say, and what its framework does by default.

Columns of `rl.csv`: chips in all (`n`) and by pool, prompts x samples, lengths, parallelism as the framework writes it,
placement, precision. What they leave blank is a habit of the framework, read from the configurations that it publishes
for these runs, and noted as an assumption. Nobody prints lengths of answers for verl and MindSpeed-RL: where a model
has a fitted length it is taken, otherwise what is usual for models of its class: those that answer at once, those that
reason first, and agents by their turns.
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
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.load import system
from ridgeline.models.load import MODELS
from ridgeline.models.params import count
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
USUAL_PROMPT = 192  # of a problem and what asks for its answer: assumed
FITTED_SPREAD = (
    0.3  # standard deviation of the logarithm of a fitted mean answer: assumed, as answers drift in training
)
REASONS = re.compile(r"think|reason|qwq|gpt-oss|(^|\W)r1(\W|$)|qwen-?3|nemotron-?3|glm-?(4\.[5-9]|5)|minimax", re.I)
AT_ONCE = re.compile(r"base|instruct|math|coder|(^|\W)pt(\W|$)", re.I)
"""Words of models that reason before they answer, and of those that do not whatever their name has beside."""
STATE_BYTES, RANK_MEMORY = 18, 64 * DECIMAL["G"]  # of a parameter in training; of a rank of Ascend
WEIGHT_SHARE = 0.4  # of a chip's memory that a rollout engine's weights may take before it has more tensor ranks
TUNED = re.compile(r"-(instruct|base|chat|math|sft|it|pt|hf)(?=-|$)", re.I)  # of a name: the dimensions are the same


@dataclass(frozen=True, slots=True, kw_only=True)
class RlRow:
    """A row as a scenario, and what was measured of it.

    length_spread   standard deviation of the logarithm of its mean answer: 0 where the row states it
    """

    row: Row
    scenario: Scenario[Rl]
    metric: str
    measured: float
    phases: Mapping[str, float]
    family: str
    length_spread: float


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
        length_spread=_length_spread(row, used, fitted),
    )


def _length_spread(row: Row, parameters: RlParameters, fitted: Mapping[str, float]) -> float:
    """How little is known of a row's mean answer."""
    if _number(row["response_len_mean"]) or row["x_measure"] == "weight sync":
        return 0.0
    return FITTED_SPREAD if length_key(row) in fitted else parameters.answer_spread


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
    if not _chip(row):
        return "the source does not say which chip"
    if not _model(row):
        return "no catalog id of the model"
    if _chips(row) is None:
        return "the number of chips is not stated"
    if measure != "weight sync" and _batch(row) is None:
        return "prompts and samples of a step are not stated"
    return ""


def _model(row: Row) -> str:
    """The catalog id of a row's model, from its column or its name; empty where the catalog has none.

    >>> from ridgeline.calibrate.truth.rows import Row
    >>> [_model(Row(id="a", table="", cells={"model": name, "x_model": ""})) for name in ("Qwen2.5-0.5B-Instruct", "X")]
    ['qwen2.5-0.5b', '']
    """
    habit = HABITS.get(row["x_family"], HABITS["other"])
    names = (row["x_model"], TUNED.sub("", row["model"]).strip(), str(habit.get("names", {}).get(row["model"], "")))
    return next((catalog_id for name in names if name and (catalog_id := MODELS.resolve(name.lower()))), "")


def _chip(row: Row) -> str:
    """The catalog id of a row's chip; that of the framework's paper where the row has none."""
    return row["x_chip"] or str(HABITS.get(row["x_family"], {}).get("chip", ""))


def reasons(row: Row) -> bool:
    """Whether a row's model reasons before it answers, by its name.

    >>> from ridgeline.calibrate.truth.rows import Row
    >>> [reasons(Row(id="a", table="", cells={"model": name})) for name in ("Qwen3-30B-A3B", "Qwen3-8B-Base", "Llama")]
    [True, False, False]
    """
    return bool(REASONS.search(row["model"])) and not AT_ONCE.search(row["model"])


def turns_of(row: Row) -> float:
    """Mean turns of a row's samples: half of the most that it allows."""
    match = re.search(r"<=? ?(\d+) turns", row["algorithm"])
    return (1 + int(match[1])) / 2 if match else 1.0


def longest_answer(row: Row) -> float:
    """Tokens that an answer may have."""
    habit = HABITS.get(row["x_family"], {})
    return _number(row["response_len_max"]) or float(habit.get("longest", DEFAULT_LONGEST))


def usual_answer(row: Row, parameters: RlParameters) -> float:
    """Mean answer of a row in tokens where nobody prints it."""
    longest = longest_answer(row)
    return parameters.usual_answer(longest, reasons=reasons(row), turns=turns_of(row))


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if 0 < value < 1e12 else None


def _chips(row: Row) -> int | None:
    value = _number(row["n"]) or _number(row["x_ranks"])
    habit = HABITS.get(row["x_family"], {})
    if value is None and habit.get("fewest_ranks") and _model(row) in habit.get("megatron", {}).get("models", {}):
        value = _fewest_ranks(row)  # only where a recipe says how the model is split
    return int(value) if value else None


def _fewest_ranks(row: Row) -> int:
    """Ranks that hold a trainer's states: sixteen, doubled until they fit. A rate of one rank hardly depends on it.

    16 x 2^k >= parameters x 18 bytes (twice with a critic) / (3/4 of a rank's memory)
    """
    trained = 2 if "ppo" in row["algorithm"].lower() else 1
    need = count(MODELS[_model(row)]).total * STATE_BYTES * trained / (0.75 * RANK_MEMORY)
    ranks = 16
    while ranks < need:
        ranks *= 2
    return ranks


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
    text = text or str(HABITS.get(row["x_family"], {}).get("batch", ""))
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
        train_chips = max(round(chips * float(habit.get("train_share", 0.5))), 1)
        notes.append(f"{train_chips} of {chips} chips train: the row does not say")
    workload = _workload(row, habit, batch, (parameters, fitted), notes)
    plan = _plan(row, habit, train_chips if separate else chips, notes)
    plan["rl"] = _placement(row, habit, train_chips if separate else 0, workload)
    _fit_rollout(row, plan, chips - train_chips if separate else chips, notes)
    table: JsonObject = {
        "model": _model(row), "system": f"{chips}x{_chip(row)}", "workload": workload, "plan": plan,
        "name": row.id,
    }  # fmt: skip
    if not row["x_chip"]:
        notes.append(f"chips: {_chip(row)}, as the framework's paper has it; the row does not say")
    if not row["n"] and not row["x_ranks"]:
        notes.append(f"{chips} ranks, the fewest that hold the trainer's states; the row does not say")
    if not row["prompts_x_samples"]:
        notes.append(f"{batch[0]} prompts x {batch[1]} samples, as the framework's paper has it; the row does not say")
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
    algorithm = "grpo" if algorithm == "ppo" and not habit.get("critic", True) else algorithm
    prompt, mean, longest = _lengths(row, *lengths, notes)
    if samples == 1 and algorithm != "ppo" and prompts % 2 == 0:  # as many samples, of half the prompts
        prompts, samples = prompts // 2, 2
    work: JsonObject = {
        "kind": "rl", "algorithm": algorithm, "prompts": prompts, "samples": samples,
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
    if algorithm == "dapo" and habit.get("oversampling") and "dynamic sampling off" not in row["notes"]:
        work["oversampling"] = habit["oversampling"]
        notes.append(
            f"dynamic sampling: {habit['oversampling']:g} prompts sampled for each that is trained on, assumed"
        )
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
    longest = int(longest_answer(row))
    stated_length, prompt = _number(row["response_len_mean"]), _number(row["prompt_len"])
    if row["x_family"] == "nemo-rl":  # totals of prompt and answer
        prompt = prompt or min(USUAL_PROMPT, 0.25 * (stated_length or longest))
        return int(prompt), max(int((stated_length or longest / 3) - prompt), 16), max(longest - int(prompt), 32)
    usual = int(min(prompt / 2, USUAL_PROMPT)) if prompt else USUAL_PROMPT  # prompt_len is what one may have at most
    if stated_length:
        return usual, int(stated_length), max(longest, 2 * int(stated_length))
    known_length = fitted.get(length_key(row))
    mean = max(int(known_length or usual_answer(row, parameters)), 16)
    kind = (
        "agents" if turns_of(row) > 1 else "models that reason first" if reasons(row) else "models that do not reason"
    )
    why = "fitted on runs of this model" if known_length else f"usual for {kind}, known to a factor of two"
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
        if _model(row) in habit.get("models", {}):
            degrees_by_axis |= habit["models"][_model(row)]
        for key in ("cp", "pp", "tp"):  # fewer chips than the recipes have
            while math.prod(degrees_by_axis.get(name, 1) for name in ("tp", "cp", "pp")) > chips > 0:
                if degrees_by_axis.get(key, 1) == 1:
                    break
                degrees_by_axis[key] //= 2
        words = " ".join(f"{key}={value}" for key, value in degrees_by_axis.items()) or "dp alone"
        notes.append(f"trainer {words}: as the framework's own recipes")
    if "ep" in degrees_by_axis and not _has_experts(_model(row)):
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


def _widen_for_weights(row: Row, rollout: JsonObject, chips: int) -> None:
    """More ranks until a replica holds its weights: of tensors up to eight, then of experts with data ranks beside."""
    width = 1 if row["x_precision"] == "fp8" else 2
    room = (RANK_MEMORY if row["x_chip"].startswith("ascend") else _memory(_chip(row))) * WEIGHT_SHARE
    size = count(MODELS[_model(row)]).total * width
    experts = _has_experts(_model(row))
    while size / (ranks := rollout["tp"] * rollout.get("pp", 1) * rollout.get("dp", 1)) > room and 2 * ranks <= chips:
        if experts and rollout["tp"] >= 8:
            rollout["dp"] = 2 * rollout.get("dp", 1)
            rollout["ep"] = rollout["tp"] * rollout["dp"]
        else:
            rollout["tp"] *= 2


@cache
def _memory(chip: str) -> float:
    """Bytes of a chip."""
    return system(f"1x{chip}").chip.need("hbm.capacity").value


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
    if habit.get("eager") or row["x_chip"].startswith("ascend"):
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
        rl["staleness"] = _number(row["x_staleness"]) or float(habit.get("staleness", 1.0))
    return rl


def _sync_method(row: Row, habit: JsonMapping) -> str:
    """How weights are synchronised, by the words of a row."""
    text = f"{row['notes']} {row.id}".lower()
    words = (("checkpoint-engine", "checkpoint-engine"), ("naive", "tensor"), ("tensor-by-tensor", "bucket"))
    return next((method for word, method in words if word in text), str(habit["weight_sync"]))


def _fit_rollout(row: Row, plan: JsonObject, chips: int, notes: list[str]) -> None:
    """Knobs of the rollout engine; fewer tensor ranks where the chips are fewer."""
    rollout, habit = plan["rl"]["rollout"], _habit(row)
    if not re.search(r"\d", row["rollout_engine_tp"].partition("gpu_mem")[0]):  # the row does not state its ranks
        _widen_for_weights(row, rollout, chips)
    while rollout["tp"] > 1 and chips % (rollout["tp"] * rollout.get("pp", 1)):
        rollout["tp"] //= 2
    if _has_experts(_model(row)) and rollout["tp"] > 8 and "dp" not in rollout:
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
