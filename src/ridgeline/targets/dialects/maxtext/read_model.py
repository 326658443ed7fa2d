"""Turn MaxText's words about model, machine and mesh, those of its benchmark runner too, into what they mean."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, not_among
from ridgeline.core.files import Table, read_table
from ridgeline.models.load import MODELS
from ridgeline.targets.dialects.maxtext.write import ALSO_NAMED, ID, MODELS_NAMED
from ridgeline.targets.imports.model_names import UNKNOWN, known_as, with_depth
from ridgeline.targets.imports.option_reader import OptionReader, split_options, table_of
from ridgeline.targets.imports.run_files import SCRIPTS, RunFiles, checkout_of
from ridgeline.targets.imports.shell_eval import read_script
from ridgeline.targets.option_table import read_options
from ridgeline.targets.tables import names as table_names
from ridgeline.targets.target import Files

PLAIN_BLOCKS = ("llama2", "mistral", "mixtral", "default", "qwen2", "qwen3", "qwen3_moe", "gpt3")
# options of a model file beside its dimensions
DESCRIBES = frozenset(table_names("maxtext", "describes"))
PAIRED = ("longcat-flash", "gemma2-")  # models of which MaxText counts two layers as one
DEEPEST = 20
MOST_SLICES = 10_000
# devices that the name of a slice counts for each chip: v5p-128 has 64 chips
COUNTED = {"v4": 2, "v5p": 2, "v5e": 1, "v5litepod": 1, "v6e": 1, "v5lite": 1}
HALVES = ("tpu7x", "v7x")  # generations whose chips JAX counts as two devices
INNER = table_names("maxtext", "inner")
AXES = ("fsdp", "data", "tensor", "context", "expert")
MARK = "# a benchmark of MaxText: "


def read_model(reader: OptionReader, named: str | None) -> str | JsonMapping | None:
    """The model that the options name or spell; that of MaxText's defaults where nobody names one."""
    name = str(reader.take("model_name", default="default"))
    if name == "default" and "base_emb_dim" in reader:
        name = _file_named(reader)
    if name != "default":
        id = next((id for id, word in MODELS_NAMED.items() if word == name), ALSO_NAMED.get(name))
        if id is None:
            reader.note("model_name", name[:60], UNKNOWN, matters=False)
        return _ahead(reader, _with_layers(reader, id))
    scale = reader.degree("global_parameter_scale")
    if scale != 1:
        if f"maxtext-{scale}b" in MODELS and "base_emb_dim" not in reader:
            return f"maxtext-{scale}b"
        reader.bad("global_parameter_scale", scale, "a scale whose model the catalog has, or dimensions", None)
    if "base_emb_dim" not in reader:
        if named is not None or {"student_overrides", "teacher_overrides"} & set(reader.table.data):
            return None
        reader.assumptions.append("model: the 1.1 billion parameters of MaxText's own defaults, as no model is named")
    block = reader.word("decoder_block", among={name: name for name in PLAIN_BLOCKS}, default="default")
    has_qk_norm = reader.switch("use_qk_norm", default=str(block).startswith("qwen3"))
    has_bias = reader.switch("attention_bias", default=block == "qwen2")
    table = read_options(ID, "dims", reader)
    table["attention"] = {name: table.pop(name) for name in ("heads", "kv_heads", "head_dim")}
    table["attention"] |= ({"qk_norm": "head"} if has_qk_norm else {}) | ({"qkv_bias": True} if has_bias else {})
    inner, experts = table.pop("inner"), reader.degree("num_experts")
    mlp: JsonObject = {"mlp": {"hidden": inner}}
    moe_dim = None if reader.options.get("base_moe_mlp_dim") == -1 else reader.count("base_moe_mlp_dim")
    if experts > 1:
        mlp = {"moe": {"experts": experts, "topk": reader.degree("num_experts_per_tok"), "hidden": moe_dim or inner}}
    table |= mlp
    if block == "gpt3":
        table |= {"norm": "layer", "positions": reader.count("trainable_position_size", default=2048)}
        table["attention"] |= {"positions": "learned", "qkv_bias": True, "out_bias": True}
        table["mlp"] |= {"gated": False, "activation": "gelu", "bias": True}
    return known_as(table, ("context",))


