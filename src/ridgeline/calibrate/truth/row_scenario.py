"""Turn a measured Row into the Scenario that a user would have written, or into the reason why that cannot be done;
and whatever it reports (seconds, tokens/s, TFLOP/s, MFU) into the seconds of one step.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from ridgeline.calibrate.truth import row_habits
from ridgeline.calibrate.truth.row_model import model_table
from ridgeline.calibrate.truth.rows import TRUTH, WORDS, Row, RowCells, Skipped, Unusable
from ridgeline.core.documents import JsonObject, JsonValue
from ridgeline.core.errors import MissingNumber, Problem, RidgelineError, near
from ridgeline.core.files import parse_table
from ridgeline.core.units import DECIMAL
from ridgeline.hardware.chip import Chip
from ridgeline.hardware.load import CHIPS, SYSTEMS, system
from ridgeline.hardware.topology import Torus
from ridgeline.models.facts import training_flops_per_token
from ridgeline.plan.engine import ENGINES
from ridgeline.plan.scenario import Scenario, is_training
from ridgeline.plan.scenario_file import assemble
from ridgeline.plan.workload import Train

TERA = DECIMAL["T"]
SHORTEST, LONGEST = 1e-6, 1e6  # seconds; no step of a training run is outside
# attention counted over half the pairs since then: their published TFLOP/s reproduce to 1 % so, else to 7 % at best
HALVED_SINCE: Mapping[str, int] = MappingProxyType(
    dict.fromkeys(("megatron-core", "megatron-bridge", "nemo", "nemo-automodel", "maxtext", "primus"), 2025)
)
METRICS = ("step_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct")
_STATED_PEAK = re.compile(r"(\d+(?:\.\d+)?) ?TF\b")


def measured_step_s(row: Row, scenario: Scenario) -> float | Skipped:
    """Seconds of one step as measured: `x_step_time_s` where given, otherwise from the row's metric.

        step_time_s             t
        tokens_per_s_per_gpu    tokens / (v * gpus)
        tflops_per_gpu          F * tokens / (v * 10**12 * gpus)
        mfu_pct                 F * tokens / (v / 100 * peak * gpus)

    v = measured value, tokens = seq * global batch, F = flops of a token as the source counts them
    (`counted_flops_per_token`), peak = of the row's precision, or the one the source divides by where it says so.

    >>> from ridgeline.calibrate.truth.rows import read_rows
    >>> from ridgeline.calibrate.truth.row_scenario import to_scenario
    >>> row = next(row for row in read_rows() if row.id == "misc-0001")  # 137 TFLOP/s, recompute counted
    >>> f"{measured_step_s(row, to_scenario(row)):.2f} s"
    '3.53 s'
    """
    cells = RowCells(row=row)
    try:
        seconds = cells.number("x_step_time_s") or _from_metric(cells, scenario)
    except Unusable as wrong:
        return Skipped(id=row.id, reason=str(wrong))
    except MissingNumber as wrong:
        return Skipped(id=row.id, reason=f"measured_metric: {wrong}")
    if not math.isfinite(seconds) or not SHORTEST <= seconds <= LONGEST:
        return Skipped(id=row.id, reason=f"measured_value: a step of {seconds:.3g} s is not believable")
    return seconds


def _from_metric(cells: RowCells, scenario: Scenario) -> float:
    metric, value = cells.text("measured_metric"), cells.number("measured_value")
    if metric not in METRICS:
        raise Unusable("measured_metric", f"got {metric[:40]!r}, expected one of {', '.join(METRICS)}")
    if value is None:
        raise Unusable("measured_value", "blank")
    if not is_training(scenario):
        raise Unusable("x_task", "not a training step")
    if metric == "step_time_s":
        return value
    if metric == "tokens_per_s_per_gpu":
        return scenario.workload.tokens / (value * scenario.system.chips)
    flops_per_chip = counted_flops_per_token(cells.row, scenario) * scenario.workload.tokens / scenario.system.chips
    if metric == "tflops_per_gpu":
        return flops_per_chip / (value * TERA)
    if value > 100:
        raise Unusable("measured_value", f"got {value:g}, expected a share of the peak up to 100 %")
    match = _STATED_PEAK.search(cells.text("flops_convention"))
    chip, compute = scenario.system.chip, scenario.plan.precision.compute
    peak = float(match[1]) * TERA if match else chip.peak_flops_per_s(compute).value
    return flops_per_chip / (value / 100 * peak)


def counted_flops_per_token(row: Row, scenario: Scenario[Train]) -> float:
    """Flops of one token as the row's source counts them.

    3 * forward                                 attention over all pairs (full) or over half of them (causal)
    + forward without the head                  where recompute is counted and was full
    + the scores of attention                   where recompute is counted and was selective
    * 2/3                                       low-rank adapters: frozen weights have no gradient
    """
    cells = RowCells(row=row)
    full = _counts_all_pairs(cells, scenario.plan.engine)
    train = training_flops_per_token(scenario.model, scenario.workload.seq, causal=not full)
    total = train.total
    kind = scenario.plan.recompute.kind
    if cells.flag("x_flops_with_recompute") and kind != "none":
        total += (train.total - train.head if kind == "full" else train.scores) / 3
    if scenario.workload.task == "lora":
        total *= 2 / 3
    return total


def _counts_all_pairs(cells: RowCells, engine: str) -> bool:
    """Whether the source counts attention over all pairs of tokens, as older software and most papers do."""
    hint = cells.hint("x_attn_flops", {"full": "full", "causal": "causal"})
    if hint is not None:
        return hint == "full"
    text = cells.text("flops_convention").lower()
    if "non-causal" in text or "full" in text:
        return True
    if "causal" in text or "half" in text:
        return False
    return (cells.number("year") or 0) < HALVED_SINCE.get(engine, math.inf)


PRECISIONS = {name: name for name in ("bf16", "fp16", "fp32", "tf32", "fp8", "mxfp8", "nvfp4", "mxfp4", "int8", "int4")}
SHARDS = {name: name for name in ("none", "zero1", "zero2", "zero3")}
TASKS = {"pretrain": "pretrain", "sft": "finetune", "finetune": "finetune", "lora": "lora"}
GRAPHS = {name: name for name in ("none", "partial", "full")}
DISPATCHES = {"alltoall": "all-to-all", "all-to-all": "all-to-all", "deepep": "deepep", "hybridep": "hybridep"}
OVERLAPS = {"x_tp_overlap": "tp", "x_grad_overlap": "grad-reduce", "x_moe_overlap": "moe"}
HABANA = "habana|gaudi|optimum-hpu"  # a port to Gaudi, whose graph compiler makes another software of it
FRAMEWORKS: Sequence[tuple[str, str]] = WORDS["frameworks"]  # patterns; the first match wins
GENERIC = "generic"
ROUNDED = 0.005  # a global batch this close to a possible one is a rounded figure
SCALINGS = {"tensorwise": "tensor", "current": "tensor", "delayed": "tensor", "rowwise": "row", "blockwise": "block"}


def engine_of(cells: RowCells) -> str:
    """The engine's id: `x_engine`, or what the framework's name suggests; `generic` for software nobody described.

    A stranger's software is never taken for the best-tuned one: that made unknown sources a fifth too fast. One that
    says what it descends from is its relative's, without what that overlaps and fuses (`row_habits.engine_habits`).
    """
    engine_name, framework = cells.text("x_engine"), cells.text("framework")
    is_known, for_gaudi = bool(engine_name) and engine_name in ENGINES, re.search(HABANA, framework.lower())
    if is_known and not (ENGINES[engine_name].id == "megatron-deepspeed" and for_gaudi):
        return ENGINES[engine_name].id
    for pattern, id in FRAMEWORKS:
        if re.search(pattern, f"{engine_name} {framework}".lower()):
            is_unknown = engine_name and not is_known
            unknown = f"; x_engine {engine_name[:40]!r} is not an engine Ridgeline knows" if is_unknown else ""
            cells.note(f"engine = {id}: from framework {(engine_name or framework)[:40]!r}{unknown}")
            return id
    reason = f"{(engine_name or framework)[:40]!r} is not in the catalog" if engine_name or framework else "not stated"
    cells.note(f"engine = {GENERIC}: {reason}; write an engine file for what it fuses and overlaps")
    return GENERIC


def plan_table(cells: RowCells, engine: str, chip: Chip) -> JsonObject:
    """Every decision of the run; what the row leaves open stays out, and what had to be assumed is noted."""
    mesh = _mesh(cells)
    plan: JsonObject = {"engine": engine, **mesh, "microbatch": _microbatch(cells, mesh["dp"])}
    plan |= row_habits.usual_stages(cells, engine, plan["pp"])
    chunks = _chunks(cells, plan["pp"]) if plan["pp"] > 1 and "schedule" not in plan else 1
    if chunks > 1:
        plan["schedule"] = {"name": "interleaved", "chunks": chunks}
    precision: JsonValue = cells.word("precision", PRECISIONS)
    if precision is None:
        precision = row_habits.usual_precision(cells, engine, chip)
    scaling = cells.hint("x_fp8_recipe", SCALINGS)
    if scaling is not None:
        precision = {"name": precision, "scaling": scaling}
    plan |= {
        "precision": precision,
        **row_habits.memory_table(cells, engine),
        **_sharding(cells, plan["dp"] * plan["cp"]),
    }
    exchange = row_habits.usual_exchange(cells, engine, mesh)
    return plan | _switches(cells, engine, chip) | ({"cp_kind": exchange} if exchange else {})


def _chunks(cells: RowCells, pp: int) -> int:
    """Virtual stages of a rank; blank beside the words "interleaved 1F1B" is the fewest that layers can be dealt to."""
    layers = (cells.count("layers") or 0) // pp
    text = f"{cells.text('overlap_notes')} {cells.text('notes')}"
    if cells.count("vpp") is not None or not re.search(r"(?i)interleaved (?:1f1b|pipeline|schedule)", text):
        return cells.assume("vpp", 1)
    chunks = next((size for size in range(2, layers + 1) if layers % size == 0), 1)
    cells.note(f"vpp = {chunks}: blank in the table, which says interleaved; the fewest chunks of equal layers")
    return chunks


def _mesh(cells: RowCells) -> dict[str, int]:
    gpus = cells.need("gpus")
    mesh = {"tp": cells.need("tp"), "pp": cells.need("pp"), "cp": cells.assume("cp", 1)}
    experts = cells.size("experts")
    if experts and cells.count("ep") is None:
        raise Unusable("ep", f"blank, with {experts} experts to place")
    mesh["ep"] = cells.count("ep") or 1
    inner = mesh["tp"] * mesh["pp"] * mesh["cp"]
    stated_dp = cells.count("dp")
    if stated_dp is None:
        if gpus % inner:
            raise Unusable("dp", f"blank, and tp x pp x cp = {inner} does not divide gpus ({gpus})")
        cells.note(f"dp = {gpus // inner}: blank in the table; the chips that tp, pp and cp leave")
        return mesh | {"dp": gpus // inner}
    if stated_dp * inner != gpus:
        raise Unusable("dp", f"tp x pp x cp x dp = {stated_dp * inner}, expected gpus ({gpus})")
    return mesh | {"dp": stated_dp}


def _microbatch(cells: RowCells, dp: int) -> int:
    """Sequences a data-parallel rank handles at a time.

    A blank is certain where each rank has one sequence, and most likely one in a pipeline, which more and smaller ones
    fill; without stages `fitting` makes it the largest that fits.
    """
    stated_size = cells.count("micro_batch")
    if stated_size is None and cells.need("global_batch") != dp:
        cells.note("micro_batch = 1: blank in the table; what most large runs use")
    return stated_size or 1


def _sharding(cells: RowCells, ranks: int) -> JsonObject:
    shard = cells.hint("x_shard", SHARDS)
    text = cells.text("zero_or_fsdp").lower()
    if shard is None:
        shard = next((kind for words, kind in WORDS["sharding"] if re.search(words, text)), "none")
        cells.note(f"shard = {shard}: " + (f"from {text[:40]!r}" if text else "blank in the table"))
    degree = cells.count("x_shard_degree")
    if degree == 2 * ranks and cells.text("x_chip").startswith("tpu"):
        cells.note(f"shard_degree = {ranks}: {degree} counts the two JAX devices of a chip")
        degree = ranks
    if shard == "none" or degree is None or degree == ranks:
        return {"shard": shard}
    return {"shard": shard, "shard_degree": degree}


def _switches(cells: RowCells, engine: str, chip: Chip) -> JsonObject:
    overlap = {key: cells.flag(column) for column, key in OVERLAPS.items()}
    if overlap["tp"] is None:
        overlap["tp"] = row_habits.usual_overlap(cells, engine)
    switches: JsonObject = {
        "sequence_parallel": cells.flag("sp"),
        "attention": _attention(cells) or row_habits.usual_attention(cells, engine, chip),
        "graph": cells.hint("x_cuda_graph", GRAPHS) or row_habits.usual_graph(cells, engine, chip),
        "moe_dispatch": _dispatch(cells) or row_habits.usual_dispatch(cells, engine, chip),
        "overlap": {key: value for key, value in overlap.items() if value is not None} or None,
        "compiled": cells.flag("x_compile"),
        "launch_blocking": cells.flag("x_launch_blocking"),
    }
    return {key: value for key, value in switches.items() if value is not None}


def _dispatch(cells: RowCells) -> str | None:
    """The expert dispatcher: its own column, or one that the columns on kernels and overlap name."""
    hint = cells.hint("x_moe_dispatch", DISPATCHES)
    if hint is not None or not row_habits.dispatches(cells):
        return hint
    match = re.search(r"\b(deepep|hybridep)\b", f"{cells.text('attention_impl')} {cells.text('overlap_notes')}".lower())
    if match:
        cells.note(f"moe_dispatch = {match[1]}: named beside the kernels")
    return match[1] if match else None


def _attention(cells: RowCells) -> str | None:
    hint = cells.hint("x_attention", {"flash": "flash", "unfused": "unfused"})
    if hint is not None:
        return hint
    text = cells.text("attention_impl").lower()
    if "unfused" in text:
        return "unfused"
    return "flash" if re.search(r"flash|fused|splash|sdpa|\bte\b", text) else None


def workload_table(cells: RowCells, engine: str) -> JsonObject:
    """The training step a row measured."""
    table: JsonObject = {"kind": "train", "seq": cells.need("seq_len"), "global_batch": _sequences(cells)}
    task = cells.word("x_task", TASKS)
    if task is None:
        task = "pretrain"
        cells.note("task = pretrain: blank in the table")
    if task == "lora":
        cells.note("lora: rank 16 on the attention's projections, as MLPerf asks; no column holds it")
    return table | {"task": task} | (_optimizer(cells) or row_habits.usual_optimizer(cells, engine))


def _optimizer(cells: RowCells) -> JsonObject:
    """The formats of the optimizer's moments and master copy, where columns say them."""
    if "own" in (cells.text("source_url_or_repo_path"), cells.text("source").partition(" ")[0]):
        cells.note("optimizer: moments in bf16 and no master copy, as in all own measurements")
        return {"optimizer": {"name": "adamw", "states": "bf16", "master": "none"}}
    formats = {key: cells.text(f"x_optimizer_{key}") for key in ("states", "master")}
    formats = {key: value for key, value in formats.items() if value}
    return {"optimizer": {"name": "adamw"} | formats} if formats else {}


