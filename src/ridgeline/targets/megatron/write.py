"""Turn a Scenario into Megatron-LM's launch script and list of arguments."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.launch import Command, comment, header, scripts
from ridgeline.targets.ledger import Fixed, Ledger, Piece, Say, admitted, exported, gather
from ridgeline.targets.megatron.names import ID
from ridgeline.targets.megatron.write_hybrid import is_hybrid
from ridgeline.targets.megatron.write_model import MODEL as SPEC
from ridgeline.targets.megatron.write_model import Writer
from ridgeline.targets.megatron.write_numerics import numerics
from ridgeline.targets.megatron.write_plan import PLAN
from ridgeline.targets.options import options
from ridgeline.targets.target import Export
from ridgeline.targets.yaml_text import yaml_text

MODEL: tuple[Writer, ...] = (*SPEC, numerics)
ALLOCATOR = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"  # how many queues lead from a host to its chip
CHECKOUT = "# MEGATRON_LM is a checkout of NVIDIA/Megatron-LM, as a whole path or below this folder.\n"
# what a first run needs beside the decisions: made-up data, few steps, throughput in the log
RUN: Mapping[str, Any] = MappingProxyType(
    {
        "--mock-data": True,
        "--tokenizer-type": "NullTokenizer",
        "--train-iters": 50,
        "--lr": "1.0e-4",
        "--attention-dropout": 0.0,
        "--hidden-dropout": 0.0,
        "--log-interval": 1,
        "--log-throughput": True,
        "--eval-iters": 0,
        "--manual-gc": True,
        "--manual-gc-interval": 100,
    }
)


def pieces(scenario: Scenario, writers: tuple[Writer, ...] = (*MODEL, *PLAN)) -> Iterator[Piece]:
    """What these writers say of a scenario in Megatron's words: all of it, unless fewer are named."""
    for writer in writers:
        yield from writer(scenario)


def write(scenario: Scenario) -> Export:
    """The launch scripts and the arguments of pretrain_gpt.py, or of pretrain_hybrid.py for layers of a pattern."""
    engine = Fixed("plan.engine", "megatron-core", "the software that runs it, whatever the prediction assumed")
    model = list(admitted(pieces(scenario, MODEL), options(ID)))
    found = gather(decisions_of(scenario), [engine, *model, *admitted(pieces(scenario, PLAN), options(ID))])
    environment = ALLOCATOR | queues(
        fsdp="--use-megatron-fsdp" in found.options, experts="--overlap-moe-expert-parallel-comm" in found.options
    )
    environment |= graph_environment(found.options.get("--cuda-graph-impl"))
    environment |= {name: value for name, value in found.options.items() if name.isupper()}
    program = "pretrain_hybrid.py" if is_hybrid(scenario.model) else "pretrain_gpt.py"
    command = Command(
        words=(),
        environment=environment,
        before=CHECKOUT + arrays(found.options, {**RUN, **fusions(scenario)}, said_by(model)),
        tail=f'"${{MEGATRON_LM:-Megatron-LM}}/{program}" "${{MODEL_ARGS[@]}}" "${{PLAN_ARGS[@]}}" "${{RUN_ARGS[@]}}"',
    )
    return with_arguments(ID, scenario, command, found)


def queues(*, fsdp: bool, experts: bool) -> dict[str, str]:
    """One queue keeps kernels in the order that tensor and context ranks count on; exchanges of experts beside compute
    need many, and FSDP refuses one.

    >>> queues(fsdp=False, experts=True), queues(fsdp=True, experts=False)
    ({'CUDA_DEVICE_MAX_CONNECTIONS': '32'}, {})
    """
    if experts:
        return {QUEUES: "32"}
    return {} if fsdp else {QUEUES: "1"}


def graph_environment(captured: object) -> dict[str, str]:
    """What captured parts ask for beside segments that grow: NCCL must not register buffers of a graph."""
    return {"NCCL_GRAPH_REGISTER": "0"} if captured not in (None, "none") else {}


def fusions(scenario: Scenario) -> dict[str, Any]:
    """Fused kernels that the prediction counts on and the parser leaves off."""
    fused = scenario.engine.fuses
    found: dict[str, Any] = {}
    if has_experts(scenario.model) and "permute" in fused:
        found["--moe-permute-fusion"] = True
    if has_experts(scenario.model) and "router" in fused:
        found["--moe-router-fusion"] = True
    if "cross-entropy" in fused:
        found |= {"--cross-entropy-loss-fusion": True, "--cross-entropy-fusion-impl": "te"}
    return found


def with_arguments(id: str, scenario: Scenario, command: Command, found: Ledger) -> Export:
    """The launch scripts, and beside them the arguments as a table."""
    title = options(id).title
    dashed = {name[2:]: value for name, value in found.options.items() if name.startswith("--")}
    table = comment(header(scenario, title)) + yaml_text(dashed)
    return exported(id, {**scripts(scenario, command, title), "args.yaml": table}, found)


def said_by(found: Iterable[Piece]) -> frozenset[str]:
    """The options that pieces say."""
    return frozenset(piece.option for piece in found if isinstance(piece, Say))


def arrays(said: Mapping[str, Any], run: Mapping[str, Any], of_model: frozenset[str]) -> str:
    """Three shell arrays: of the model, of the plan, and of what a first run needs."""
    dashed = {name: value for name, value in said.items() if name.startswith("--")}
    model = {name: value for name, value in dashed.items() if name in of_model}
    plan = {name: value for name, value in dashed.items() if name not in model}
    rest = {name: value for name, value in run.items() if name not in dashed}
    parts = (("MODEL_ARGS", model, ""), ("PLAN_ARGS", plan, ""), ("RUN_ARGS", rest, "# replace by your data and rates"))
    return "\n".join(_array(name, values, note) for name, values, note in parts)


def _array(name: str, values: Mapping[str, Any], note: str) -> str:
    lines = [f"    {' '.join(words(option, value))}\n" for option, value in values.items()]
    return f"{name}=({f' {note}' if note else ''}\n{''.join(lines)})\n"


def words(option: str, value: Any) -> list[str]:
    """An option as quoted shell words.

    >>> words("--bf16", True), words("--recompute-modules", ("moe", "mlp")), words("--split", "a b")
    (['--bf16'], ['--recompute-modules', 'moe', 'mlp'], ['--split', "'a b'"])
    """
    if value is True:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    return [option, *(shlex.quote(str(part)) for part in values)]