def _with_layers(reader: OptionReader, id: str | None) -> str | JsonObject | None:
    """A model of the catalog with the number of layers that the options give it; other dims that differ are told."""
    if id is None:
        return None
    spec = MODELS[id]
    stated_layers = reader.count("base_num_decoder_layers")
    if reader.options.get("base_emb_dim") not in (None, spec.hidden):
        value = str(reader.options["base_emb_dim"])[:20]
        reader.note("base_emb_dim", value, f"not the width of {id}, whose dims are taken")
    heads = {"base_num_query_heads": "heads", "base_num_kv_heads": "kv_heads"}
    for option, name in heads.items() if "base_emb_dim" in reader else ():
        head_counts = {getattr(block.mixer, name, None) for block in spec.blocks} - {None}
        asked_for = reader.options.get(option)
        if type(asked_for) is int and head_counts and asked_for not in head_counts:
            reader.bad(option, asked_for, f"the {name} of {id}, which model_name says it is", None)
    layers = (stated_layers or 0) * (2 if id.startswith(PAIRED) else 1)
    return {"base": id, "layers": layers} if layers and layers != spec.layers else id


def _ahead(reader: OptionReader, model: str | JsonObject | None) -> str | JsonObject | None:
    """The model with as many layers of multi-token prediction as asked for: none, where nobody asks."""
    return with_depth(model, reader.size("mtp_num_layers") or 0)


def _file_named(reader: OptionReader) -> str:
    """The model that a file of MaxText's own model folder is named after."""
    stem = Path(reader.table.source).stem
    is_known = stem in ALSO_NAMED or stem in MODELS_NAMED.values()
    if is_known:
        reader.skip(*DESCRIBES, *(option for option in reader.options if option.startswith("base_")))
    return stem if is_known else "default"


def expand_manifests(files: Files) -> Files:
    """The files, with the command of a JobSet as a script of its own."""
    if isinstance(files, RunFiles) and any(name.endswith(".jobset.sh") for name in files):
        return files
    texts = dict(files)
    for name, text in files.items():
        if name.endswith((".yaml", ".yml")) and re.search(r"^kind:\s*JobSet", text, re.MULTILINE):
            command_line = next((line for line in _texts(table_of(name, text), 0) if "base.yml" in line), None)
            if command_line is not None:
                texts = {key: value for key, value in texts.items() if key != name}
                line = next(line for line in command_line.splitlines() if "base.yml" in line).strip()
                command = line.removeprefix("(").rstrip("; &").removesuffix(")")  # of a container's command
                texts[f"{name}.jobset.sh"] = f"{command}\n{_requested_topology(text)}"
    return RunFiles(texts, checkout_of(files))


def _requested_topology(text: str) -> str:
    kind = re.search(r"gke-tpu-accelerator:\s*([\w-]{1,40})", text)
    shape = re.search(r"gke-tpu-(?:slice-)?topology:\s*([\dx]{1,20})", text)
    slices = re.search(r"^\s{0,8}replicas:\s*(\d{1,4})", text, re.MULTILINE)
    if kind is None or shape is None:
        return ""
    count = slices.group(1) if slices else "1"
    return f"xpk workload create --device-type={kind.group(1)}-{shape.group(1)} --num-slices={count}\n"


