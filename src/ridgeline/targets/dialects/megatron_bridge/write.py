"""Turn a Scenario into a recipe of Megatron-Bridge: Megatron's options as fields of its ConfigContainer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ridgeline.core.documents import JsonMapping
from ridgeline.models.spec import Attention, LatentAttention, Mlp, Moe
from ridgeline.plan.scenario import Scenario, training
from ridgeline.targets.decisions import decisions_of
from ridgeline.targets.dialects.megatron.names import flags_of
from ridgeline.targets.dialects.megatron.write import fusions, pieces, run_environment, said_by
from ridgeline.targets.dialects.megatron.write_model import is_hybrid, scaled_by_yarn
from ridgeline.targets.launchers.launch import NodeCommand, export_run
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say, admit_options, gather, lose, matching
from ridgeline.targets.options import DocumentedOptions, options
from ridgeline.targets.tables import names, template, values, word_lists, words
from ridgeline.targets.target import Export

ID = "megatron-bridge"
FIELDS = words(ID, "fields")  # Megatron option (without dashes) -> field, where the value is the same
# fields that are not guessed where only running the recipe would tell them
NEEDED = frozenset({*(FIELDS[option] for option in names(ID, "needed")), "dataset.seq_length", "peft"})
OPPOSITE = words(ID, "opposite")  # option -> field whose value is the opposite of the flag
# field -> others that have to say the same: settings are kept twice, and one of two that is on turns both on
TWINS = word_lists(ID, "twins")
ALWAYS = words(ID, "always")  # switches that the common recipe turns on: each has to be said either way
DTYPES = {"fp32": "torch.float32", "bf16": "torch.bfloat16", "fp16": "torch.float16", "fp8": "torch.uint8"}
RECIPES = values(ID, "recipes")  # what the named mixed-precision recipes set
ACTIVATIONS = {"squared-relu": "squared_relu", "quick-geglu": "quick_gelu"}
COMMON = values(ID, "common")  # what recipes/common.py @0eca073e sets before a recipe changes it
# what adapters stand beside -> its name in a layer
LORA = {"qkv": "linear_qkv", "out": "linear_proj", "up": "linear_fc1", "gate": "linear_fc1", "down": "linear_fc2"}
VIRTUAL = "model.virtual_pipeline_model_parallel_size"
Transform = Callable[[Any, Scenario], object]  # an option's value -> the field's; None where the field is left alone
FLAGS = ("window-attn-skip-freq", "no-rope-freq", "linear-attention-freq")
FILE = "recipe.py"
PEFT = "peft"
PRETRAINED = "export PRETRAINED=${PRETRAINED:?the folder of weights that adapters stand beside, of Megatron-Bridge}"
SINGLE = "MixedPrecisionConfig(fp32=True, params_dtype=torch.float32, pipeline_dtype=torch.float32)"
# what the provider of hybrids has otherwise than those of GPT, whose habits stand for what nobody says
PLAIN = {"share_embeddings_and_output_weights": True, "add_bias_linear": True}
NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}  # what a step is predicted without
FIRST_RUN = (
    "    # made-up data and few steps: replace by your own\n"
    '    cfg.tokenizer.tokenizer_type = "NullTokenizer"\n'
    "    cfg.tokenizer.vocab_size = cfg.model.vocab_size\n"
    "    cfg.train.train_iters = 50\n"
    "    cfg.scheduler.lr_warmup_iters = 1\n"
)


class Code(str):
    """A Python expression, written as it is."""

    __slots__ = ()


def _same(value: object, _: Scenario) -> object:
    return value


def _always(value: object) -> Transform:
    return lambda _value, _scenario: value


def _flags(value: object, scenario: Scenario) -> object:
    """A pattern spelt layer by layer; a plain frequency as it is."""
    if "[" not in str(value):
        return value
    return Code(str([int(flag) for flag in flags_of(str(value), scenario.model.layers)]))


def _frequency(value: object, scenario: Scenario) -> object:
    pattern = _flags(value, scenario)
    return pattern if isinstance(pattern, Code) else int(str(pattern))


def _chunks_if_several(_: object, scenario: Scenario) -> int | None:
    return scenario.plan.schedule.chunks if scenario.plan.schedule.chunks > 1 else None


def _activation(option: str, *, gated: bool, code: str) -> dict[str, dict[str, Transform]]:
    return {option: {"model.gated_linear_unit": _always(gated), "model.activation_func": _always(Code(code))}}


def _wide_gradients(wide: bool) -> dict[str, Transform]:
    return {f"{owner}.grad_reduce_in_fp32": _always(wide) for owner in ("mixed_precision", "ddp")}


# option without dashes -> field -> how its value is made of the option's; later rows stand above earlier ones
WRITTEN: Mapping[str, Mapping[str, Transform]] = MappingProxyType(
    {
        **{option: {field: _same} for option, field in FIELDS.items()},
        **{option: {field: _always(False)} for option, field in OPPOSITE.items()},
        **{
            option: {field: lambda value, _: Code(DTYPES.get(str(value), str(value)))}
            for option, field in FIELDS.items()
            if option.endswith("-dtype")
        },
        **{option: {FIELDS[option]: _flags} for option in FLAGS},
        **{word: {"mixed_precision": _always(Code(f"{word}_mixed()"))} for word in ("bf16", "fp16")},
        **_activation("swiglu", gated=True, code="F.silu"),
        **_activation("quick-geglu", gated=True, code=ACTIVATIONS["quick-geglu"]),
        **_activation("squared-relu", gated=False, code=ACTIVATIONS["squared-relu"]),
        "moe-layer-freq": {FIELDS["moe-layer-freq"]: _frequency},
        # tokens seen to the left, and none to the right
        "window-size": {FIELDS["window-size"]: lambda value, _: Code(f"({int(str(value).split(',')[0])}, 0)")},
        "attention-backend": {FIELDS["attention-backend"]: lambda value, _: Code(f"AttnBackend.{value}")},
        "cuda-graph-modules": {FIELDS["cuda-graph-modules"]: lambda value, _: (value,)},
        "grad-reduce-in-bf16": _wide_gradients(False),
        "accumulate-allreduce-grads-in-fp32": _wide_gradients(True),
        "rotary-scaling-factor": {
            FIELDS["rotary-scaling-factor"]: lambda value, run: None if scaled_by_yarn(run.model) else value,
            "model.yarn_rotary_scaling_factor": lambda value, run: value if scaled_by_yarn(run.model) else None,
        },
        "group-query-attention": {},
        "spec": {},  # the provider picks its layers' specification
        "no-create-attention-mask-in-dataloader": {},
        "num-layers-per-virtual-pipeline-stage": {VIRTUAL: lambda _, run: run.plan.schedule.chunks},
        "pipeline-model-parallel-layout": {
            FIELDS["pipeline-model-parallel-layout"]: _same,
            VIRTUAL: _chunks_if_several,
        },
        "no-overlap-p2p-communication": {
            "comm_overlap.overlap_p2p_comm": _always(False),
            "comm_overlap.batch_p2p_comm": _always(True),
        },
        "cpu-offloading-num-layers": {
            "model.cpu_offloading": _always(True),
            FIELDS["cpu-offloading-num-layers"]: _same,
        },
        "hybrid-layer-pattern": {FIELDS["hybrid-layer-pattern"]: _same, VIRTUAL: _chunks_if_several},
        "seq-length": {"model.seq_length": _same, "dataset.seq_length": _same},
    }
)


def fields_of(piece: Say, scenario: Scenario) -> Iterator[Piece]:
    """The fields that carry what an option carries; a loss where there is none."""
    name = piece.option.removeprefix("--")
    if name == "max-position-embeddings":
        # learned positions have a row for each token of a sequence: the provider takes their number from its length
        for path in piece.paths:
            if path == "model.embedding.positions" and piece.value == scenario.workload.seq:
                yield Say("model.seq_length", piece.value, path)
            elif path == "model.context":
                yield Fixed(path, scenario.model.context, "what the model was made for; a run has its own length")
            else:
                yield Lose(path, "the provider takes its length from seq_length")
    elif name not in WRITTEN:
        yield from lose(f"no field for {piece.option}", *piece.paths)
    else:
        for field, transform in WRITTEN[name].items():
            value = transform(piece.value, scenario)
            if value is not None:
                yield Say(field, value, *piece.paths)


def write(scenario: Scenario) -> Export:
    """The recipe and the scripts that launch it."""
    option_list = options(ID)
    decisions = decisions_of(scenario)
    engine = Fixed("plan.engine", ID, "the software that runs it, whatever the prediction assumed")
    pieces_said = [engine, *_admit_fields(spoken(scenario), option_list)]
    fields_said = said_by(pieces_said)
    for field, path in ALWAYS.items():  # turned off where nobody asked for them
        if field not in fields_said:
            pieces_said.append(Say(field, False, *([path] if matching(decisions, path) else [])))
    said = [piece for piece in pieces_said if isinstance(piece, Say)]
    twins = [Say(twin, piece.value) for piece in said for twin in TWINS.get(piece.option, ())]
    ledger = gather(decisions, [*pieces_said, *twins])
    fields = {name: value for name, value in ledger.options.items() if "." in name or name == PEFT}
    experts = ledger.options.get("comm_overlap.overlap_moe_expert_parallel_comm") is True
    is_sharded, graph = ledger.options.get("ddp.use_megatron_fsdp") is True, ledger.options.get("model.cuda_graph_impl")
    environment = run_environment(ledger.options, fsdp=is_sharded, experts=experts, graph=graph)
    command = NodeCommand(words=(FILE,), environment=environment, setup=(PRETRAINED,) if PEFT in fields else ())
    return export_run(ID, scenario, ledger, {FILE: recipe(scenario, fields)}, command)


def _admit_fields(found: Iterator[Piece], known: DocumentedOptions) -> Iterator[Piece]:
    """Fields the target documents; the same gate as for options, which begin with dashes."""
    for piece in found:
        if isinstance(piece, Say) and "." in piece.option:
            plain = piece.value if isinstance(piece.value, (tuple, str, int, float)) else ""
            parts = plain if isinstance(plain, tuple) else (plain,)
            gate = Say(f"--{piece.option}", tuple(str(part) for part in parts), *piece.paths)
            (passed_piece, *lost) = admit_options([gate], known)
            yield from (piece,) if isinstance(passed_piece, Say) else (passed_piece, *lost)
        else:
            yield piece


def spoken(scenario: Scenario) -> Iterator[Piece]:
    """Megatron's pieces as fields of the ConfigContainer."""
    kernels = (Say(option, value) for option, value in fusions(scenario).items())
    adapters = list(lora(scenario))
    for piece in (*pieces(scenario), *kernels, *adapters):
        if adapters and isinstance(piece, Lose) and piece.path == "workload.lora.*":
            continue  # which Megatron-LM has none of
        if isinstance(piece, Say) and piece.option.startswith("--"):
            yield from fields_of(piece, scenario)
        else:
            yield piece
    if scenario.plan.precision.activations.id not in ("bf16", "fp16"):
        yield Say("mixed_precision", Code(SINGLE), "plan.precision.activations")


