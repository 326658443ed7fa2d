"""Run a module once without its weights and write down what it does: a graph of ops, each with the module at work.

    recorded(module, inputs)   ->   Recording

Weights and activations live on the meta device, which has shapes and no values; whole numbers and masks are real, so
that what a model decides by positions and ids is decided. What it decides by its activations (which expert, whether to
stop) is answered with "the first" and "no"; where that does not do (`decided`), choices are made one after the other
and comparisons are no, both with values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from ridgeline.core.documents import JsonMapping, JsonObject
from ridgeline.core.errors import InputError, Problem

LARGEST_REAL = 1 << 22  # elements of a tensor that is made for real: masks and positions
MOST_OPS = 400_000
PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "_grouped_mm", "grouped_mm_fallback", "convolution", "addbmm"})
FACTORIES = frozenset(
    {"arange", "ones", "zeros", "full", "empty", "eye", "linspace", "scalar_tensor", "tril_indices", "triu_indices"}
)
GROUPED = frozenset({"_grouped_mm", "grouped_mm_fallback"})
PICKS = frozenset({"index", "index_put", "index_put_", "_unsafe_index"})
COMPARES = frozenset({"gt", "lt", "ge", "le", "eq", "ne"})
ATTEND = "attend"
Arguments = Sequence[Any]
"""Of an op: tensors, numbers, lists of them."""


@dataclass(slots=True, kw_only=True)
class OpNode:
    """One op: what it is called, in which call of which module, what it read and what came of it.

    inputs    nodes whose results it reads, by argument; -1 for what no op made
    weights   parameters that it reads, as they are or through ops on parameters alone
    shapes    of its tensors, by argument
    calls     numbers of the module calls it is inside, outermost first
    facts     what only this op has: k of a top-k, the window of an attention
    """

    op: str
    inputs: tuple[int, ...]
    weights: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    out: tuple[int, ...]
    calls: tuple[int, ...]
    view: bool = False
    facts: JsonMapping = field(default_factory=dict)

    @property
    def elements(self) -> int:
        return prod(self.out)


@dataclass(slots=True, kw_only=True)
class ModuleCall:
    """One call of a module: its path, and the width of what it returned."""

    path: str
    kind: str
    out: tuple[int, ...] = ()
    read: tuple[int, ...] = ()


@dataclass(slots=True, kw_only=True)
class Recording:
    """Everything one forward did: its ops, its module calls, and what it decided by activations, guessed.

    given     what it was called with, by the place of the node: "text", "image", "sound" or "other"
    """

    nodes: list[OpNode] = field(default_factory=list)
    calls: list[ModuleCall] = field(default_factory=list)
    guessed: set[str] = field(default_factory=set)
    given: dict[int, str] = field(default_factory=dict)

    def path(self, node: OpNode) -> str:
        return self.calls[node.calls[-1]].path if node.calls else ""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Notes every op that reads a parameter or an activation, and lets it run on the meta device."""

    reads_masks = False  # whether `attend` is told the mask of an attention

    def __init__(self, names: Mapping[int, str], decided: bool = False) -> None:
        super().__init__()
        self.recording = Recording()
        self.decided = decided
        self.stack: list[int] = []
        self.made: dict[int, int] = {}  # tensor -> node
        self.weights: dict[int, tuple[str, ...]] = {key: (name,) for key, name in names.items()}
        self.bases: dict[int, int] = {}  # view -> what it is a view of
        self.alive: list[object] = []  # a tensor that is gone would lend its number to another

    def __torch_dispatch__(
        self, func: OpOverload, types: object, args: Arguments = (), kwargs: JsonMapping | None = None
    ) -> object:
        keywords = dict(kwargs or {})
        name = func.overloadpacket.__name__
        tensors = [x for x in tree_leaves((args, keywords)) if isinstance(x, Tensor)]
        answer = self._answer_query(name, tensors)
        if answer is not None:
            return answer[0]
        inner, keywords = self._place_op(name, tensors, args, keywords)
        if name in GROUPED and tensors[0].is_meta:  # its kernel would ask for aligned rows
            result = torch.empty(_grouped_shape(inner, keywords), dtype=inner[0].dtype, device="meta")
        else:
            result = func(*inner, **keywords)
        if self.decided:
            result = _decide_result(name, tensors, result)
        self._note(func, name, tensors, result, args)
        return result

    def _answer_query(self, name: str, tensors: list[Tensor]) -> tuple[object] | None:
        """What a meta tensor cannot tell: numbers are 0, comparisons are no, the first element is the one."""
        if not tensors or not tensors[0].is_meta:
            return None
        if name == "_local_scalar_dense":
            self.recording.guessed.add("numbers read from activations are taken to be 0")
            kind = tensors[0].dtype
            return (False if kind == torch.bool else 0.0 if kind.is_floating_point else 0,)
        if name in ("is_nonzero", "equal"):
            return (name == "equal",)
        if name == "nonzero":
            self.recording.guessed.add("of rows picked by activations one is taken")
            return (torch.empty((1, tensors[0].dim()), dtype=torch.int64, device="meta"),)
        return None

    def _place_op(
        self, name: str, tensors: list[Tensor], args: Arguments, given: JsonObject
    ) -> tuple[Arguments, JsonObject]:
        """Arguments on one device: all on meta where one is, and small new tensors real."""
        if any(x.is_meta for x in tensors):
            if name in PICKS and any(_masks(x) for x in args[1]):
                places = [place for x in args[1] for place in (x.nonzero(as_tuple=True) if _masks(x) else (x,))]
                args = (args[0], places, *args[2:])
            if not all(x.is_meta for x in tensors):
                args, given = tree_map(lambda x: x.to("meta") if isinstance(x, Tensor) else x, (args, given))
            if given.get("device") is not None:
                given["device"] = torch.device("meta")
            if name in PICKS and any(x.is_meta and x.dtype == torch.bool for x in tensors[1:]):
                self.recording.guessed.add("masks made of activations are taken to pick everything")
                args = _index_shape(args)
            return _one_format(name, args), given
        if not tensors and name in FACTORIES and str(given.get("device")) == "meta":
            sizes = args[0] if args and isinstance(args[0], (list, tuple)) else args[:1]
            if prod(int(size) for size in sizes if isinstance(size, int)) <= LARGEST_REAL:
                given["device"] = torch.device("cpu")
        return args, given

    def _note(self, func: OpOverload, name: str, tensors: list[Tensor], result: object, args: Arguments) -> None:
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        self.alive.append((outputs, tensors))
        if not outputs or name == "new_empty":
            return
        sources = [self.made.get(id(x), -1) for x in tensors]
        weight_names = tuple(dict.fromkeys(name_ for x in tensors for name_ in self.weights.get(id(x), ())))
        if not any(source >= 0 for source in sources) and weight_names and name != "embedding":
            self.weights.update({id(x): weight_names for x in outputs})
            return
        view = bool(func.is_view)
        if view and tensors:
            self.bases.update({id(x): id(tensors[0]) for x in outputs if x is not tensors[0]})
        if all(source < 0 for source in sources) and not weight_names:
            return
        facts = {"k": args[1]} if name == "topk" and len(args) > 1 else {}
        self.add(name, sources, weight_names, tensors, outputs, facts, view=view)
        if name.endswith("_"):
            self._written_through(id(outputs[0]))

    def _written_through(self, view: int) -> None:
        """What is written into a view is written into what it is a view of."""
        base, visited_views = self.bases.get(view), {view}
        while base is not None and base not in visited_views:
            visited_views.add(base)
            self.made[base] = len(self.recording.nodes) - 1
            base = self.bases.get(base)

    def add(
        self, op: str, sources: list[int], weights: tuple[str, ...], tensors: list[Tensor], outputs: list[Tensor],
        facts: JsonMapping, view: bool = False,
    ) -> None:  # fmt: skip
        node = OpNode(
            op=op, inputs=tuple(sources), weights=weights, shapes=tuple(tuple(x.shape) for x in tensors),
            out=tuple(outputs[0].shape), calls=tuple(self.stack), view=view, facts=facts,
        )  # fmt: skip
        self.recording.nodes.append(node)
        if len(self.recording.nodes) > MOST_OPS:
            raise InputError(
                Problem(path="model", given="a forward without an end", expected=f"at most {MOST_OPS} ops of a forward")
            )
        self.made.update({id(x): len(self.recording.nodes) - 1 for x in outputs})

    def note_inputs(self, inputs: object) -> None:
        for name, value in inputs.items() if isinstance(inputs, Mapping) else (("", inputs),):
            for x in tree_leaves(value):
                if isinstance(x, Tensor):
                    self.alive.append(x)
                    self.recording.given[len(self.recording.nodes)] = _sort(name, x)
                    self.add("input", [], (), [], [x], {})

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **facts: object) -> Tensor:
        """Softmax attention as one op: heads are the second dim from the front, or the third from behind."""
        out = query.new_empty((*query.shape[:-1], value.shape[-1]))
        self.alive.append((query, key, value, out))
        tensors = [query, key, value]
        sink_names = self.weights.get(id(facts.pop("sinks", None)), ())
        self.add(ATTEND, [self.made.get(id(x), -1) for x in tensors], sink_names, tensors, [out], facts)
        return out


