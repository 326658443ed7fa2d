"""Record a forward and its backward on the meta device as an op graph: every op with tensors, module, phase, bytes.

A tensor is the place it shows in memory: storage, offset, sizes, strides, format. So the backward's saved tensors are
the forward's, views share their storage with what they are views of, and a write in place writes the same tensor. An op
of the backward belongs to the module whose forward made its node of autograd. Attention is one op each way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch.autograd.function import FunctionCtx
from torch.utils._pytree import tree_leaves

from ridgeline.core.dtype import ALIASES
from ridgeline.ir.kernel import PRODUCT_OPERANDS, Kernel, attention_kernel, product_kernel
from ridgeline.ir.op_graph import GraphOp, GraphTensor, OpGraph, OpKind, OpPhase, TensorRole, traffic
from ridgeline.runtime.capture.recording import (
    GROUPED,
    Arguments,
    Elsewhere,
    Recorder,
    attention_hooks,
    follow_modules,
    whole_recurrences,
)

Place = tuple[int, int, tuple[int, ...], tuple[int, ...], torch.dtype]
SKIPPED = frozenset({"detach", "alias", "lift_fresh", "_assert_tensor_metadata", "is_same_size", "sym_size", "empty"})
"""Ops that run nothing and show the same memory, and memory that nothing was written to yet."""
_WORDS: Mapping[OpKind, str] = {
    "attention": "attend attend_backward",
    "product": "_grouped_mm grouped_mm_fallback convolution convolution_backward addbmm addmv mv dot",
    "reduction": "sum mean amax amin var var_mean std argmax argmin any all norm prod logsumexp max min"
    " linalg_vector_norm nll_loss_forward",
    "norm": "native_layer_norm _fused_rms_norm native_layer_norm_backward _fused_rms_norm_backward native_group_norm"
    " native_group_norm_backward native_batch_norm",
    "softmax": "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
    "gather": "embedding index index_select gather _unsafe_index",
    "scatter": "embedding_dense_backward index_put _index_put_impl _unsafe_index_put index_add index_copy scatter"
    " scatter_add nll_loss_backward",
    "sort": "sort topk argsort unique bincount histc cumsum nonzero",
    "random": "native_dropout bernoulli rand randn randint rand_like",
    "copy": "copy clone cat stack _to_copy repeat slice_backward select_backward constant_pad_nd roll flip"
    " repeat_interleave split_with_sizes_copy",
    "create": "zeros ones full arange zeros_like ones_like full_like new_zeros new_ones new_full empty_like new_empty"
    " zero fill scalar_tensor eye",
}
KINDS: Mapping[str, OpKind] = {
    **dict.fromkeys(PRODUCT_OPERANDS, "product"),
    **{word: kind for kind, words in _WORDS.items() for word in words.split()},
}
"""Kinds of ops by name; what is not here is pointwise where every output has the size of its largest input."""
OVERWRITES = frozenset({"zero_", "fill_", "copy_"})
"""Ops that write their first argument without reading it."""
UNFILLED = frozenset({"empty_like", "new_empty"})


class GraphRecorder(Recorder):
    """Writes down tensors and ops of whatever runs while it is on."""

    reads_masks = True

    def __init__(self, module: nn.Module) -> None:
        super().__init__({})
        self.names = {id(weight): name for name, weight in module.named_parameters()}
        self.phase: OpPhase = "forward"
        self.tensors: list[GraphTensor] = []
        self.ops: list[GraphOp] = []
        self.places: dict[Place, int] = {}
        self.storages: dict[int, int] = {}  # the first tensor that showed it
        self.paths: dict[int, str] = {}  # of the module at work, by the number of a node of autograd
        self.keys: list[object] = []  # storages that are gone would lend their numbers to others
        for name, weight in module.named_parameters():
            self._number(weight, "weight", name)

    # -- tensors ------------------------------------------------------------------------------------------------------

    def _number(self, x: Tensor, role: TensorRole = "activation", name: str = "") -> int:
        storage = x.untyped_storage()
        place = (storage._cdata, x.storage_offset(), tuple(x.shape), tuple(x.stride()), x.dtype)
        if place in self.places:
            return self.places[place]
        number = self.places[place] = len(self.tensors)
        self.keys.append(storage)
        first = self.storages.setdefault(storage._cdata, number)
        word = str(x.dtype).removeprefix("torch.")
        self.tensors.append(
            GraphTensor(
                id=number, shape=tuple(x.shape), dtype=ALIASES.get(word, word), name=name,
                role=role if first == number else self.tensors[first].role, alias_of=-1 if first == number else first,
            )
        )  # fmt: skip
        return number

    def note_inputs(self, inputs: object) -> None:
        """Tensors that the module is called with."""
        for x in tree_leaves(inputs):
            if isinstance(x, Tensor):
                self._number(x, "input")

    # -- ops ----------------------------------------------------------------------------------------------------------

    def _note(self, func: OpOverload, name: str, tensors: list[Tensor], result: object, args: Arguments) -> None:
        outputs = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if not outputs or name in SKIPPED or func.namespace == "prim":
            return
        is_view = bool(func.is_view) or name in ("_unsafe_view", "_reshape_alias")
        self._write_op(f"{func.namespace}.{name}", name, tensors, outputs, args, is_view)

    def _write_op(
        self, full: str, name: str, tensors: list[Tensor], outputs: list[Tensor], args: Arguments, is_view: bool
    ) -> None:
        inputs = tuple(dict.fromkeys(self._number(x, "constant") for x in tensors))
        written = tuple(dict.fromkeys(self._number(x) for x in outputs))
        kind: OpKind = "view" if is_view else kind_of(name, tensors, outputs)
        reads = [self.tensors[number] for number in inputs]
        if name in OVERWRITES:
            reads = reads[1:]
        kernel = self._kernel(name, tensors, args) if kind in ("product", "attention") else None
        self.ops.append(
            GraphOp(
                id=len(self.ops), name=full, kind=kind, inputs=inputs, outputs=written, module=self._module(),
                phase=self.phase, flops=kernel.flops if kernel else 0.0, kernel=kernel,
                bytes_read=0.0 if is_view or kind == "create" else traffic(reads),
                bytes_written=0.0 if is_view or name in UNFILLED else traffic(self.tensors[n] for n in written),
            )
        )  # fmt: skip

    def _module(self) -> str:
        """The module at work; in a backward, the one whose forward made the node that runs."""
        if self.phase == "forward":
            path = self.recording.calls[self.stack[-1]].path if self.stack else ""
            self.paths[torch.autograd._get_sequence_nr() - 1] = path
            return path
        node = torch._C._current_autograd_node()
        return self.paths.get(node._sequence_nr(), "") if node is not None else ""

    def _kernel(self, name: str, tensors: list[Tensor], args: Arguments) -> Kernel | None:
        word = str(tensors[0].dtype).removeprefix("torch.")
        moved_bytes = sum(x.numel() * x.element_size() for x in tensors)
        if name in PRODUCT_OPERANDS:
            first, second = (args[place] for place in PRODUCT_OPERANDS[name])
            return product_kernel(tuple(first.shape), tuple(second.shape), ALIASES.get(word, word), moved_bytes)
        if name in GROUPED:
            return _grouped_kernel(args[0], args[1], ALIASES.get(word, word), moved_bytes)
        if name.startswith("attend"):
            return _attention(tensors, ALIASES.get(word, word), (int(args[-2]), bool(args[-1])), name, moved_bytes)
        return None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, **facts: object) -> Tensor:
        """Softmax attention as one op of [.., heads, tokens, width]; fewer heads of keys are shared."""
        pairs = _pairs(query, key, facts)
        return _WholeAttention.apply(query, key, value, pairs, bool(facts.get("causal", True)))

    def graph(self, name: str) -> OpGraph:
        """Everything so far, with the tensors that lie between forward and backward."""
        written_forward = {n for op in self.ops if op.phase == "forward" and op.kind != "view" for n in op.outputs}
        storage = [tensor.id if tensor.alias_of < 0 else tensor.alias_of for tensor in self.tensors]
        made_storages = {storage[n] for n in written_forward}
        read = {storage[n] for op in self.ops if op.phase == "backward" and op.kind != "view" for n in op.inputs}
        tensors = tuple(
            replace(tensor, saved=True)
            if storage[tensor.id] in read & made_storages and tensor.alias_of < 0
            else tensor
            for tensor in self.tensors
        )
        return OpGraph(name=name, source=f"torch {torch.__version__}", tensors=tensors, ops=tuple(self.ops))


def kind_of(name: str, tensors: Sequence[Tensor], outputs: Sequence[Tensor]) -> OpKind:
    """The kind of an op that is no view."""
    word = name.rstrip("_") if name not in KINDS else name
    if word in KINDS:
        return KINDS[word]
    largest = max((x.numel() for x in tensors), default=0)
    size = max(x.numel() for x in outputs)
    if not tensors:
        return "create"
    shapes = [tuple(x.shape) for x in tensors]
    try:
        fits = prod(torch.broadcast_shapes(*shapes)) == size
    except RuntimeError:
        fits = size == largest
    return "pointwise" if fits or size == largest else "unknown"


def _grouped_kernel(x: Tensor, weight: Tensor, dtype: str, moved: float) -> Kernel:
    """Rows of all experts times the matrix of each, or both sides by rows for the gradient of those matrices."""
    if x.dim() == 2 and weight.dim() == 3:
        dims = {"groups": weight.shape[0], "rows": x.shape[0], "n": weight.shape[-1], "k": x.shape[-1]}
    else:
        rows = x.shape[-1]
        dims = {"groups": 1, "rows": rows, "n": weight.shape[-1], "k": x.shape[-2]}
    return Kernel(op="grouped_gemm", dtype=dtype, dims=dims, moved=moved)


def _pairs(query: Tensor, key: Tensor, facts: Mapping[str, object]) -> int:
    """Query-key pairs of all heads that are worked out; 0 where half of all of them are (causal attention)."""
    tokens, keys = query.shape[-2], key.shape[-2]
    heads = int(query.numel() // max(1, tokens * query.shape[-1]))
    mask, width = facts.get("mask"), facts.get("window")
    window = width if isinstance(width, int) else 0
    if isinstance(mask, Tensor) and mask.dtype == torch.bool and not mask.is_meta:
        return int(int(mask.sum()) * heads * tokens * keys // max(1, mask.numel()))
    if window and window < keys:
        inside = keys * (window + 1) // 2 if facts.get("chunked") else window * keys - window * (window - 1) // 2
        return int(heads * inside)
    return 0


def _attention(tensors: Sequence[Tensor], dtype: str, shown: tuple[int, bool], name: str, moved: float) -> Kernel:
    query, key, value = tensors[-3:] if name == "attend" else tensors[1:4]
    tokens, keys = query.shape[-2], key.shape[-2]
    heads = query.numel() // max(1, tokens * query.shape[-1])
    pairs, causal = shown
    kernel = attention_kernel(
        heads, (tokens, keys), (query.shape[-1], value.shape[-1]), dtype, causal=causal and not pairs,
        backward=name.endswith("backward"), moved=moved,
    )  # fmt: skip
    return replace(kernel, dims={**kernel.dims, "pairs": pairs}) if pairs else kernel


_LIBRARY = torch.library.Library("ridgeline", "DEF")
_LIBRARY.define("attend(Tensor q, Tensor k, Tensor v, int pairs, bool causal) -> (Tensor, Tensor)")
_LIBRARY.define(
    "attend_backward(Tensor grad, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, int pairs, bool causal)"
    " -> (Tensor, Tensor, Tensor)"
)


def _attend_shapes(q: Tensor, k: Tensor, v: Tensor, pairs: int, causal: bool) -> tuple[Tensor, Tensor]:
    del k, pairs, causal
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(q.shape[:-1], dtype=torch.float32)


def _attend_backward_shapes(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, pairs: int, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    del grad, out, lse, pairs, causal
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


_LIBRARY.impl("attend", _attend_shapes, "Meta")
_LIBRARY.impl("attend_backward", _attend_backward_shapes, "Meta")


class _WholeAttention(torch.autograd.Function):  # type: ignore[misc]
    """Attention as an op each way; the forward saves its operands, its result and a number for each query."""

    @staticmethod
    def forward(ctx: FunctionCtx, q: Tensor, k: Tensor, v: Tensor, pairs: int, causal: bool) -> Tensor:
        out, lse = torch.ops.ridgeline.attend(q, k, v, pairs, causal)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.facts = pairs, causal
        return out

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
        grads = torch.ops.ridgeline.attend_backward(grad, *ctx.saved_tensors, *ctx.facts)
        return (*grads, None, None)


def record_step(
    module: nn.Module, run: Callable[[GraphRecorder], Tensor | Sequence[Tensor]], inputs: object
) -> GraphRecorder:
    """A forward of a module on the meta device and the backward of what it returns, written down."""
    recorder = GraphRecorder(module)
    with torch.enable_grad(), follow_modules(module, recorder), attention_hooks(recorder), whole_recurrences():
        recorder.note_inputs(inputs)
        with recorder, Elsewhere():
            answer = run(recorder)
            results = [x for x in tree_leaves(answer) if isinstance(x, Tensor) and x.requires_grad]
            recorder.phase = "backward"
            if results:
                torch.autograd.backward(results, [torch.empty_like(x) for x in results])
    return recorder