def _texts(value: object, depth: int) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif depth < DEEPEST:
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
        for part in inner:
            yield from _texts(part, depth + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What xpk is asked for: chips of all slices, slices, and whether JAX counts two devices for each chip."""

    chips: int | None = None
    slices: int = 1
    halves: bool = False


def machine_of(files: Files) -> Machine:
    """The machine of the first command that names one."""
    for name, text in files.items():
        if not name.endswith((".sh", ".sbatch")):
            continue
        for command in read_script(text, checkout_of(files)).commands:
            words = dict(word[2:].split("=", 1) for word in command if word.startswith("--") and "=" in word)
            device = words.get("device-type", words.get("tpu-type", words.get("device_type", "")))
            chips = chips_of(device)
            slices = words.get("num-slices", words.get("num_slices", "1"))
            if chips is not None:
                count = int(slices) if slices.isdigit() and 0 < int(slices) < MOST_SLICES else 1
                return Machine(chips=chips * count, slices=count, halves=device.startswith(HALVES))
    return Machine()


def chips_of(device: str) -> int | None:
    """Chips of a slice by its name.

    >>> chips_of("tpu7x-4x4x8"), chips_of("v5p-128"), chips_of("v6e-256"), chips_of("h100")
    (128, 64, 256, None)
    """
    kind, _, size = device.rpartition("-")
    if re.fullmatch(r"\d{1,3}(x\d{1,3}){1,2}", size):
        return math.prod(int(part) for part in size.split("x"))
    share_each = COUNTED.get(kind.removeprefix("tpu-"))
    return int(size) // share_each if share_each is not None and size.isdigit() and int(size) >= share_each else None


def _open_axis(options: JsonMapping, place: str, usual: str) -> tuple[str, int]:
    """The one axis that takes what the others leave (nothing where there is none, or several), and their product."""
    degrees = {axis: options.get(f"{place}_{axis}_parallelism", -1 if axis == usual else 1) for axis in INNER}
    open_axes = [axis for axis, degree in degrees.items() if degree == -1]
    product_of_others = math.prod(degree for degree in degrees.values() if type(degree) is int and degree > 0)
    return open_axes[0] if len(open_axes) == 1 else "", product_of_others


def filled_axes(table: Table, devices: int) -> Table:
    """The table with the one inner axis of -1 filled in from the number of devices.

    That of fsdp stays open where nothing is copied: it is all that the others leave then.
    """
    (axis, product_of_others), (_, outer) = _open_axis(table.data, "ici", "fsdp"), _open_axis(table.data, "dcn", "")
    if axis in ("", "data") or not devices or devices % (product_of_others * outer):
        return table
    copies = [table.data.get(f"{place}_data_parallelism", 1) for place in ("dcn", "ici")]
    if axis == "fsdp" and not any(type(degree) is int and degree > 1 for degree in copies):
        return table
    return replace(table, data={**table.data, f"ici_{axis}_parallelism": devices // (product_of_others * outer)})


def filled_slices(table: Table, devices: int, slices: int) -> Table:
    """The table with every axis stated, for a run on several slices: data goes over them unless another axis does."""
    if slices < 2 or devices % slices:
        return table
    stated_options = dict(table.data)
    for place, size, usual in (("dcn", slices, "data"), ("ici", devices // slices, "fsdp")):
        axis, product_of_others = _open_axis(stated_options, place, usual)
        if axis and size % product_of_others == 0:
            stated_options[f"{place}_{axis}_parallelism"] = size // product_of_others
    return replace(table, data=stated_options)


def spare_axis(options: JsonMapping) -> str:
    """The axis that gives up the second device of a chip: the one left to fill, or the widest even one."""
    degrees = {axis: options.get(f"ici_{axis}_parallelism", -1 if axis == "fsdp" else 1) for axis in AXES}
    for axis, degree in degrees.items():
        if degree == -1:
            return axis
    even = [axis for axis, degree in degrees.items() if type(degree) is int and degree > 1 and degree % 2 == 0]
    return max(even, key=lambda axis: degrees[axis]) if even else ""


FILE = Path(__file__).parent / "benchmarks.toml"


@cache
def benchmarks() -> Mapping[str, JsonMapping]:
    """The options of every benchmark by its name."""
    return read_table(FILE).data


def benchmark_of(files: Files) -> dict[str, str] | None:
    """The runner's options in the first command that starts it."""
    for name, text in files.items():
        if name.endswith(SCRIPTS) and "benchmark_runner" in text:
            for command in read_script(text, checkout_of(files)).commands:
                if any("benchmark_runner" in word for word in command) and "model_name" in _options(command):
                    return _options(command)
    return None


def _options(command: list[str]) -> dict[str, str]:
    return {name.replace("-", "_"): "".join(values[:1]) for name, values in split_options(command)}


def spelled_out(files: Files) -> Files:
    """The files, with a script of the runner replaced by the training command and the machine that it asks for."""
    stated_options = benchmark_of(files)
    if stated_options is None or stated_options.get("model_name") not in benchmarks():
        return files
    values = {
        key: str(value).lower() if isinstance(value, bool) else str(value)
        for key, value in benchmarks()[stated_options["model_name"]].items()
    }
    words = [f"{key}={shlex.quote(value)}" for key, value in values.items()]
    kind, slices = stated_options.get("device_type", ""), stated_options.get("num_slices", "1")
    machine = [f"--device-type={kind}", f"--num-slices={slices}"]
    text = f"{MARK}{stated_options['model_name']}\npython3 -m MaxText.train base.yml {' '.join(words)}\n"
    other_files = {name: text for name, text in files.items() if "benchmark_runner" not in text}
    script = {f"{stated_options['model_name']}.sh": f"{text}xpk workload create {shlex.join(machine)}\n"}
    return RunFiles({**other_files, **script}, checkout_of(files))


def benchmark_note(files: Files) -> tuple[str, ...]:
    """What is assumed of a benchmark: that the installed MaxText means by its name what the recorded one does."""
    for text in files.values():
        match = re.match(rf"{MARK}(\w+)", text)
        if match:
            meant = "batch, sequence, mesh and recompute as MaxText of August 2026 has them"
            return (f"benchmark {match.group(1)}: {meant}",)
    return ()


def refuse_strange(files: Files) -> None:
    """An `InputError` for a benchmark whose name is not recorded."""
    stated_options = benchmark_of(files)
    if stated_options is not None:
        raise InputError(not_among("--model_name", stated_options.get("model_name", "nothing")[:60], benchmarks()))
