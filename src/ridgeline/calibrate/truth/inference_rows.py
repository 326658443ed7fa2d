"""Turn a row of an inference table into an Inference: a serving scenario, the closed batch it ran, what was read off.

    prefill_ms, first_token_latency_ms     one batch of prompts
    decode_step_ms                         one step of a batch at a key-value length
    static batch                           prompts of a whole batch, then its decode steps
    max-load (inf rate)                    all requests at once: in-flight batching within memory and token limits
    ttft_ms, tpot_ms at a concurrency      a closed loop with so many requests in flight

A row that leaves open what its answer hangs on (lengths, workers of a disaggregated deployment) is skipped with that.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from ridgeline.calibrate.truth.rows import WORDS, Row, RowCells, Skipped, Unusable, read_or_skip
from ridgeline.core.documents import JsonObject
from ridgeline.core.dtype import dtype
from ridgeline.core.errors import InputError
from ridgeline.hardware.load import CHIPS
from ridgeline.models.load import MODELS
from ridgeline.models.params import count
from ridgeline.models.spec import ModelSpec, Moe
from ridgeline.plan.scenario import Scenario
from ridgeline.plan.scenario_file import assemble

Asked = Literal["seconds", "step", "ttft", "tpot", "throughput"]
METRICS: Mapping[str, tuple[Asked, float, str]] = WORDS["inference_metrics"]
"""What a metric asks, its unit against seconds, and what a throughput is counted over."""
ENGINES: Sequence[tuple[str, str]] = WORDS["serving_engines"]
"""The engine's catalog id by a word of `engine_version`."""
CORES_OF = "neuronx"  # engine whose tensor ranks are cores, two of a chip
SUFFIXES = re.compile(r"(-(nv)?fp[48]|-bf16|-instruct|-hf|[ -]0528|-99\.9| \(profile\))+$", re.IGNORECASE)
NAMES = MappingProxyType({"deepseek-v3/r1": "deepseek-v3", "deepseek-r1/v3": "deepseek-v3"})
# TensorRT-LLM attends to all tokens unless it is told a window
UNWINDOWED = MappingProxyType({"mistral-7b": "mistral-7b-v0.3"})
FP4_CHIPS = ("blackwell",)
MANY = 1500  # requests of a run at infinite rate, of lengths for which the source prints none
# mean prompt and output of MLPerf Inference's data sets (OpenOrca, LongBench and others, CNN/DailyMail); assumed
DATASETS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {"llama2-70b": (294.0, 294.0), "llama3.1-405b": (9428.0, 684.0), "llama3.1-8b": (778.0, 73.0)}
)
OFFLINE = "Offline"  # MLPerf's scenario at maximum load; the others are under latency limits
FREE = 0.75  # of a chip's memory that weights may take where nobody says how many ranks share them
WAVES = 10  # requests of a closed loop for each one in flight, as InferenceMAX runs it
SPREAD = 0.8  # shortest prompt and output of such a loop against the longest, which is what the table prints


@dataclass(frozen=True, slots=True, kw_only=True)
class InferenceRow:
    """A measured serving run.

    asked       what was read off it; `scale` its unit against seconds
    over        of a throughput: the whole deployment, or one chip
    lengths     requests, prompt, output; `spread`: shortest against longest, 1 where all are alike
    in_flight   requests at once; 0: as many as memory and the engine hold
    static      nobody joins before all have ended
    disagg      decodes alone: prompts are read by other chips
    median      the middle of the gaps between tokens was measured, not their mean
    """

    row: Row
    scenario: Scenario
    measured: float
    asked: Asked
    scale: float
    over: str
    requests: int
    isl: int
    osl: int
    in_flight: int = 0
    spread: float = 1.0
    static: bool = False
    disagg: bool = False
    median: bool = False
    notes: tuple[str, ...] = ()

    @property
    def group(self) -> str:
        """Rows of one chip, model, precision, engine and degrees: one configuration, at several lengths or loads.

        Own rows are one configuration all together, so that each of them is its own group.
        """
        if self.kind == "own":
            return self.row.id
        mesh = self.scenario.plan.mesh
        parts = (self.scenario.system.chip.id, self.scenario.model.id, self.scenario.plan.precision.weights.id)
        return "/".join((*parts, self.scenario.engine.id, f"tp{mesh.tp}pp{mesh.pp}dp{mesh.dp}ep{mesh.ep}"))

    @property
    def kind(self) -> str:
        """own, phase, static, max-load or concurrency: groups with targets of their own."""
        if self.row.id.startswith("h200inf"):
            return "own"
        if self.asked == "throughput" and self.in_flight == 0:  # MLPerf offline among them
            return "max-load"
        return "static" if self.static else "concurrency"