def _grouped_shape(args: Arguments, named: JsonMapping) -> tuple[int, ...]:
    """Sizes of a grouped product: rows of all groups, or a matrix of each where both sides are cut into groups."""
    first, second = args[0], args[1]
    ends = named.get("offs", args[2] if len(args) > 2 else None)
    if first.dim() == second.dim() == 2 and ends is not None:
        return (ends.shape[0], first.shape[0], second.shape[1])
    return (*first.shape[:-1][-2 if second.dim() == first.dim() == 3 else -1 :], second.shape[-1])


def _sort(name: str, x: Tensor) -> str:
    """What an input is, by its name, or its format and dims where the name says nothing."""
    if name.startswith(("pixel_values", "flattened_patches", "image")):
        return "image" if x.is_floating_point() else "other"
    if name.startswith(("input_features", "input_values", "audio")):
        return "sound"
    if name.startswith(("qformer", "protein", "bbox")) or name.endswith("mask"):
        return "other"
    return "image" if x.is_floating_point() and x.dim() > 3 else "text"


def _masks(x: object) -> bool:
    return isinstance(x, Tensor) and x.dtype == torch.bool and not x.is_meta


def _decide_result(name: str, tensors: list[Tensor], result: Tensor) -> Tensor | tuple[Tensor, Tensor]:
    """A decision of activations with values: choices one after the other, comparisons no."""
    if not tensors or not tensors[0].is_meta or not tensors[0].is_floating_point():
        return result
    if name in COMPARES and result.numel() <= LARGEST_REAL:
        return torch.zeros(result.shape, dtype=torch.bool)
    if name in ("topk", "sort") and result[1].numel() <= LARGEST_REAL:
        many = max(1, tensors[0].shape[-1] if tensors[0].dim() else 1)
        return (result[0], (torch.arange(result[1].numel()) % many).reshape(result[1].shape))
    if name in ("argmax", "argmin"):
        return torch.zeros(result.shape, dtype=torch.int64)
    return result


