"""Weights of a Hugging Face folder: names of its tensors and this model's, read into shards and written whole.

    model.layers.3.self_attn.q_proj.weight             layers.3.mixer.query.weight
    model.layers.3.mlp.experts.7.gate_proj.weight      layers.3.ffn.experts.gate, row 7

Each rank opens the files by name and reads one tensor at a time; experts are stacked, and some families keep several
matrices as rows of one tensor. Files are safetensors, never pickles, and lie in the folder that was named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ridgeline.core.documents import JsonObject
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.files import write_text
from ridgeline.models.spec import Attention, Block, LatentAttention, ModelSpec, Moe
from ridgeline.runtime.train.assemble import Assembly
from ridgeline.runtime.train.data import further_tokens
from ridgeline.runtime.train.layout import full_of
from ridgeline.runtime.train.request import CONFIG, INDEX, SINGLE
from ridgeline.runtime.train.weights import fill

BIGGEST_FILE = 4_000_000_000  # bytes of one file that is written

ENDS = {
    "embedding.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "norm.bias": "model.norm.bias",
    "head.weight": "lm_head.weight",
    "head.bias": "lm_head.bias",
}
ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "o_proj"}
ATTENTION |= {"query_norm": "q_norm", "key_norm": "k_norm"}
LATENT = {
    "query_down": "q_a_proj", "query_norm": "q_a_layernorm", "query": "q_b_proj", "latent": "kv_a_proj_with_mqa",
    "latent_norm": "kv_a_layernorm", "key_value": "kv_b_proj", "out": "o_proj",
}  # fmt: skip
PREDICTION = {"embedding_norm": "enorm", "hidden_norm": "hnorm", "projection": "eh_proj", "norm": "shared_head.norm"}
FEED_FORWARD = {"up": "up_proj", "gate": "gate_proj", "down": "down_proj"}
FAMILY_NAMES: Mapping[str, Mapping[str, str]] = {
    "mixtral": {
        "mlp.gate.": "block_sparse_moe.gate.", "mlp.experts.": "block_sparse_moe.experts.",
        "gate_proj": "w1", "up_proj": "w3", "down_proj": "w2",
    },
    "starcoder2": {"up_proj": "c_fc", "down_proj": "c_proj"},
    "ernie4_5_moe": {"gate.e_score_correction_bias": "moe_statics.e_score_correction_bias"},
}  # fmt: skip
"""Parts of names that a model_type spells otherwise."""
NORMS = {"mixer_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
BEHIND = {"mixer_norm": "post_attention_layernorm", "ffn_norm": "post_feedforward_layernorm"}
GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm", "mixer_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}  # fmt: skip
FAMILY_NORMS: Mapping[str, Mapping[str, str]] = {
    **dict.fromkeys(("olmo2", "olmo3", "exaone4"), BEHIND),
    **dict.fromkeys(("gemma2", "gemma3"), GEMMA),
    "vaultgemma": {"ffn_norm": "pre_feedforward_layernorm"},
    "glm4": {"mixer_post_norm": "post_self_attn_layernorm", "ffn_post_norm": "post_mlp_layernorm"},
    "hyperclovax": {"mixer_post_norm": "post_norm1", "ffn_post_norm": "post_norm2"},
}
"""Norms of a layer as a model_type calls them, where not as Llama does."""
QKV, GATE_UP = ("self_attn.qkv_proj", ("q_proj", "k_proj", "v_proj")), ("mlp.gate_up_proj", ("gate_proj", "up_proj"))
FAMILY_JOINED = {"phi3": (QKV, GATE_UP), "glm": (GATE_UP,), "glm4": (GATE_UP,)}
"""Tensors of a model_type that hold several matrices, one below the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRows:
    """A matrix that is a block of rows of one tensor in the files: the `index`-th of its parts."""

    tensor: str
    index: int


StoredName = str | list[str] | JoinedRows


def hf_names(model: ModelSpec, family: str = "") -> dict[str, StoredName]:
    """This model's parameters and buffers, each with its tensor in the files; stacked experts with one for each.

    family   the model_type whose names the files have; Llama's without one

    >>> import ridgeline
    >>> hf_names(ridgeline.model("llama3-8b"))["layers.3.mixer.query.weight"]
    'model.layers.3.self_attn.q_proj.weight'
    """
    names: dict[str, StoredName] = dict(ENDS)
    if model.embedding.tied:
        names["head.weight"] = ENDS["embedding.weight"]
    for index in range(model.layers):
        names |= _layer(model.layer(index), f"layers.{index}.", f"model.layers.{index}.", family)
    return names | _predictions(model)