def inference_of(row: Row) -> InferenceRow | Skipped:
    """What a row measured, or why it cannot be predicted."""
    return read_or_skip(row, _inference)


def _inference(cells: RowCells) -> InferenceRow:
    metric = cells.text("metric")
    if metric not in METRICS:
        raise Unusable("metric", f"{metric or 'blank'} is not predicted; one of {', '.join(METRICS)} is")
    metric_kind, scale, over = METRICS[metric]
    value = cells.number("value")
    if value is None:
        raise Unusable("value", "blank: give the measured figure")
    engine, chip = _engine(cells), _chip(cells)
    model = _model(cells, engine)
    isl, osl = (float(size) if (size := cells.size(name)) else None for name in ("isl", "osl"))
    offline = cells.text("concurrency_batch") == OFFLINE and isl is None and model.id in DATASETS
    if offline:
        isl, osl = DATASETS[model.id]
        cells.note(f"lengths {isl:g} and {osl:g}: means of MLPerf's data set, from general knowledge")
    if isl is None:
        raise Unusable("isl", "blank: the prompt's length decides the answer; give isl and osl")
    if osl is None and metric_kind != "ttft":
        raise Unusable("osl", "blank: give the output tokens of a request")
    degrees = _fewest_ranks(cells, model, engine, chip) if offline else _degrees(cells, model, engine, metric_kind)
    scenario, notes = _scenario(cells, (model, engine, chip), degrees)
    load = _load(cells, metric_kind, metric, int(isl), int(osl or 1), engine, degrees)
    return InferenceRow(
        row=cells.row, scenario=scenario, measured=value, asked=metric_kind, scale=scale, over=over,
        median="p50" in metric, notes=(*notes, *cells.notes), **load,
    )  # fmt: skip


def _model(cells: RowCells, engine: str) -> ModelSpec:
    name = cells.text("model").strip()
    candidates = [name, name.split("/")[-1] if name.count("/") == 1 and name.lower() not in NAMES else name]
    candidates += [SUFFIXES.sub("", candidate) for candidate in candidates]
    candidates.append(NAMES.get(candidates[-1].lower(), ""))
    for candidate in candidates:
        model_id = MODELS.resolve(candidate) if candidate else None
        if model_id is not None:
            return MODELS[UNWINDOWED.get(model_id, model_id) if engine == "tensorrt-llm" else model_id]
    raise Unusable("model", f"{name!r} is not in the catalog; see `ridgeline show models`")


def _engine(cells: RowCells) -> str:
    written = cells.text("engine_version").lower()
    for word, id in ENGINES:
        if word in written:
            return id
    raise Unusable("engine_version", f"{written or 'blank'!r} names no serving engine of the catalog")


def _chip(cells: RowCells) -> str:
    chip = CHIPS.resolve(cells.row.chip)
    if chip is None:
        raise Unusable("x_chip", f"{cells.row.chip or 'blank'!r} is not in the catalog; see `ridgeline show chips`")
    return chip


@dataclass(frozen=True, slots=True, kw_only=True)
class RowDegrees:
    """How a replica is split, and how many there are."""

    tp: int
    pp: int = 1
    dp: int = 1
    ep: int = 1
    replicas: int = 1
    decode_only: bool = False

    @property
    def chips(self) -> int:
        """Chips of one replica."""
        return self.tp * self.pp * self.dp


