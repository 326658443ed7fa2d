"""The model that is brought up, on a device: layers of an architecture, or a torch module of the user's.

    subject_of(model, dtype, device)            one layer of each kind of an architecture
    subject_of(own, dtype, device)              a module that a function makes, with inputs to call it with
    logits, cache = prefill(stage, tokens)      fills a cache of keys and values
    logits, cache = decode(stage, token, cache) adds to it

Weights are made on the host: they are the same on every device.
"""

from __future__ import annotations

import copy
import importlib
import pickle
import sys
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.core.dtype import dtype as dtype_of
from ridgeline.core.errors import InputError, Problem, not_among
from ridgeline.models.spec import ModelSpec
from ridgeline.plan.plan import Plan, Precision
from ridgeline.runtime.bringup.arithmetic import Args, Kwargs
from ridgeline.runtime.bringup.target import OwnModule, Target, left_out, one_of_each
from ridgeline.runtime.train.assemble import TORCH_DTYPES, Blueprint, assemble
from ridgeline.runtime.train.layer import MultiHeadLatentAttention, ScoreRule, SoftmaxAttention, attend_visible
from ridgeline.runtime.train.layout import make_layout
from ridgeline.runtime.train.request import forward_constants
from ridgeline.runtime.train.stage import cross_entropy

TOKENS = (2, 16)
DECODED = 2  # tokens that generation adds to a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A module on a device with what it is fed and its loss.

    forward     inputs to outputs
    loss        outputs to a number
    generate    a prompt, a cache, sampled tokens, with the modules at work told; None where it does not generate
    cut         what was left out of the architecture, in words
    times       how many layers of the model each layer stands for, by the path of its module
    tokens      whether it is a language model of the reference engine: token ids in, logits out
    share       the loss of some rows of its outputs, as their share of the whole batch's
    """

    module: nn.Module
    inputs: Args
    named: Mapping[str, object] = field(default_factory=dict)
    loss: Callable[[Any], Tensor]
    generate: Callable[[Within], Tensor] | None = None
    cut: tuple[str, ...] = ()
    times: Mapping[str, int] = field(default_factory=dict)
    tokens: bool = False
    share: Callable[[Tensor, slice], Tensor] | None = None

    def forward(self) -> Any:
        """The module on its inputs."""
        return self.module(*self.inputs, **self.named)


def subject_of(target: Target, dtype: str, device: str, seed: int = 0) -> Subject:
    """What is brought up, in one format."""
    if isinstance(target, OwnModule):
        return _own_subject(target, dtype, device, seed)
    small = one_of_each(target)
    subject = stage_subject(small, dtype, device, seed)
    counts = {f"layers.{index}": target.order.count(order) for index, order in enumerate(small.order)}
    return replace(subject, times=counts, cut=left_out(target, small))


def stage_subject(
    model: ModelSpec, dtype: str, device: str, seed: int = 0, tokens: tuple[int, int] = TOKENS
) -> Subject:
    """All layers of an architecture, as they are."""
    form = dtype_of(dtype)
    plan = Plan(precision=Precision(compute=form, weights=form, activations=form))
    blueprint = Blueprint(
        model=model, constants=forward_constants(model), plan=plan, placement=(model.layers,), gradients=form,
        seed=seed, fuses=frozenset(),
    )  # fmt: skip
    layout = make_layout(plan, experts=False)
    stage = move_module(assemble(blueprint, layout).stages[0], device)
    source = torch.Generator().manual_seed(seed)
    drawn = torch.randint(0, model.vocab, (tokens[0], tokens[1] + 1), generator=source)
    x, y = drawn[:, :-1].contiguous().to(device), drawn[:, 1:].contiguous().to(device)

    def loss(logits: Tensor) -> Tensor:
        return cross_entropy(logits, y, layout) / y.numel()

    def share(logits: Tensor, rows: slice) -> Tensor:
        return cross_entropy(logits, y[rows], layout) / y.numel()

    def generate(within: Within) -> Tensor:
        with torch.no_grad():
            logits, cache = prefill(stage, x[:, : max(1, tokens[1] // 2)], within)
            for _ in range(DECODED):
                logits, cache = decode(stage, sample_token(logits, source), cache, within)
            return logits

    return Subject(module=stage, inputs=(x,), loss=loss, generate=generate, tokens=True, share=share)


def _own_subject(target: OwnModule, dtype: str, device: str, seed: int) -> Subject:
    """A user's module: its inputs as given, a loss that weighs every output, generation where it has a method."""
    torch.manual_seed(seed)
    module, example = made_module(target)
    form = TORCH_DTYPES[dtype]
    module = move_module(module.to(dtype=form), device)
    move = lambda x: (x.to(form) if x.is_floating_point() else x).to(device) if isinstance(x, Tensor) else x  # noqa: E731
    inputs, keywords = tree_map(move, split_inputs(example))
    ids = next((x for x in (*inputs, *keywords.values()) if isinstance(x, Tensor) and not x.is_floating_point()), None)

    def loss(outputs: object) -> Tensor:
        own_loss = getattr(outputs, "loss", None)
        return own_loss if isinstance(own_loss, Tensor) else weighted_sum(outputs, seed)

    def generate(_within: Within) -> Tensor:
        with torch.no_grad():
            return module.generate(ids, max_new_tokens=DECODED, do_sample=False)

    able = callable(getattr(module, "generate", None)) and ids is not None
    return Subject(module=module, inputs=inputs, named=keywords, loss=loss, generate=generate if able else None)