def _predictions(model: ModelSpec) -> dict[str, StoredName]:
    """Multi-token prediction stands behind the last layer, as in DeepSeek-V3's files; its embedding and head are not
    written a second time."""
    names: dict[str, StoredName] = {"embedding_copy": ENDS["embedding.weight"]} if model.mtp else {}
    for depth in range(further_tokens(model)):
        here, there = f"mtp.{depth}.", f"model.layers.{model.layers + depth}."
        names |= {f"{here}{name}.weight": f"{there}{stored_name}.weight" for name, stored_name in PREDICTION.items()}
        names |= _layer(model.mtp.block, f"{here}layer.", there, "") if model.mtp else {}
    return names


def _layer(block: Block, here: str, there: str, family: str) -> dict[str, StoredName]:
    """Names of a layer's tensors behind `here`, with those in the files behind `there`."""
    return {
        here + name: _spell_name(there + stored, family)
        if isinstance(stored, str)
        else [str(_spell_name(there + part, family)) for part in stored]
        for name, stored in _layer_names(block, family)
    }


def _spell_name(name: str, family: str) -> str | JoinedRows:
    """A name as the files of a family have it."""
    for joined_name, parts in FAMILY_JOINED.get(family, ()):
        for index, part in enumerate(parts):
            part_name = f"{joined_name.partition('.')[0]}.{part}"
            if f".{part_name}." in name:
                return JoinedRows(tensor=name.replace(part_name, joined_name), index=index)
    for usual, own_spelling in FAMILY_NAMES.get(family, {}).items():
        name = name.replace(usual, own_spelling)
    return name


def _layer_names(block: Block, family: str) -> Iterator[tuple[str, str | list[str]]]:
    for norm, stored_norm in {**NORMS, **FAMILY_NORMS.get(family, {})}.items():
        for kind in ("weight", "bias"):
            yield f"{norm}.{kind}", f"{stored_norm}.{kind}"
    mixer, ffn = block.mixer, block.ffn
    assert isinstance(mixer, (Attention, LatentAttention))
    names = ATTENTION if isinstance(mixer, Attention) else LATENT
    if isinstance(mixer, LatentAttention) and not mixer.q_rank:
        names = names | {"query": "q_proj"}
    for ours, theirs in names.items():
        for kind in ("weight", "bias"):
            yield f"mixer.{ours}.{kind}", f"self_attn.{theirs}.{kind}"
    if not isinstance(ffn, Moe):
        for ours, theirs in FEED_FORWARD.items():
            for kind in ("weight", "bias"):
                yield f"ffn.{ours}.{kind}", f"mlp.{theirs}.{kind}"
        return
    yield "ffn.router.weight", "mlp.gate.weight"
    yield "ffn.correction", "mlp.gate.e_score_correction_bias"
    yield "ffn.shared_gate.weight", "mlp.shared_expert_gate.weight"
    shared = "shared_expert" if ffn.shared_gate else "shared_experts"
    for ours, theirs in FEED_FORWARD.items():
        yield f"ffn.shared.{ours}.weight", f"mlp.{shared}.{theirs}.weight"
        yield f"ffn.experts.{ours}", [f"mlp.experts.{expert}.{theirs}.weight" for expert in range(ffn.experts)]


def load_weights(assembly: Assembly, folder: Path) -> None:
    """Fill this rank's shards from a folder of safetensors."""
    names = _names_of(assembly)
    tensors: dict[str, Tensor] = {**assembly.parameters(), **_buffers(assembly)}
    files = _WeightFiles(folder)
    with torch.no_grad():
        for name, parameter in tensors.items():
            stored_name = names[name]
            weight = files.read_stored(stored_name, tensors, names)
            weight = weight.reshape(parameter.shape) if weight.numel() == parameter.numel() else weight
            if weight.shape != parameter.shape:
                given_shape, expected_shape = str(tuple(weight.shape)), f"{tuple(parameter.shape)} of {name}"
                raise InputError(
                    Problem(path=str(stored_name), given=given_shape, expected=expected_shape, where=str(folder))
                )
            fill(parameter, weight.to(parameter.dtype).to(parameter.device))