def _fewest_ranks(cells: RowCells, model: ModelSpec, engine: str, chip: str) -> RowDegrees:
    """The fewest tensor ranks whose memory holds the weights and leaves a quarter, as many replicas as there are."""
    chips = int(cells.number("n") or 1)
    weight_bytes = dtype(_precision(cells, engine, chip, model.id)["weights"]).bytes_per_element
    memory = CHIPS[chip].need("hbm.capacity").value
    fits = [tp for tp in (1, 2, 4, 8, 16) if count(model).total * weight_bytes < FREE * memory * tp and chips % tp == 0]
    if not fits:
        raise Unusable("n", f"{model.id} does not fit on {chips} of {chip}")
    cells.note(f"tp = {fits[0]}: the fewest ranks that hold the weights, since none is stated")
    return RowDegrees(tp=fits[0], replicas=max(1, chips // fits[0]))


DECODERS = re.compile(r"D (\d+)x\(tp(\d+) pp(\d+) dp(\d+) ep(\d+)")


def _degrees(cells: RowCells, model: ModelSpec, engine: str, asked: Asked) -> RowDegrees:
    notes = cells.text("notes")
    if notes.startswith("disagg"):
        return _disaggregated_degrees(notes, asked)
    tp, pp, ep, n = (cells.size(name) or None for name in ("tp", "pp", "ep", "n"))
    if tp is not None and engine == CORES_OF:
        return RowDegrees(tp=max(1, int(tp) // 2))  # two cores a chip
    if tp is None:
        raise Unusable("tp", "blank: give the tensor-parallel ranks of a replica")
    tp, pp, ep = int(tp), int(pp or 1), int(ep or 1)
    ranks = int(n or tp * pp)
    dp = max(1, ranks // (tp * pp))
    moe = any(isinstance(block.ffn, Moe) for block in model.blocks)
    if moe and ep > 1 and ep * ep == ranks:
        cells.note(f"{ep} chips: n counts tensor and attention-data-parallel ranks of the same chips")
        return RowDegrees(tp=1, pp=pp, dp=ep, ep=ep)
    if not moe:
        return RowDegrees(tp=tp, pp=pp, replicas=dp)
    if "DEP" in notes and ep > 1:
        return RowDegrees(tp=1, pp=pp, dp=ep, ep=ep)
    if tp > 1 and engine == "tensorrt-llm" and "PyTorch" in cells.text("engine_version"):
        cells.note("attention data parallelism and whole experts: as the source runs mixtures of experts")
        return RowDegrees(tp=1, pp=pp, dp=tp, ep=tp)
    return RowDegrees(tp=tp, pp=pp, dp=dp, ep=min(max(ep, 1), tp * dp))


def _disaggregated_degrees(notes: str, asked: Asked) -> RowDegrees:
    """The decode workers of a disaggregated deployment."""
    match = DECODERS.search(notes)
    if asked != "tpot":
        raise Unusable("notes", "the first token of a disaggregated deployment waits for its prefill workers' queue")
    if match is None:
        raise Unusable("notes", "disaggregated, and how many decode workers there are is not stated")
    workers, tp, pp, dp, ep = map(int, match.groups())
    return RowDegrees(tp=tp, pp=pp, dp=dp, ep=min(max(ep, 1), tp * dp), replicas=workers, decode_only=True)


def _precision(cells: RowCells, engine: str, chip: str, model: str) -> dict[str, str]:
    """Formats of weights, products and cache. A format that a chip does not multiply in is stored in alone."""
    text = cells.text("precision").lower()
    blackwell = CHIPS[chip].family.startswith(FP4_CHIPS)
    kv = "fp8" if engine == "tensorrt-llm" else "bf16"
    if model.startswith("gpt-oss"):  # published in mxfp4, whatever its cache and products are
        return {"compute": "fp8" if blackwell else "bf16", "weights": "mxfp4", "kv": kv}
    if "fp4" in text:
        return {"compute": "nvfp4" if blackwell else "bf16", "weights": "nvfp4", "kv": kv}
    for integer in ("int4", "int8"):
        if integer in text:
            return {"compute": "bf16", "weights": integer}
    if "fp8" in text:
        return {"compute": "fp8", "weights": "fp8", "kv": kv}
    if any(word in text for word in ("bf16", "fp16", "mixed")):
        return {"compute": "bf16", "weights": "bf16"}
    raise Unusable("precision", f"{text or 'blank'!r}: give fp16, bf16, fp8, fp4, int8 or int4")


STATIC = "tensorrt-llm-static"
# groups of query heads that its decode kernels multiply on matrix units for: XQA came after 0.5, for groups of 8
XQA_SINCE = 6
XQA_GROUPS = [8]


def _generation(written: str, engine: str) -> str:
    """What calibrations know a version by, where kernels changed between: TensorRT-LLM's static batches of 2023, and
    its built engines before the PyTorch backend."""
    minor = _minor(written)
    if engine != "tensorrt-llm" or "PyTorch" in written or minor < 0:
        return ""
    return STATIC if minor < 12 else "tensorrt-llm-engine"


def _minor(written: str) -> int:
    """n of TensorRT-LLM 0.n; -1 for other versions."""
    match = re.search(r"tensorrt-llm 0\.(\d+)", written.lower())
    return int(match.group(1)) if match else -1


def _scenario(
    cells: RowCells, named: tuple[ModelSpec, str, str], degrees: RowDegrees
) -> tuple[Scenario, tuple[str, ...]]:  # fmt: skip
    model, engine, chip = named
    plan: JsonObject = {
        "tp": degrees.tp, "pp": degrees.pp, "dp": degrees.dp, "ep": degrees.ep, "engine": engine,
        "precision": {"activations": "bf16", **_precision(cells, engine, chip, model.id)},
    }  # fmt: skip
    if "mtp3" in cells.text("notes").lower():
        plan["speculation"] = {"draft_tokens": 3, "acceptance": 0.8}
        cells.note("three drafted tokens, 0.8 of them accepted")
    generation = _generation(cells.text("engine_version"), engine)
    if generation:
        plan["graph"] = "none"  # built engines issue their kernels one by one unless told otherwise
    table: JsonObject = {"engine": {"base": engine, "calibrated_as": generation}} if generation else {}
    if generation == STATIC:
        groups = XQA_GROUPS if _minor(cells.text("engine_version")) >= XQA_SINCE else []
        table["engine"]["serves"] = {"shared_groups": groups}
        cells.note("decode kernels of its time run on vector units, but for groups of 8 query heads (XQA, since 0.6)")
    table |= {
        "model": model.id, "system": f"{degrees.chips}x{chip}", "plan": plan,
        "workload": {"kind": "decode", "context": 1024, "batch": degrees.dp},
    }  # fmt: skip
    try:
        built, problems = assemble(table)
    except InputError as wrong:
        raise Unusable("x_chip", str(wrong)) from None
    if engine == CORES_OF:  # it pads heads that tensor ranks do not divide
        problems = tuple(problem for problem in problems if problem.path != "plan.tp")
    if built is None or problems:
        raise Unusable("tp", "; ".join(str(problem) for problem in problems))
    return built, built.assumptions


def _load(
    cells: RowCells, asked: Asked, metric: str, isl: int, osl: int, engine: str, degrees: RowDegrees
) -> JsonObject:  # fmt: skip
    """Requests, lengths and how many are in flight, of one scheduler: a replica's, or one attention rank's."""
    written, many = cells.text("concurrency_batch").strip(), degrees.replicas * degrees.dp
    if asked == "step" or metric in ("prefill_ms", "first_token_latency_ms"):
        batch = _batch(written)
        return {"requests": batch, "isl": isl, "osl": 1, "in_flight": batch, "static": True}
    if written == OFFLINE:
        return {"requests": max(1, WAVES * MANY // (many * 4)), "isl": isl, "osl": osl}
    if "max-load" in written:
        total = WORDS["requests"].get(f"{isl}x{osl}", MANY)
        if f"{isl}x{osl}" not in WORDS["requests"]:
            cells.note(f"{MANY} requests: not stated for these lengths")
        return {"requests": max(1, total // many), "isl": isl, "osl": osl}
    batch = max(1, round(_batch(written) / many))
    written_engine = cells.text("engine_version")
    static = "static" in cells.text("notes") or "static" in written_engine or engine == CORES_OF
    if static or (asked == "throughput" and batch == 1):
        return {"requests": batch, "isl": isl, "osl": osl, "in_flight": batch, "static": True}
    if asked == "throughput":
        return {"requests": batch * 3, "isl": isl, "osl": osl, "in_flight": batch}
    cells.note(
        f"a closed loop of {WAVES} requests for each one in flight, lengths {SPREAD:.0%} to 100 % of isl and osl"
    )
    load = {"requests": batch * WAVES, "isl": isl, "osl": osl, "in_flight": batch, "spread": SPREAD}
    return {**load, "disagg": degrees.decode_only}


def _batch(written: str) -> int:
    if not written.isdigit() or not 0 < int(written) <= 1_000_000:
        raise Unusable("concurrency_batch", f"{written or 'blank'!r}: give the requests in flight as a number")
    return int(written)