def lora(scenario: Scenario) -> Iterator[Piece]:
    """Adapters of the model's linear layers, by Bridge's names; nothing where it has others or there are none."""
    work = training(scenario).workload
    if work.lora is None or not all(isinstance(block.mixer, Attention) for block in scenario.model.blocks):
        return
    if any(isinstance(block.ffn, Moe) for block in scenario.model.blocks) and set(work.lora.targets) - {"qkv", "out"}:
        return  # experts have layers of the same names
    module_names = {LORA[target] for target in work.lora.targets}
    means = {target for target, name in LORA.items() if name in module_names}
    is_gated = any(isinstance(block.ffn, Mlp) and block.ffn.gated for block in scenario.model.blocks)
    same = means ^ set(work.lora.targets) <= (set() if is_gated else {"gate"})
    paths = ("workload.lora.rank", "workload.task", *(("workload.lora.targets",) if same else ()))
    text = f"LoRA(target_modules={sorted(module_names)!r}, dim={work.lora.rank}, alpha={work.lora.rank})"
    yield Say(PEFT, Code(text), *paths)
    yield Say("checkpoint.pretrained_checkpoint", Code('os.environ.get("PRETRAINED", "pretrained")'))
    if not same:
        yield Lose("workload.lora.targets", "linear_fc1 holds both halves of a gated layer")