def save_weights(assembly: Assembly, folder: Path, config: Path | None = None) -> None:
    """Write the whole model as safetensors: every rank takes part, the first of each pipeline stage writes its layers,
    and rank 0 the index last, so that a folder with one is whole.

    config   a config.json that belongs to the same model and is put beside
    """
    from safetensors.torch import save_file

    layout = assembly.layout
    tensors = _stored_tensors(assembly)
    leads = layout.dp.index == layout.cp.index == layout.tp.index == 0
    groups = list(_groups(tensors)) if leads and tensors else []
    folder.mkdir(parents=True, exist_ok=True)
    many = layout.gather_objects(len(groups))
    before, total = sum(many[: layout.rank]), sum(many)
    places: dict[str, str] = {}
    for index, group in enumerate(groups, before + 1):
        file = SINGLE if total == 1 else f"model-{index:05d}-of-{total:05d}.safetensors"
        save_file({name: value.contiguous() for name, value in group.items()}, folder / f"{file}.part")
        (folder / f"{file}.part").replace(folder / file)
        places |= dict.fromkeys(group, file)
    everywhere = {name: file for placement in layout.gather_objects(places) for name, file in placement.items()}
    if layout.rank == 0 and total > 1:
        write_text(folder / INDEX, json.dumps({"metadata": {}, "weight_map": everywhere}, indent=2))
    if layout.rank == 0 and config is not None and config.is_file():
        write_text(folder / CONFIG, config.read_text(encoding="utf-8"))


def _stored_tensors(assembly: Assembly) -> dict[str, Tensor]:
    """Whole tensors of this rank's stages by their names in the files; a matrix that two stages hold once."""
    tensors = {**assembly.parameters(), **_buffers(assembly)}
    whole_tensors = {name: full_of(tensor).detach().cpu() for name, tensor in tensors.items()}
    whole_tensors.pop(assembly.embedding_copy, None)
    return stored_tensors(whole_tensors, _names_of(assembly))


def stored_tensors(tensors: Mapping[str, Tensor], names: Mapping[str, StoredName]) -> dict[str, Tensor]:
    """Whole tensors of a model by their names in the files."""
    stored: dict[str, Tensor] = {}
    joined_parts: dict[str, dict[int, Tensor]] = {}
    for name, value in tensors.items():
        stored_name = names[name]
        if isinstance(stored_name, str):
            stored[stored_name] = value.unsqueeze(0) if "moe_statics" in stored_name else value
        elif isinstance(stored_name, JoinedRows):
            joined_parts.setdefault(stored_name.tensor, {})[stored_name.index] = value
        else:
            stored |= zip(stored_name, value.unbind(0), strict=True)
    return stored | {name: torch.cat([parts[index] for index in sorted(parts)]) for name, parts in joined_parts.items()}


def _names_of(assembly: Assembly) -> dict[str, StoredName]:
    return hf_names(assembly.blueprint.model, assembly.blueprint.constants.numerics.family)


def _groups(stored: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    group: dict[str, Tensor] = {}
    size = 0
    for name, value in stored.items():
        if group and size + value.nbytes > BIGGEST_FILE:
            yield group
            group, size = {}, 0
        group[name] = value
        size += value.nbytes
    yield group


def _buffers(assembly: Assembly) -> dict[str, Tensor]:
    return {name: buffer for stage in assembly.stages.values() for name, buffer in stage.named_buffers()}


class _WeightFiles:
    """The safetensors files of a folder, opened as they are needed."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.open = folder, JsonObject()
        index = folder / INDEX
        try:
            self.places = json.loads(index.read_text(encoding="utf-8"))["weight_map"] if index.exists() else None
        except (ValueError, KeyError, TypeError):
            raise InputError(
                Problem(path=INDEX, given="no weight_map", expected="an index", where=str(index))
            ) from None

    def read_stored(self, stored: StoredName, tensors: Mapping[str, Tensor], names: Mapping[str, StoredName]) -> Tensor:
        """The tensor of a name; where it is rows of another, those, below the rows of the parts before it."""
        if isinstance(stored, str):
            return self.read(stored)
        if isinstance(stored, list):
            return torch.stack([self.read(part) for part in stored])
        sizes = {
            rows.index: tensors[name].shape[0]
            for name, rows in names.items()
            if isinstance(rows, JoinedRows) and rows.tensor == stored.tensor and name in tensors
        }
        first = sum(size for index, size in sizes.items() if index < stored.index)
        return self.read(stored.tensor)[first : first + sizes[stored.index]]

    def read(self, name: str) -> Tensor:
        from safetensors import SafetensorError, safe_open

        file = SINGLE if self.places is None else str(self.places.get(name, ""))
        if not file or Path(file).name != file:
            todo = "name a folder of the same model"
            raise InputError(
                Problem(path=name, given=file or "no such tensor", expected="a file of the folder", todo=todo)
            )
        try:
            if file not in self.open:
                self.open[file] = safe_open(self.folder / file, framework="pt")
            return self.open[file].get_tensor(name)
        except (OSError, SafetensorError) as wrong:
            given_text = str(wrong)[:200]
            raise InputError(
                Problem(path=name, given=given_text, expected="a tensor", where=str(self.folder / file))
            ) from None