def _index_shape(args: Arguments) -> Arguments:
    """A mask that picks elements, without values: it picks all of them."""
    places: list[Tensor | None] = []
    for index in args[1]:
        masks = isinstance(index, Tensor) and index.dtype == torch.bool
        places += [torch.empty((index.numel(),), dtype=torch.int64, device="meta")] * index.dim() if masks else [index]
    return (args[0], places, *args[2:])


def _one_format(name: str, args: Arguments) -> Arguments:
    """Factors of a product in the format of the first: no value is lost where there are none."""
    if name not in PRODUCTS:
        return args
    first = next(x for x in args if isinstance(x, Tensor))
    return tuple(x.to(first.dtype) if isinstance(x, Tensor) and x.is_floating_point() else x for x in args)


@contextmanager
def follow_modules(module: nn.Module, recorder: Recorder) -> Iterator[None]:
    def enter(path: str, part: nn.Module, args: object, kwargs: object) -> None:
        recorder.stack.append(len(recorder.recording.calls))
        first = next((x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)), None)
        read = tuple(first.shape) if first is not None else ()
        recorder.recording.calls.append(ModuleCall(path=path, kind=type(part).__name__, read=read))

    def leave(_part: nn.Module, _args: object, output: object) -> None:
        first = next((x for x in tree_leaves(output) if isinstance(x, Tensor)), None)
        call = recorder.stack.pop()
        recorder.recording.calls[call].out = tuple(first.shape) if first is not None else ()

    handles = []
    for path, part in module.named_modules():
        handles.append(part.register_forward_pre_hook(partial(enter, path), with_kwargs=True))
        handles.append(part.register_forward_hook(leave, always_call=True))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def attention_hooks(recorder: Recorder) -> Iterator[None]:
    """torch's attention is one op while this lasts."""
    functional = nn.functional
    own_attention: Callable[..., Tensor] = functional.scaled_dot_product_attention

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *_: object, **named: Any) -> Tensor:
        mask = named.get("attn_mask", mask)
        more = {"mask": mask} if recorder.reads_masks else {}
        return recorder.attend(q, k, v, causal=bool(named.get("is_causal")) or mask is not None, window=0, **more)

    checks = torch.distributions.Distribution._validate_args  # which would look at values
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.distributions.Distribution.set_default_validate_args(False)
    functional.scaled_dot_product_attention = attend
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        functional.scaled_dot_product_attention = own_attention
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.distributions.Distribution.set_default_validate_args(checks)


