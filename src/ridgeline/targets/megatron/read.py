"""Turn a script or a table of Megatron-LM's arguments into a scenario's settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import Table
from ridgeline.models.load import model as load_model
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.megatron.collect import Given, collect, other_work, speaking
from ridgeline.targets.megatron.names import ID
from ridgeline.targets.megatron.read_generation import decoding, decoding_plan
from ridgeline.targets.megatron.read_model import read_model
from ridgeline.targets.megatron.read_plan import Seen, read_plan, read_workload
from ridgeline.targets.megatron.unread import changes_step
from ridgeline.targets.megatron.vocabulary import named_by_path
from ridgeline.targets.option_reader import OptionReader
from ridgeline.targets.options import Options, options
from ridgeline.targets.run_files import around
from ridgeline.targets.target import DIALECTS, Files, Imported, Unread

NOT_PRICED = "decides nothing that a scenario holds"
CHANGES = "changes the step, and a scenario has no place for it"
# old names of options, which scripts still use
OLDER = {
    "model-parallel-size": "tensor-model-parallel-size",
    "batch-size": "micro-batch-size",
    "fp8-hybrid": "fp8-format",
    "use-distributed-optimizer-v2": "use-distributed-optimizer",
    "num-layers-per-virtual-stage": "num-layers-per-virtual-pipeline-stage",
    "target-expert-parallel-size": "expert-model-parallel-size",
    "pipe-parallel-size": "pipeline-model-parallel-size",
    "num-key-value-heads": "num-query-groups",
    "n-head-kv": "num-query-groups",
    "sliding-window": "window-size",
    "cpu-optimizer": "optimizer-cpu-offload",
    "overlapped-distributed-optimizer": "use-distributed-optimizer",
    "causal-lm": "untie-embeddings-and-output-weights",
}
# of Pai-Megatron-Patch's program, whose pattern means other layers than Megatron-Core's
QWEN3_NEXT = {"num-layers": 96, "hidden-size": 2048, "num-experts": 512, "moe-router-topk": 10}
GROUPED = ("num-key-value-heads", "n-head-kv")  # options that switch on what they count
# a program of Pai-Megatron-Patch that builds a Llama whatever its options say
LLAMA = {"swiglu": True, "normalization": "RMSNorm", "disable-bias-linear": True}
LLAMA |= {"untie-embeddings-and-output-weights": True}


def read(files: Files) -> Imported:
    """The settings of a script, or of a YAML table of arguments."""
    return settings_of(with_model(collect(files), files), ID, "megatron-core")


def with_model(found: Given, files: Files) -> Given:
    """The model and the sequence that the caller names, in place of what the files spell."""
    place = around(files)
    named = ({"model": place.model} if place.model else {}) | ({"seq-length": place.seq} if place.seq else {})
    return replace(found, options={**found.options, **named}) if named else found


def settings_of(found: Given, target: str, engine: str, names: Mapping[str, str] | None = None) -> Imported:
    """Options in Megatron's words as settings; `names` gives back what another dialect calls them."""
    generates = bool(other_work(found))
    said = {OLDER.get(name, name): value for name, value in found.options.items() if name != "model"}
    if any(name in found.options for name in GROUPED):
        said["group-query-attention"] = True
        said.pop("attention-head-type", None)
    if said.pop("RMSNorm", False):  # of Megatron-LLaMA, before normalization had a name
        said.setdefault("normalization", "RMSNorm")
    if said.pop("disable-bias-linear-fc", False) and said.pop("disable-bias-attn-fc", False):
        said |= {"disable-bias-linear": True, "add-qkv-bias": True}
    if "intermediate-size" in said and "ffn-hidden-size" not in said and "model" not in found.options:
        said = _by_program(said, found)
    if "qwen3_next" in found.program and all(said.get(name) == size for name, size in QWEN3_NEXT.items()):
        found = replace(found, options={**found.options, "model": found.options.get("model", "qwen3-next-80b-a3b")})
    if said.get("model-type") == "mamba" or re.search(r"(train|pretrain)_mamba", found.program):
        said.setdefault("is-hybrid-model", True)
    reader = OptionReader(Table(data=said, source=found.source))
    if "model" in found.options:  # named rather than spelled
        model: str | Mapping[str, Any] = found.options["model"]
        read_model_quietly(reader, found.hint)
    else:
        model = read_model(reader, found.hint or named_by_path(found.path))
    spec = load_model(model)
    workload, replica = decoding(reader) if generates else (read_workload(reader), None)
    seen = Seen(engine=engine, layers=spec.layers, experts=has_experts(spec), world=found.world)
    plan = read_plan(reader, seen)
    if generates:
        plan = decoding_plan(plan)
    known = options(target if target not in ("primus", *DIALECTS) else ID)
    unread = tuple(_renamed(part, known, names or {}) for part in reader.unread({}))
    per_rank = replica or (None if "global_batch" in workload else plan["microbatch"])
    notes = (*(f"left out: {note}" for note in found.notes), *reader.assumptions)
    return Imported(
        target=target,
        settings={"model": model, "workload": workload, "plan": plan},
        unread=unread,
        assumptions=notes,
        per_rank=per_rank,
        chips=found.world,
    )


def _by_program(said: dict[str, Any], found: Given) -> dict[str, Any]:
    """The options of a run whose program builds its layers by itself, where it is known what it builds."""
    if "starcoder" in found.program:  # GPT-BigCode: one key and value head, the rest as Megatron's own GPT
        return {**said, "attention-head-type": "multiquery", "ffn-hidden-size": said["intermediate-size"]}
    if not re.search(r"llama|baichuan", f"{found.program} {found.path}".lower()):
        given = f"layers that {(found.program or found.path).split('/')[-1][:60]} builds"
        expected, todo = "layers that the options spell", "name the model with --model"
        raise InputError(Problem(path="--intermediate-size", given=given, expected=expected, todo=todo))
    positions = {"position-embedding-type": "alibi" if said.pop("use-alibi-mask", False) else "rope"}
    return {**said, **LLAMA, **positions, "ffn-hidden-size": said["intermediate-size"]}


def read_model_quietly(reader: OptionReader, hint: str) -> None:
    """Note the model's options as read where the caller names the model himself."""
    before, notes = list(reader.problems), list(reader.assumptions)
    with suppress(InputError):
        read_model(reader, hint)
    reader.problems, reader.assumptions = before, notes


def _renamed(part: Unread, known: Options, names: Mapping[str, str]) -> Unread:
    own = names.get(part.option, part.option)
    documented = own in known.flags or own in known.values or "." in own
    why = NOT_PRICED if documented else f"not among the options recorded of {known.target} {known.version}"
    matters = changes_step(part.option, part.value)
    value = "" if part.value == "True" else part.value
    return replace(part, option=own, value=value, why=CHANGES if matters else why, matters=matters)


def recognises(files: Files) -> bool:
    """Whether a script or a table speaks of --num-layers."""
    return any(True for _ in speaking(files))
