"""torchtitan from 0.3 on: a configuration function in Python, and such functions read back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pprint import pformat

from ridgeline.core.documents import JsonMapping
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import decisions_of, has_experts
from ridgeline.targets.dialects.torchtitan.read import is_registry
from ridgeline.targets.dialects.torchtitan.read import read as read_titan
from ridgeline.targets.dialects.torchtitan.write import flavor_of, per_op_recompute, pieces
from ridgeline.targets.launchers.launch import NodeCommand, account_run, export_run
from ridgeline.targets.ledger import Fixed, Like, Lose, Piece, Say, habits
from ridgeline.targets.tables import words as table_words
from ridgeline.targets.target import Export, Files, Imported
from ridgeline.targets.vendors import growing_segments

ID = "torchtitan-preset"

REGISTRY = "model_registry"
# an option of a job file -> where a preset says it
MOVED = table_words("torchtitan-preset", "moved")
# options of a job file that a preset has no place for
GONE = (
    "parallelism.context_parallel_rotate_method",
    "parallelism.expert_tensor_parallel_degree",
    "parallelism.pipeline_parallel_expert_parallel_overlap",
    "optimizer.name",
)
RECOMPUTE = {"full": "FullAC", "selective": "SelectiveAC", "none": "None"}
# (family, recipe) of a job file -> the class that converts, for matrices and for experts
CONVERTERS = {
    "float8": ("Float8LinearConverter", "Float8GroupedExpertsConverter"),
    "mx": ("MXFP8LinearConverter", "MXFP8GroupedExpertsConverter"),
}
FILE = "preset.py"
NOTE = """\
# Words after the script's name are passed on, for example --dataloader.dataset_path or --training.steps 1000.
# Yours: the folder with the tokenizer, and the data: c4 is streamed from the Hub.
ASSETS=${ASSETS:?the folder with the tokenizer of the model, as scripts/download_hf_assets.py of torchtitan makes it}"""
TOKENIZER = '--hf_assets_path "$ASSETS"'
OWN = ("activation_checkpoint.", "quantize.", "model.converters")  # options that are said otherwise here
OURS = (
    *("plan.recompute.", "plan.precision.compute", "plan.precision.scaling", "plan.moe_dispatch", "plan.sequence"),
    *("plan.graph", "plan.etp", "model.mtp", "workload.optimizer.name", "plan.cp_kind", "system.chips"),
)


def read(files: Files) -> Imported:
    """What a function that returns a Trainer.Config says; from 0.3 on no schedule overlaps the exchange of experts."""
    python_files = {name: text for name, text in files.items() if name.partition("::")[0].endswith(".py")}
    imported_run = read_titan(files if len(python_files) == len(files) else python_files)
    plan = dict(imported_run.settings["plan"])
    if "moe" in plan.get("overlap", {}):
        plan["overlap"] = {**plan["overlap"], "moe": False}
    return replace(imported_run, target=ID, settings={**imported_run.settings, "plan": plan})


def recognises(files: Files) -> bool:
    """A preset that Ridgeline wrote; those of others are `torchtitan`'s, whatever their version."""
    return FILE in files and "Written by Ridgeline" in files[FILE] and is_registry(files)


def write(scenario: Scenario) -> Export:
    """preset.py and the launch scripts."""
    ledger = account_run(ID, scenario, _pieces(scenario))
    name = f"{ledger.options[f'{REGISTRY}.family']}_plan"
    words = ("-m", "torchtitan.train", "--module", FILE.removesuffix(".py"), "--config", name, "--training.steps", "50")
    command = NodeCommand(words=words, environment=growing_segments(scenario.system), before=NOTE, tail=TOKENIZER)
    return export_run(ID, scenario, ledger, {FILE: module(scenario, ledger.options, name)}, command)


def _pieces(scenario: Scenario) -> Iterator[Piece]:
    for piece in pieces(scenario):
        yield from _preset_pieces(piece)
    for part in (_recompute, _experts, _formats):
        yield from part(scenario)
    yield Say("training.disable_cuda_graphs", True, "plan.graph")
    if decisions_of(scenario)["plan.graph"] != "none":
        yield Lose("plan.graph", "graphs of this trainer exclude stages and most exchanges of experts: not written")


def _preset_pieces(piece: Piece) -> Iterator[Piece]:
    """What a job file says, under the names of a preset; nothing where a preset says it in another way."""
    match piece:
        case Say(option=option, value=value, paths=paths):
            if option in GONE or option.startswith(OWN):
                return
            if option == "parallelism.module_fqns_per_model_part":
                value = [["lm_head" if name == "output" else name for name in part] for part in value]
            yield Say(MOVED.get(option, option), value, *paths)
        case Fixed(path=path) | Lose(path=path):
            if not path.startswith(OURS):
                yield piece
        case Like():
            yield piece


def _recompute(scenario: Scenario) -> Iterator[Piece]:
    kind, lost = per_op_recompute(scenario)
    paths_carried = (f"plan.recompute.{key}" for key in ("kind", "layers", "parts"))
    yield Say("activation_checkpoint", RECOMPUTE[kind], *paths_carried)
    yield from lost