def _sequences(cells: RowCells) -> int:
    """The global batch; one that is a hair off what ranks and microbatches divide is the rounded figure of a text."""
    global_batch, dp, microbatch = cells.need("global_batch"), cells.count("dp"), cells.count("micro_batch")
    batch_unit = (dp or 1) * (microbatch or 1)
    near = max(1, round(global_batch / batch_unit)) * batch_unit
    if near != global_batch and abs(near - global_batch) < ROUNDED * global_batch:
        cells.note(f"global_batch = {near}: {global_batch} cannot be dealt to dp {dp} x micro_batch {microbatch}")
        return near
    return global_batch


# where in a scenario a problem lies -> the columns it comes from
COLUMNS: Mapping[str, str] = WORDS["columns"]  # by place in a scenario
_NODES = re.compile(r"(\d{1,6})x(\d{1,4})")
# accelerators that tables list under a relative: an A800 has slower links than an A100, a GCD is half of an MI250X
RELATIVES = (("A800", "a100-80-sxm", "a800-80-sxm"), (r"per GCD", "mi250x", "mi250x-gcd"))
_SLICES = re.compile(r"(\d{1,5}) slices?(?:\(s\))? x (\d{1,6}) chips.*")


def to_scenario(row: Row) -> Scenario | Skipped:
    """The scenario of a measured row, assumptions and all; never raises for what a row holds.

    >>> from ridgeline.calibrate.truth.rows import read_rows
    >>> rows = {row.id: row for row in read_rows()}
    >>> made = to_scenario(rows["h200-003"])
    >>> made.model.id, made.system.name, made.plan.recompute.kind
    ('llama3.2-1b with tied=False', '1xh200-sxm', 'full')
    """
    cells = RowCells(row=row)
    try:
        if row["x_scenario"]:  # as JSON; paths in it are refused, for a table may come from anybody
            table = parse_table(Path("x_scenario.json"), row["x_scenario"]).data
            built, problems = assemble(dict(table), folder=TRUTH)
        else:
            built, problems = assemble(scenario_table(cells))
    except Unusable as wrong:
        return Skipped(id=row.id, reason=str(wrong))
    except RidgelineError as wrong:
        return Skipped(id=row.id, reason=str(wrong).splitlines()[0])
    if built is None or problems:
        return Skipped(id=row.id, reason="; ".join(_problem_text(problem) for problem in problems))
    return row_habits.fitting(replace(built, assumptions=(*cells.notes, *built.assumptions)))