def recipe(scenario: Scenario, fields: JsonMapping) -> str:
    """The text of the recipe; only the imports it uses."""
    hybrid = is_hybrid(scenario.model)
    latent = any(isinstance(block.mixer, LatentAttention) for block in scenario.model.blocks)
    provider = "HybridModelProvider" if hybrid else "MLAModelProvider" if latent else "GPTModelProvider"
    model = {name[6:]: value for name, value in fields.items() if name.startswith("model.")}
    overlap = {name[13:]: value for name, value in fields.items() if name.startswith("comm_overlap.")}
    other_fields = {name: value for name, value in fields.items() if not name.startswith(("model.", "comm_overlap."))}
    overlap_arguments = ", ".join(f"{key}={_python(part)}" for key, part in overlap.items())
    formats = scenario.plan.precision.activations.id
    precision = f"{formats}_mixed()" if formats in ("bf16", "fp16") else SINGLE
    body = [
        "def recipe() -> ConfigContainer:",
        '    """The plan as Megatron-Bridge reads it."""',
        "    cfg = _pretrain_common()",
        f"    cfg.model = {provider}(",
        *(f"        {name}={_python(value)}," for name, value in {**(PLAIN if hybrid else {}), **model}.items()),
        *(f"        {name}={_python(value)}," for name, value in NO_DROPOUT.items()),
        "    )",
        f"    cfg.comm_overlap = CommOverlapConfig({overlap_arguments})",
        f"    cfg.mixed_precision = {precision}",
        *(f"    cfg.{name} = {_python(value)}" for name, value in other_fields.items()),
        FIRST_RUN + "    return cfg",
    ]
    text = "\n".join(body)
    used = "".join(f"{line}\n" for line in template("bridge_imports.txt").splitlines() if _used(line, text))
    return f"{used}\n\n{text}\n\n\n{template('bridge_main.txt')}"


def _used(line: str, text: str) -> bool:
    imported = line.replace("import torch.nn.functional as F", "import F.").split("import ")[1].split(", ")
    return any(f"{name}." in text if name in ("torch", "os") else name in text for name in imported)


def _python(value: object) -> str:
    return str(value) if isinstance(value, Code) else repr(list(value)) if isinstance(value, tuple) else repr(value)