def _experts(scenario: Scenario) -> Iterator[Piece]:
    model, decisions = scenario.model, decisions_of(scenario)
    flavor = flavor_of(model)
    ahead = model.mtp.depth if model.mtp is not None else 0
    if ahead and flavor is not None and flavor[0] == "deepseek_v3":
        yield Say(f"{REGISTRY}.num_mtp_layers", ahead, "model.mtp*")
    elif ahead:
        yield Lose("model.mtp*", "only the DeepSeek-V3 family trains blocks that predict further tokens")
    yield from habits(ID, "experts")
    if has_experts(model):
        way = decisions["plan.moe_dispatch"]
        yield Say(f"{REGISTRY}.moe_comm_backend", "standard" if way == "all-to-all" else way, "plan.moe_dispatch")
    if scenario.plan.mesh.tp > 1:
        chosen = decisions["plan.sequence_parallel"]
        yield Say("parallelism.enable_sequence_parallel", chosen, "plan.sequence_parallel")


def _formats(scenario: Scenario) -> Iterator[Piece]:
    """Products in a narrow format come from converters that the registry applies; they want compiled blocks."""
    decisions = decisions_of(scenario)
    means = {("fp8-e4m3", "row"): "float8", ("mxfp8", "block"): "mx"}
    compute, scaling = decisions["plan.precision.compute"], decisions.get("plan.precision.scaling")
    family = means.get((compute, str(scaling)))
    stored_format = "fp32" if scenario.plan.precision.weights.id == "fp32" else "bf16"
    if family and decisions["plan.compiled"]:
        names = list(CONVERTERS[family][: 2 if has_experts(scenario.model) else 1])
        yield Say(f"{REGISTRY}.converters", names, "plan.precision.compute", "plan.precision.scaling")
    elif family:
        yield Lose("plan.precision.scaling", "converters want compiled blocks")
    else:
        yield Lose("plan.precision.scaling", "float8 scales by row, mxfp8 by block")
    yield Fixed("plan.precision.compute", stored_format, "products are bf16 or fp32, or float8 and mxfp8 by converters")


def module(scenario: Scenario, said: JsonMapping, name: str) -> str:
    """The Python module of one function."""
    recompute = said["activation_checkpoint"]
    converters = said.get(f"{REGISTRY}.converters", [])
    imports = [
        "from torchtitan.components.loss import ChunkedLossWrapper, CrossEntropyLoss",
        "from torchtitan.components.optimizer import default_adamw",
        *([f"from torchtitan.components.quantization import {', '.join(converters)}"] if converters else []),
        "from torchtitan.config import CompileConfig, ParallelismConfig, TrainingConfig",
        *([f"from torchtitan.distributed.activation_checkpoint import {recompute}"] if recompute != "None" else []),
        "from torchtitan.hf_datasets.text_datasets import HuggingFaceTextDataLoader",
        "from torchtitan.models.common.config_utils import decoder_vocab_size",
        f"from torchtitan.models.{said[f'{REGISTRY}.family']} import model_registry",
        "from torchtitan.trainer import Trainer",
    ]
    loss = "CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(model_spec))"
    body = [
        f"model_spec = model_registry({_registry(said, converters)})",
        "return Trainer.Config(",
        f"    loss=ChunkedLossWrapper.Config(loss_fn={loss}),",
        f"    hf_assets_path={said.get('hf_assets_path', './assets/hf/' + scenario.model.id)!r},",
        "    model_spec=model_spec,",
        "    optimizer=default_adamw(lr=3e-4),",
        '    dataloader=HuggingFaceTextDataLoader.Config(dataset="c4"),',
        f"    training=TrainingConfig({_arguments(said, 'training.')}),",
        f"    parallelism=ParallelismConfig({_arguments(said, 'parallelism.')}),",
        f"    compile=CompileConfig({_arguments(said, 'compile.')}),",
        f"    activation_checkpoint={'None' if recompute == 'None' else recompute + '.Config()'},",
        ")",
    ]
    inner = "\n".join(f"    {line}" for line in body)
    return "\n" + "\n".join(imports) + f"\n\n\ndef {name}() -> Trainer.Config:\n{inner}\n"


def _registry(said: JsonMapping, converters: list[str]) -> str:
    words = [repr(str(said[f"{REGISTRY}.flavor"]))]
    stated = {key: said.get(f"{REGISTRY}.{key}") for key in ("moe_comm_backend", "num_mtp_layers")}
    words += [f"{key}={value!r}" for key, value in stated.items() if value is not None]
    spared = {"Float8LinearConverter": 'filter_fqns=["lm_head"], '}
    configs = [f"{name}.Config({spared.get(name, '')}model_compile_enabled=True)" for name in converters]
    return ", ".join([*words, *([f"converters=[{', '.join(configs)}]"] if configs else [])])


def _arguments(said: JsonMapping, prefix: str) -> str:
    arguments = {key.removeprefix(prefix): value for key, value in said.items() if key.startswith(prefix)}
    lines = [f"{key}={pformat(value, width=90, compact=True)}" for key, value in arguments.items()]
    return "".join("\n            " + line.replace("\n", "\n" + 16 * " ") + "," for line in lines) + "\n        "