def adamw(subject: Subject) -> torch.optim.Optimizer:
    """AdamW, parameter by parameter."""
    return torch.optim.AdamW(subject.module.parameters(), lr=1e-3, foreach=False)


def move_module(module: nn.Module, device: str) -> nn.Module:
    """A module on a device; parameters that are one stay one, which torch undoes where tensors change their class."""
    names: dict[int, list[str]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    module = module.to(device)
    for first, *further_names in names.values():
        for other in further_names:
            path, _, last = other.rpartition(".")
            setattr(module.get_submodule(path), last, module.get_parameter(first))
    return module


def weighted_sum(outputs: object, seed: int = 0) -> Tensor:
    """A number that every floating output matters to: its mean product with fixed random weights."""
    values = outputs if not hasattr(outputs, "to_tuple") else outputs.to_tuple()
    source, total = torch.Generator().manual_seed(seed + 1), None
    for y in tree_leaves(values):
        if isinstance(y, Tensor) and y.is_floating_point() and y.requires_grad:
            weights = torch.randn(y.shape, generator=source).to(y.device)
            part = (y.float() * weights).mean()
            total = part if total is None else total + part
    if total is None:
        expected_text = "outputs that are floating tensors and depend on its parameters"
        raise InputError(Problem(path="MODEL", given=type(outputs).__name__, expected=expected_text))
    return total


def split_inputs(given: object) -> tuple[Args, Kwargs]:
    """Positional and named inputs of one tensor, a tuple or a dict."""
    if isinstance(given, Mapping):
        return (), dict(given)
    return (tuple(given) if isinstance(given, tuple | list) else (given,)), {}


def made_module(target: OwnModule) -> tuple[nn.Module, Any]:
    """The module, and what it is called with; an `InputError` where the function is not as expected."""
    if target.held is not None:
        module, example = copy.deepcopy(target.held)
    elif target.pickled:
        module, example = pickle.loads(target.pickled)
    else:
        result = _call_reference(target.reference)
        module, example = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
    if not isinstance(module, nn.Module):
        expected_text = "a function that returns a torch.nn.Module, or a module and its example inputs"
        raise InputError(
            Problem(path="MODEL", given=f"{target.reference}: {type(module).__name__}", expected=expected_text)
        )
    example = getattr(module, "example_inputs", None) if example is None else example
    if example is None:
        expected_text = "example inputs: return (module, inputs), or give the module an attribute example_inputs"
        raise InputError(Problem(path="MODEL", given=f"{target.reference} without inputs", expected=expected_text))
    return module, example


def _call_reference(reference: str) -> Any:
    name, _, function = reference.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        if name.endswith(".py"):
            import runpy

            namespace = runpy.run_path(name)
        else:
            module = importlib.import_module(name)
            namespace = {**vars(module), **({function: getattr(module, function)} if hasattr(module, function) else {})}
        if function not in namespace:
            function_names = [key for key, value in namespace.items() if callable(value) and not key.startswith("_")]
            raise InputError(not_among("MODEL", function, function_names, f"name a function of {name}"))
        return namespace[function]()
    except InputError:
        raise
    except Exception as error:
        given_text = f"{reference}: {type(error).__name__}: {error}".partition("\n")[0]
        expected_text = "module:function, a function without arguments that makes a torch module"
        raise InputError(Problem(path="MODEL", given=given_text, expected=expected_text)) from error


Pair = tuple[Tensor, Tensor]  # keys and values of a layer, or latents and their rotary keys
TOP_K, TEMPERATURE = 20, 0.8
Within = Callable[[str], AbstractContextManager[None]]  # told which module is at work


def nowhere(path: str) -> AbstractContextManager[None]:  # noqa: ARG001
    """Nobody asks which module is at work."""
    return nullcontext()


@dataclass(slots=True)
class Cache:
    """What every layer keeps of the tokens so far: keys and values, or latents and their rotary keys."""

    layers: list[tuple[Tensor, Tensor] | None] = field(default_factory=list)
    tokens: int = 0


def prefill(stage: nn.Module, tokens: Tensor, within: Within = nowhere) -> tuple[Tensor, Cache]:
    """Logits of every token of a prompt, and the cache behind it."""
    return _advance(stage, tokens, Cache(layers=[None] * len(stage.layers)), within)


def decode(stage: nn.Module, token: Tensor, cache: Cache, within: Within = nowhere) -> tuple[Tensor, Cache]:
    """Logits of one more token of each sequence, [batch, 1]."""
    return _advance(stage, token, cache, within)


def sample_token(logits: Tensor, source: torch.Generator | None = None) -> Tensor:
    """One token of each sequence by temperature and top-k; drawn on the host, so that devices can be compared."""
    best = (logits[:, -1].float() / TEMPERATURE).topk(min(TOP_K, logits.shape[-1]), -1)
    chance = best.values.softmax(-1)
    drawn = torch.multinomial(chance.cpu(), 1, generator=source)
    return best.indices.gather(-1, drawn.to(chance.device))


def _advance(stage: nn.Module, tokens: Tensor, cache: Cache, within: Within) -> tuple[Tensor, Cache]:
    count = tokens.shape[1]
    with within("embedding"):
        x = stage.embedding(tokens, torch.arange(cache.tokens, cache.tokens + count, device=tokens.device))
    layers = list(cache.layers)
    for place, (name, layer) in enumerate(stage.layers.items()):

        def mix(x: Tensor, place: int = place, layer: nn.Module = layer, path: str = f"layers.{name}.mixer") -> Tensor:
            with within(path):
                mixer_output, layers[place] = _mix_tokens(layer.mixer, x, layers[place], cache.tokens)
            return mixer_output

        with within(f"layers.{name}"):
            x = layer.attend_by(x, mix)
    x = x if stage.norm is None else stage.norm(x)
    return stage.head(x), Cache(layers=layers, tokens=cache.tokens + count)


def _mix_tokens(mixer: nn.Module, x: Tensor, held: Pair | None, before: int) -> tuple[Tensor, Pair]:
    angles = None
    if mixer.rotary is not None:
        cos, sin = mixer.rotary.angles(before + x.shape[1], x.device)
        angles = cos[before:], sin[before:]
    if isinstance(mixer, SoftmaxAttention):
        return _attention(mixer, x, held, angles)
    assert isinstance(mixer, MultiHeadLatentAttention)
    return _latent_attention(mixer, x, held, angles)


def _attention(mixer: SoftmaxAttention, x: Tensor, held: Pair | None, angles: Pair | None) -> tuple[Tensor, Pair]:
    q, k, v = mixer.heads(x, angles)
    if held is not None:
        k, v = torch.cat((held[0], k), 1), torch.cat((held[1], v), 1)
    return mixer.merge_heads(_attend(q, k, v, mixer.rule)), (k, v)


def _latent_attention(
    mixer: MultiHeadLatentAttention, x: Tensor, held: Pair | None, angles: Pair | None
) -> tuple[Tensor, Pair]:
    mla = mixer.mla
    queries = mixer.query_norm(mixer.query_down(x)) if mla.q_rank else x
    latent, latent_key = mixer.latent(x).split((mla.kv_rank, mla.rope_dim), -1)
    latent, rotary_key = mixer.latent_norm(latent), mixer.rotary(latent_key.unsqueeze(2), angles)
    if held is not None:
        latent, rotary_key = torch.cat((held[0], latent), 1), torch.cat((held[1], rotary_key), 1)
    q = mixer.query(queries).unflatten(-1, (-1, mla.nope_dim + mla.rope_dim))
    up = mixer.key_value(latent).unflatten(-1, (-1, mla.nope_dim + mla.v_dim))
    k, v = up.split((mla.nope_dim, mla.v_dim), -1)
    q = torch.cat((q[..., : mla.nope_dim], mixer.rotary(q[..., mla.nope_dim :], angles)), -1)
    k = torch.cat((k, rotary_key.expand(-1, -1, k.shape[2], -1)), -1)
    return mixer.merge_heads(_attend(q, k, v, mixer.rule)), (latent, rotary_key)


def _attend(q: Tensor, k: Tensor, v: Tensor, rule: ScoreRule) -> Tensor:
    """[batch, tokens, heads, width]; the queries are the last tokens of the keys."""
    tokens, keys, shared = q.shape[1], k.shape[1], q.shape[2] != k.shape[2]
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    hides = (tokens > 1 and tokens != keys) or (rule.window and rule.window < keys)
    if hides or rule.softcap:
        ahead = torch.arange(keys - tokens, keys, device=q.device)[:, None] - torch.arange(keys, device=q.device)
        visible = (ahead >= 0) & (ahead < rule.window) if rule.window else ahead >= 0
        return attend_visible(q, k, v, visible, rule).transpose(1, 2)
    options = {"is_causal": tokens > 1, "scale": rule.scale, "enable_gqa": shared}
    return functional.scaled_dot_product_attention(q, k, v, **options).transpose(1, 2)
