"""Write the reference of targets: for each, which option carries which decision and what it cannot express.

Many plans are exported, each differing from a plain one in one thing, and the ledger of every export is read.
Decisions about the model are counted and not listed: an export names the model, or writes each of its dimensions.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import ridgeline
from ridgeline.core.errors import InputError
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.registry import SERVE, TARGETS
from tools.pages import DOCS, write_or_check

PAGE = DOCS / "concepts" / "targets.md"
MARK = "<!-- below this line: python -m tools docs targets -->\n"
ENGINE = {
    "megatron": "megatron-core",
    "torchtitan": "torchtitan",
    "maxtext": "maxtext",
    "verl": "megatron-core",
    "accelerate": "torch-eager",
    "llamafactory": "torch-eager",
    "axolotl": "torch-eager",
    "torchtitan-preset": "torchtitan",
    "nxd-training": "nxd",
}
SYSTEM = {
    "mindspeed": "16xascend-910c",
    "primus": "16xmi355x",
    "nxd-training": "16xtrn2",
}  # where the target does not run on the chips of the rest
MODELS = (
    "llama3-8b",
    "gpt3-6.7b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "gpt-oss-20b",
    "gemma3-12b",
    "nemotron-h-8b",
    "llama4-scout",
)
BASE: dict[str, Any] = {"tp": 2, "cp": 2, "pp": 2, "shard": "zero1"}
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {"shard": "none"},
    {"shard": "zero2"},
    {"shard": "zero3"},
    {"shard_degree": 2},
    {"schedule": {"name": "interleaved", "chunks": 2}},
    {"schedule": "gpipe"},
    {"schedule": "zero-bubble-h1"},
    {"schedule": "zbv"},
    {"schedule": "dualpipe-v"},
    {"placement": "uneven"},
    {"cp_kind": "all-to-all"},
    {"tp": 1, "pp": 1, "cp_kind": "all-to-all", "shard": "zero3"},
    {"sequence_parallel": False},
    {"recompute": "full"},
    {"recompute": {"kind": "full", "layers": 1}},
    {"recompute": {"kind": "full", "layers": [2, 1], "rest": "selective"}},
    *(
        {"recompute": {"kind": "selective", "parts": [part]}}
        for part in ("attention", "norm", "activation", "mlp", "mixer")
    ),
    {"recompute": {"kind": "selective", "parts": ["alternate"]}},
    {"offload": "optimizer"},
    {"offload": "activations", "pp": 1},
    *({"precision": name} for name in ("fp16", "fp32", "fp8", "mxfp8", "nvfp4")),
    {"precision": {"name": "fp8", "scaling": "row"}},
    {"precision": {"name": "bf16", "gradients": "bf16"}},
    {"graph": "partial"},
    {"graph": "full"},
    {"attention": "unfused"},
    {"compiled": True},
    {"launch_blocking": True},
    *(
        {"overlap": {name: state}}
        for name in ("grad-reduce", "param-gather", "tp", "pp", "cp")
        for state in (True, False)
    ),
)
WORKLOADS: tuple[dict[str, Any], ...] = (
    {"optimizer": "muon"},
    {"optimizer": "sgd"},
    {"optimizer": {"name": "adamw", "states": "bf16"}},
    {"task": "finetune"},
    {"task": "lora", "lora": {"rank": 16}},
)


SERVED: tuple[dict[str, Any], ...] = (
    {},
    {"precision": {"compute": "fp8-e4m3", "weights": "fp8-e4m3", "kv": "fp8-e4m3", "scaling": "block"}},
    {"precision": {"weights": "int8"}},
    {"precision": {"kv": "int8"}},
    {"graph": "none"},
    {"graph": "partial"},
    {"compiled": True},
    {"speculation": {"draft": "mtp", "draft_tokens": 2}},
    {"speculation": {"draft": "eagle", "draft_tokens": 2}},
    *({"serving": {"replicas": 4, "router": name}} for name in ("round-robin", "least-loaded", "prefix-aware")),
    {"serving": {"autoscale": {"max_replicas": 4, "target_ongoing_requests": 8}, "mtbf": "100 h"}},
    {"serving": {"pools": [{"role": "prefill", "replicas": 1}, {"role": "decode", "replicas": 2}]}},
)
KNOBS: dict[str, dict[str, Any]] = {
    "vllm": {"max_num_seqs": 64, "max_num_batched_tokens": 4096, "max_model_len": 8192, "async_scheduling": True,
             "gpu_memory_utilization": 0.8, "num_gpu_blocks_override": 999, "version": "0.19.0"},
    "sglang": {"chunked_prefill_size": 4096, "max_running_requests": 64, "max_total_tokens": 9999,
               "mem_fraction_static": 0.8, "disable_radix_cache": True},
}  # fmt: skip
LOADS: tuple[dict[str, Any], ...] = (
    {"arrivals": {"kind": "gamma", "rate": 3, "burstiness": 0.5}, "prefix": 64, "range_ratio": 0.5},
    {"arrivals": {"kind": "constant", "rate": 3}, "max_new_tokens": 512},
    {"arrivals": {"kind": "closed-loop", "concurrency": 8, "think": "1 s"}},
    {"arrivals": {"kind": "sessions", "rate": 1}},
    {"objective": {"ttft": "500 ms", "tpot": "30 ms", "e2e": "8 s", "itl": "50 ms"}},
)


def served_samples(id: str) -> Iterator[Scenario]:
    """Deployments that differ in one thing each."""
    engine = "vllm" if id == "dynamo" else id
    knobs = {"serving": {engine: KNOBS[engine]}} if engine in KNOBS else {}
    for change in (*SERVED, knobs):
        yield from serve_scenario("llama3-8b", engine, {"tp": 2, **change}, {})
    for load in LOADS:
        yield from serve_scenario("llama3-8b", engine, {"tp": 2}, load)
    for change in ({"ep": 4}, {"ep": 8}, {"ep": 4, "moe_dispatch": "deepep"}, {"ep": 4, "moe_dispatch": "hybridep"}):
        yield from serve_scenario(
            "qwen3-30b-a3b", engine, {"tp": 2, "serving": {"data_parallel_size": 2}, **change}, {}
        )


def serve_scenario(model: str, engine: str, plan: dict[str, Any], load: dict[str, Any]) -> Iterator[Scenario]:
    """The scenario, if it is possible."""
    work = {"kind": "serve", "arrivals": {"kind": "poisson", "rate": 3}, "isl": 512, "osl": 64, **load}
    table = {"model": model, "system": "8xb200-sxm", "workload": work, "plan": {"engine": engine, **plan}}
    try:
        yield ridgeline.scenario(table)
    except InputError:
        return


def samples(id: str) -> Iterator[Scenario]:
    """Plans that differ in one thing each, and models of every kind."""
    engine, system = ENGINE.get(id, id), SYSTEM.get(id, "16xb200-sxm")
    for change in CHANGES:
        yield from train_scenario("llama3-8b", {**BASE, **change}, {}, engine, system)
    for change in WORKLOADS:
        yield from train_scenario("llama3-8b", BASE, change, engine, system)
    for model in MODELS:
        yield from train_scenario(model, {"shard": "zero1"}, {}, engine, system)
    for change in (
        {},
        {"moe_dispatch": "deepep"},
        {"moe_dispatch": "hybridep"},
        {"etp": 2},
        {"overlap": {"moe": True}},
    ):
        yield from train_scenario("qwen3-30b-a3b", {"tp": 2, "ep": 4, **change}, {}, engine, system)


def train_scenario(
    model: str, plan: dict[str, Any], work: dict[str, Any], engine: str, system: str
) -> Iterator[Scenario]:
    """The scenario, if it is possible."""
    plan = {"engine": engine, **plan}
    if plan.get("placement") == "uneven":
        plan["placement"] = [15, 17]
    table = {
        "model": model,
        "system": system,
        "workload": {"seq": 4096, "global_batch": 64, **work},
        "plan": plan,
    }
    try:
        yield ridgeline.scenario(table)
    except InputError:
        return


FOLDED = ("plan.serving.autoscale", "plan.serving.pools", "workload.lora", "model")
OPTIONS_SHOWN = 3  # options of one decision
WORDS_OF_A_SECTION = 15  # what a shared list has to save


def general(path: str) -> str:
    """The decision without the number of a block; parts of one subject as one."""
    for fold in FOLDED:
        if path.startswith(f"{fold}."):
            return f"{fold}.*"
    return ".".join("*" if part.isdigit() else part for part in path.split("."))


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerLines:
    """Lines of the page: what targets express, and what they always lose."""

    expressed: tuple[str, ...]
    lost: tuple[str, ...]

    def section(self, title: str, text: str = "") -> str:
        """The lines below a heading."""
        lines = [f"## {title}", "", *([text, ""] if text else []), *self.expressed]
        lines += [""] if self.expressed and self.lost else []
        lines += ["Lost:", "", *self.lost] if self.lost else []
        return "\n".join(lines) + "\n"

    def without(self, shared: Iterable[str]) -> LedgerLines:
        """The lines that are not among the shared ones."""
        return LedgerLines(
            expressed=tuple(line for line in self.expressed if line not in shared),
            lost=tuple(line for line in self.lost if line not in shared),
        )


def target_lines(id: str) -> LedgerLines:
    """What one target expresses, and what it always loses: decisions by their options, and by the commonest reason."""
    target = TARGETS[id]
    options_of: dict[str, dict[str, None]] = {}
    reasons_of: dict[str, Counter[str]] = {}
    for scenario in served_samples(id) if id in SERVE else samples(id):
        ledger = target.write(scenario)
        for path, option in ledger.expressed.items():
            options_of.setdefault(general(path), {})[option] = None
        for part in ledger.lost:
            why = part.why.partition("; written:")[0]  # the cost differs with every plan
            reasons_of.setdefault(general(part.path), Counter())[why] += 1
    by_options: dict[str, list[str]] = {}
    for path, options in sorted(options_of.items()):
        by_options.setdefault(_name_list(options, OPTIONS_SHOWN), []).append(path)
    by_reason: dict[str, list[str]] = {}
    for path, reasons in sorted(reasons_of.items()):
        if path in options_of:  # lost for some values: the ledger of an export names them
            continue
        by_reason.setdefault(reasons.most_common(1)[0][0], []).append(path)
    return LedgerLines(
        expressed=tuple(f"- {_name_list(paths, len(paths))}: {options}" for options, paths in by_options.items()),
        lost=tuple(f"- {_name_list(paths, len(paths))}: {why}" for why, paths in by_reason.items()),
    )


def shared_lines(lines_of: dict[str, LedgerLines]) -> dict[tuple[str, ...], LedgerLines]:
    """Lines that several targets have alike, by those targets, where one list saves words."""
    owners: dict[str, list[str]] = {}
    for id, lines in lines_of.items():
        for line in (*lines.expressed, *lines.lost):
            owners.setdefault(line, []).append(id)
    groups: dict[tuple[str, ...], set[str]] = {}
    for line, ids in owners.items():
        groups.setdefault(tuple(ids), set()).add(line)
    words = {ids: sum(len(line.split()) for line in lines) for ids, lines in groups.items()}
    return {
        ids: LedgerLines(
            expressed=tuple(line for line in lines_of[ids[0]].expressed if line in lines),
            lost=tuple(line for line in lines_of[ids[0]].lost if line in lines),
        )
        for ids, lines in sorted(groups.items())
        if len(ids) > 1 and (len(ids) - 1) * words[ids] > WORDS_OF_A_SECTION
    }


def page_sections() -> Iterator[str]:
    """A section for each group of targets with lines in common, and for each target the lines of its own."""
    lines_of = {id: target_lines(id) for id in sorted(TARGETS)}
    groups = shared_lines(lines_of)
    for ids, lines in groups.items():
        yield lines.section(", ".join(ids))
    for id, lines in lines_of.items():
        target = TARGETS[id]
        shared = {line for ids, group in groups.items() if id in ids for line in (*group.expressed, *group.lost)}
        text = f"{target.title} {target.version}: {target.source.partition(', recorded')[0]}."
        yield lines.without(shared).section(id, text)


def _name_list(words: Iterable[str], most: int) -> str:
    names = [f"`{word}`" for word in words]
    return ", ".join(names[:most]) + (f" (+{len(names) - most})" if len(names) > most else "")


def run(arguments: argparse.Namespace) -> int:
    """Write or check the page below its mark."""
    head = PAGE.read_text(encoding="utf-8").partition(MARK)[0]
    text = head + MARK + "\n" + "\n".join(page_sections())
    return write_or_check(PAGE, text, check=arguments.check, command="docs targets")