def scenario_table(cells: RowCells) -> JsonObject:
    """The row as the table a scenario file holds; notes gather in `cells`."""
    engine, chip = engine_of(cells), _chip(cells)
    return {
        "name": cells.row.id,
        "model": model_table(cells, engine),
        "system": _system(cells, chip),
        "workload": workload_table(cells, engine),
        "plan": plan_table(cells, engine, CHIPS[chip]),
        **row_habits.engine_habits(cells, engine),
    }


def _problem_text(problem: Problem) -> str:
    """The problem by the columns it comes from instead of by its place in a scenario."""
    path = problem.path
    while path and path not in COLUMNS:
        path = path.rpartition(".")[0]
    return f"{COLUMNS.get(path, problem.path)}: got {problem.given}, expected {problem.expected}"


def _chip(cells: RowCells) -> str:
    """The catalog id of the row's chip: `x_chip`, or what the accelerator's text means."""
    chip_name, text = cells.text("x_chip"), cells.text("accelerator")
    if chip_name:
        id = CHIPS.resolve(chip_name)
        if id is None:
            raise Unusable("x_chip", f"got {chip_name[:40]!r}, expected a chip of the catalog{_such_as(chip_name)}")
        return _meant(cells, id, text)
    if not text:
        raise Unusable("x_chip", "blank, and so is accelerator")
    bare = re.sub(r"\(.*?\)", "", text).strip()
    words = [text, bare, *(bare.rsplit("-", cut)[0] for cut in range(1, bare.count("-") + 1))]
    words += [re.sub(r"-?\d+GB", "", word) for word in words]
    id = next((chip_id for word in words if word and (chip_id := CHIPS.resolve(word))), None)
    if id is None:
        raise Unusable("accelerator", f"got {text[:40]!r}, expected a chip of the catalog{_such_as(bare)}")
    cells.note(f"chip = {id}: from accelerator {text[:40]!r}")
    return id


