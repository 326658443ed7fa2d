"""The model that is brought up: one layer of each kind of an architecture, with its real widths, on a device."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ridgeline.core.dtype import dtype as dtype_of
from ridgeline.core.errors import InputError, Problem
from ridgeline.core.units import format_quantity
from ridgeline.models.params import block_params
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.plan import Plan, Precision
from ridgeline.runtime.train.assemble import Blueprint, assemble
from ridgeline.runtime.train.layout import spread
from ridgeline.runtime.train.numerics import usual_numerics
from ridgeline.runtime.train.refuse import model_refusals
from ridgeline.runtime.train.stage import cross_entropy

VOCABULARY = 4096  # rows of the embedding and the head that are made: the rest is more of the same
TOKENS = (2, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A module on a device with what it is fed and its loss.

    cut    what was left out of the architecture, in words
    """

    module: nn.Module
    inputs: tuple[Tensor, ...]
    loss: Callable[..., Tensor]
    cut: tuple[str, ...] = ()


BYTES_PER_PARAMETER = 4 + 4 + 8 + 8  # fp32 weight, gradient and AdamW's moments, and what judging copies of it


def one_of_each(model: ModelSpec) -> ModelSpec:
    """The architecture with one layer of each kind and few rows of its vocabulary.

    An `InputError` says what of it is not built, or that the host has too little memory for a layer.
    """
    first = {block: index for index, block in reversed(list(enumerate(model.order)))}
    order = tuple(model.order[index] for index in sorted(first.values()))
    small = replace(model, order=order, vocab=min(model.vocab, VOCABULARY), mtp=None)
    problems = list(model_refusals(small))
    needed = sum(block_params(block, model.hidden) for block in model.blocks) * BYTES_PER_PARAMETER
    there = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > there:
        given = f"about {format_quantity(needed, 'B')} for one layer of each kind"
        expected = f"what the host's memory can hold: {format_quantity(there, 'B')}"
        todo = "bring up a smaller model of the same family, or use a host with more memory"
        problems.append(Problem(path="model", given=given, expected=expected, todo=todo))
    if problems:
        raise InputError(problems)
    return small


def subject_of(model: ModelSpec, dtype: str, device: str, seed: int = 0, tokens: tuple[int, int] = TOKENS) -> Subject:
    """One layer of each kind, in one format."""
    small = one_of_each(model)
    order = small.order
    cut = [f"{len(order)} of {model.layers} layers, one of each kind"]
    if small.vocab < model.vocab:
        cut.append(f"{small.vocab:,} of {model.vocab:,} rows of the vocabulary")
    form = dtype_of(dtype)
    plan = Plan(precision=Precision(compute=form, weights=form, activations=form))
    blueprint = Blueprint(
        model=small, numerics=usual_numerics(model), plan=plan, placement=(len(order),), gradients=form,
        seed=seed, fuses=frozenset(),
    )  # fmt: skip
    layout = spread(plan, experts=False)
    stage = assemble(blueprint, layout).stages[0].to(device)  # made on the host: the same weights on every device
    source = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, small.vocab, (tokens[0], tokens[1] + 1), generator=source)
    inputs = drawn[:, :-1].contiguous().to(device), drawn[:, 1:].contiguous().to(device)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(stage(x), y, layout) / y.numel()

    return Subject(module=stage, inputs=inputs, loss=loss, cut=tuple(cut))