class Elsewhere(TorchFunctionMode):  # type: ignore[misc]
    """Sends what asks for an accelerator to the meta device: none is needed where there are no values."""

    def __torch_function__(
        self, func: Callable[..., object], types: object, args: Arguments = (), kwargs: JsonMapping | None = None
    ) -> object:
        keywords = dict(kwargs or {})
        if func is Tensor.cuda:
            return args[0].to("meta")
        if any(map(_accelerator, args[1:])):
            args = tuple(torch.device("meta") if _accelerator(x) else x for x in args)
        if _accelerator(keywords.get("device")):
            keywords["device"] = "meta"
        return func(*args, **keywords)


def _accelerator(x: object) -> bool:
    """Whether it names a device that is neither the host nor empty."""
    kind = x.type if isinstance(x, torch.device) else x.partition(":")[0] if isinstance(x, str) else ""
    return kind in ("cuda", "npu", "xpu", "mps", "hpu", "xla")


@contextmanager
def whole_recurrences() -> Iterator[None]:
    """torch's recurrent networks take a first state from where their inputs are, while this lasts."""
    own_functions = {name: getattr(torch._VF, name) for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}

    def moved_function(name: str) -> Callable[..., Tensor]:
        def run(x: Tensor, state: object, *more: object) -> Tensor:
            return own_functions[name](
                x, tree_map(lambda leaf: leaf.to(x.device) if isinstance(leaf, Tensor) else leaf, state), *more
            )

        return run

    for name in own_functions:
        setattr(torch._VF, name, moved_function(name))
    try:
        yield
    finally:
        for name in own_functions:
            delattr(torch._VF, name)


def record_forward(
    module: nn.Module, run: Callable[[Recorder], object], inputs: object, *, decided: bool = False
) -> Recording:  # fmt: skip
    """One forward of a module on the meta device, written down; `run` calls it under the recorder."""
    names = {id(weight): name for name, weight in module.named_parameters()}
    recorder = Recorder(names, decided)
    with torch.no_grad(), follow_modules(module, recorder), attention_hooks(recorder), whole_recurrences():
        recorder.note_inputs(inputs)
        with recorder, Elsewhere():
            run(recorder)
    return recorder.recording


def capture_problem(name: str, wrong: Exception) -> Problem:
    message = " ".join(str(wrong).split())[:200]
    return Problem(
        path="module",
        given=f"{name}: {type(wrong).__name__}: {message}",
        expected="a forward that runs without values, on the meta device",
        todo="give example_inputs that its forward takes; it can read no numbers out of tensors",
    )