def _meant(cells: RowCells, id: str, text: str) -> str:
    """The chip the accelerator's text names where `x_chip` holds its nearest relative."""
    for words, near_id, meant in RELATIVES:
        if id == near_id and re.search(words, text, re.IGNORECASE):
            cells.note(f"chip = {meant}: accelerator says {text[:40]!r}")
            return meant
    return id


def _such_as(text: str) -> str:
    close = near(text[:40], CHIPS)
    return f" such as {', '.join(close)}" if close else "; `ridgeline show chips` lists them"


def _system(cells: RowCells, chip: str) -> str | JsonObject:
    """The system's name, with the slices or the part of a node where the row says so."""
    gpus, text = cells.need("gpus"), cells.text("nodes_gpus_per_node").lower()
    name = f"{gpus}x{chip}"
    template = SYSTEMS[CHIPS[chip].system]
    nodes, slices = _NODES.fullmatch(text), _SLICES.fullmatch(text)
    fabric = _fabric(cells, int(nodes[2]) if nodes else template.node)
    if slices and int(slices[1]) > 1 and int(slices[1]) * int(slices[2]) == gpus:
        inner = system(f"{slices[2]}x{chip}").tiers[0].topology
        return f"{slices[1]}x{chip}:{'x'.join(map(str, inner.shape))}" if isinstance(inner, Torus) else name
    if nodes and int(nodes[1]) > 1 and int(nodes[1]) * int(nodes[2]) == gpus:
        domain_chips, per_node = template.tier[0].chips, int(nodes[2])
        if domain_chips is not None and domain_chips == template.node and per_node < domain_chips:
            return {"base": name, "domain": per_node} | _outer(name, fabric)
    return {"base": name} | _outer(name, fabric) if fabric and _outer(name, fabric) else name


def _fabric(cells: RowCells, per_node: int) -> float:
    """Scale-out Gbit/s of one chip where the row's interconnect states it; 0 where it does not."""
    text = cells.text("interconnect")
    for pattern, owner in WORDS["fabrics"]:
        match = re.search(pattern, text)
        if match:
            rate = math.prod(float(number) for number in match.groups())
            return rate / per_node if owner == "node" else rate
    return 0.0


def _outer(name: str, fabric: float) -> JsonObject:
    """The outer tier at the stated rate; nothing when the system has none or the rate is the catalog's own."""
    tiers = system(name).tiers
    if not fabric or len(tiers) < 2 or isinstance(tiers[0].topology, Torus):
        return {}
    outer = tiers[1]
    if outer.bandwidth is not None and abs(outer.bandwidth.value - fabric * 1e9 / 8) < 1e6:
        return {}
    return {"tier": {outer.name: {"bandwidth": f"{fabric:g} Gbit/s"}}}
