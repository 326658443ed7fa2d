"""What may be brought up: an architecture, cut to one layer of each kind, or a torch module of the user's.

No torch is needed to name either.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass, replace
from typing import Any

from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import format_quantity
from ridgeline.models.load import model as read_model
from ridgeline.models.params import block_params
from ridgeline.models.spec import Attention, Ffn, LatentAttention, Mixer, Mlp, ModelSpec, Moe
from ridgeline.runtime.train.refuse import model_refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnModule:
    """A torch module: `package.module:function` or `file.py:function` that makes it, or itself and its inputs.

    pickled   the module and its inputs, for another process
    held      the same, for this one
    """

    reference: str
    pickled: bytes = b""
    held: tuple[object, object] | None = None

    @property
    def portable(self) -> bool:
        """Whether another process can make it."""
        return bool(self.pickled) or self.held is None

    @property
    def id(self) -> str:
        """How it is called in a report."""
        return self.reference


Target = ModelSpec | OwnModule


def target_of(given: Any, example_inputs: object = None) -> Target:
    """What a command line or a caller named."""
    if isinstance(given, ModelSpec | OwnModule):
        return given
    if isinstance(given, str) and ":" in given and given.rpartition(":")[2].isidentifier():
        return OwnModule(reference=given)
    if not hasattr(given, "named_parameters"):
        return read_model(given)
    if example_inputs is None and getattr(given, "example_inputs", None) is None:
        expected_text = "example_inputs: a tensor, a tuple or a dict that the module is called with"
        raise InputError(Problem(path="example_inputs", given="none", expected=expected_text))
    return OwnModule(
        reference=type(given).__name__, pickled=_pickle_module(given, example_inputs), held=(given, example_inputs)
    )


def _pickle_module(module: object, inputs: object) -> bytes:
    """Both as bytes; none where pickle cannot, or another process would not find their classes."""
    if type(module).__module__ == "__main__":
        return b""
    try:
        return pickle.dumps((module, inputs))
    except Exception:
        return b""


VOCABULARY = 4096  # rows of the embedding and the head that are made: the rest is more of the same
BYTES_PER_PARAMETER = 4 + 4 + 8 + 8  # fp32 weight, gradient and AdamW's moments, and what judging copies of it
WIDE = 256  # of what is narrowed


def one_of_each(model: ModelSpec) -> ModelSpec:
    """The architecture with one layer of each kind and few rows of its vocabulary; narrower where memory is short.

    An `InputError` says what of it is not built, or that the host has too little memory for any layer.
    """
    first = {block: index for index, block in reversed(list(enumerate(model.order)))}
    order = tuple(model.order[index] for index in sorted(first.values()))
    small = replace(model, order=order, vocab=min(model.vocab, VOCABULARY), mtp=None)
    todo = "give a torch module that holds it instead: package.module:function"
    problems = [replace(problem, todo=problem.todo or todo) for problem in model_refusals(small)]
    if problems:
        raise InputError(problems)
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed_bytes(small) <= there / 2:
        return small
    small = narrow_model(small)
    if needed_bytes(small) > there:
        given_text = f"about {format_quantity(needed_bytes(small), 'B')} for one narrowed layer of each kind"
        expected_text = f"what the host's memory can hold: {format_quantity(there, 'B')}"
        todo = "use a host with more memory"
        raise InputError(Problem(path="model", given=given_text, expected=expected_text, todo=todo))
    return small


def needed_bytes(model: ModelSpec) -> int:
    """Memory that a training step of these layers takes while every op is judged."""
    return sum(block_params(model.layer(index), model.hidden) for index in range(model.layers)) * BYTES_PER_PARAMETER


def left_out(model: ModelSpec, small: ModelSpec) -> tuple[str, ...]:
    """What of an architecture is not run, in words."""
    omissions = [f"{small.layers} of {model.layers} layers, one of each kind"]
    if small.vocab < model.vocab:
        omissions.append(f"{small.vocab:,} of {model.vocab:,} rows of the vocabulary")
    if small.blocks != model.blocks:
        omissions.append(f"widths: {small.hidden:,} of {model.hidden:,} and the like")
    if model.mtp is not None:
        omissions.append("multi-token prediction")
    return tuple(omissions)


def narrow_model(model: ModelSpec, wide: int = WIDE) -> ModelSpec:
    """The same architecture with widths, heads and experts as few as keep its form."""
    blocks = (replace(block, mixer=_mixer(block.mixer, wide), ffn=_ffn(block.ffn, wide)) for block in model.blocks)
    return replace(
        model, hidden=min(model.hidden, wide), blocks=tuple(blocks), vocab=min(model.vocab, 2 * wide),
        embedding=replace(model.embedding, positions=min(model.embedding.positions, 8 * wide)),
    )  # fmt: skip


def two_layers(model: ModelSpec) -> ModelSpec:
    """Two layers at least: the first kind twice where there is only one."""
    return model if model.layers > 1 else replace(model, order=model.order * 2)


def _mixer(mixer: Mixer | None, wide: int) -> Mixer | None:
    if isinstance(mixer, Attention):
        keys = min(mixer.kv_heads, 2)
        heads = keys * min(mixer.heads // mixer.kv_heads, 2)
        dim, values = min(mixer.head_dim, wide // 4), min(mixer.v_head_dim, wide // 4)
        return replace(mixer, heads=heads, kv_heads=keys, head_dim=dim, v_head_dim=values)
    if isinstance(mixer, LatentAttention):
        return replace(
            mixer, heads=min(mixer.heads, 4), q_rank=min(mixer.q_rank, wide), kv_rank=min(mixer.kv_rank, wide // 2),
            nope_dim=min(mixer.nope_dim, 32), rope_dim=min(mixer.rope_dim, 32), v_dim=min(mixer.v_dim, 32),
        )  # fmt: skip
    return mixer


def _ffn(ffn: Ffn | None, wide: int) -> Ffn | None:
    if isinstance(ffn, Mlp):
        return replace(ffn, hidden=min(ffn.hidden, 2 * wide))
    if isinstance(ffn, Moe):
        groups = min(ffn.groups, 4)
        experts = groups * min(ffn.experts // ffn.groups, 8 // groups if groups > 1 else 8)
        return replace(
            ffn, hidden=min(ffn.hidden, wide // 2), shared_hidden=min(ffn.shared_hidden, wide // 2), experts=experts,
            groups=groups, group_topk=min(ffn.group_topk, groups), topk=min(ffn.topk, max(1, experts // 2)),
        )  # fmt: skip
    return ffn
