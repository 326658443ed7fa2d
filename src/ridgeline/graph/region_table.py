"""The table of regions: chains of ops that meet in a transformer, composed by name and written down op by op.

    rmsnorm                  residual+layernorm        linear+bias+gelu          router-topk
    cross-entropy            dropout-residual          linear+swiglu             moe-permute

A name is words of `WORDS`, joined by `+` or `-`; each takes what the word before it wrote. What PyTorch runs for a word
in eager mode is stated once, as code on a `Tape`, whose rules write the backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from ridgeline.core.errors import InputError, not_among
from ridgeline.graph.tape import Tape
from ridgeline.ir.op_graph import OpGraph

HEAD = 128  # width of a head, of rotary embeddings and of norms by head
CHOICES = 8  # experts of a token
PLAIN, GATED = 4, 2  # how much wider than its input a feed-forward is
WIDEST_HIDDEN = 24_576  # of a head with loss: a width above it is a vocabulary
USUAL_HIDDEN, USUAL_VOCABULARY = 4096, 128_256  # the other side of a head with loss


@dataclass(slots=True, kw_only=True)
class Flow:
    """What runs through a region while it is written: the tensor at hand, the other half of a gate, results so far.

    words     all words of the region, so that a product knows what follows it
    """

    tape: Tape
    rows: int
    width: int
    words: tuple[str, ...]
    x: int = -1
    second_half: int = -1
    results: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def current(self) -> int:
        """The tensor at hand; a fresh input of the region's size where nothing was written yet."""
        if self.x < 0:
            self.x = self.tape.input((self.rows, self.width))
        return self.x


def _rmsnorm(flow: Flow) -> None:
    tape = flow.tape
    x = _by_head(flow)
    shape = tape.shape(x)
    weight = tape.input(shape[-1:], role="weight")
    if "fused" in flow.words:
        statistics = tape.tensor((*shape[:-1], 1), "fp32")
        flow.x = tape.atomic("_fused_rms_norm", "norm", [x, weight], shape, side_outputs=[statistics])
        return
    wide = tape.pointwise("_to_copy", x, dtype="fp32")
    mean = tape.row_reduction("mean", tape.pointwise("pow", wide))
    scale = tape.pointwise("rsqrt", tape.pointwise("add", mean, rule="shift"))
    narrow = tape.pointwise("_to_copy", tape.pointwise("mul", wide, scale), dtype=tape.dtype)
    flow.x = tape.pointwise("mul", narrow, weight)


def _layernorm(flow: Flow) -> None:
    tape = flow.tape
    x = _by_head(flow)
    shape = tape.shape(x)
    weights = [tape.input(shape[-1:], role="weight") for _ in range(2)]
    statistics = [tape.tensor((*shape[:-1], 1), "fp32") for _ in range(2)]
    flow.x = tape.atomic("native_layer_norm", "norm", [x, *weights], shape, side_outputs=statistics)


def _by_head(flow: Flow) -> int:
    """The tensor at hand as rows of heads, where the region says so."""
    x = flow.current
    if "heads" not in flow.words:
        return x
    rows, width = flow.tape.shape(x)
    return flow.tape.view("view", x, (rows * max(1, width // HEAD), min(HEAD, width)))


def _residual(flow: Flow) -> None:
    x = flow.current
    flow.x = flow.tape.pointwise("add", x, flow.tape.input(flow.tape.shape(x)))
    flow.results.append(flow.x)


def _softmax(flow: Flow) -> None:
    shape = flow.tape.shape(flow.current)
    flow.x = flow.tape.atomic("_softmax", "softmax", [flow.current], shape)


def _router(flow: Flow) -> None:
    """Scores of all experts in fp32, the best of them, weighed by their sum."""
    tape, rows = flow.tape, flow.rows
    wide = tape.pointwise("_to_copy", flow.current, dtype="fp32")
    scores = tape.atomic("_softmax", "softmax", [wide], tape.shape(wide), dtype="fp32")
    chosen = (rows, min(CHOICES, flow.width))
    places = tape.tensor(chosen, "int64")
    best = tape.atomic("topk", "sort", [scores], chosen, dtype="fp32", side_outputs=[places])
    weighed_rows = tape.pointwise("div", best, tape.row_reduction("sum", best))
    flow.x = tape.pointwise("_to_copy", weighed_rows, dtype=tape.dtype)


def _rotary(flow: Flow) -> None:
    """Half-split rotation of all heads: x cos + turned(x) sin."""
    tape = flow.tape
    rows, width = tape.shape(flow.current)
    heads = (rows, max(1, width // HEAD), min(HEAD, width))
    x = tape.view("view", flow.current, heads)
    cos, sin = (tape.input((rows, 1, heads[-1]), is_trained=False) for _ in range(2))
    half = (*heads[:-1], heads[-1] // 2)
    first, second = (tape.view("slice", x, half) for _ in range(2))
    turned_x = tape.tensor(heads)
    parts = [tape.pointwise("neg", second), first]
    tape.run("cat", "copy", parts, [turned_x])
    turned_x = tape._note("cat", parts, turned_x)
    flow.x = tape.pointwise("add", tape.pointwise("mul", x, cos), tape.pointwise("mul", turned_x, sin))


def _bias(flow: Flow) -> None:
    if flow.words[max(0, flow.words.index("bias") - 1)] == "linear":
        return  # the product adds it
    x = flow.current
    flow.x = flow.tape.pointwise("add", x, flow.tape.input(flow.tape.shape(x)[-1:], role="weight"))


def _activation(name: str) -> Callable[[Flow], None]:
    def write(flow: Flow) -> None:
        flow.x = flow.tape.pointwise(name, flow.current)

    return write


def _gate(name: str) -> Callable[[Flow], None]:
    def write(flow: Flow) -> None:
        gate = flow.current
        second_half = flow.second_half if flow.second_half >= 0 else flow.tape.input(flow.tape.shape(gate))
        flow.x = flow.tape.pointwise("mul", flow.tape.pointwise(name, gate), second_half)

    return write


def _dropout(flow: Flow) -> None:
    tape, x = flow.tape, flow.current
    mask = tape.tensor(tape.shape(x), "bool")
    flow.x = tape.atomic("native_dropout", "random", [x], tape.shape(x), side_outputs=[mask])


def _linear(flow: Flow) -> None:
    """A product: four times as wide as its input before an activation, twice for each half of a gate."""
    tape = flow.tape
    if "cross-entropy" in flow.words:
        _head(flow)
        return
    later = flow.words[flow.words.index("linear") + 1 :]
    has_bias = later[:1] == ("bias",)
    x = flow.current
    if set(later) & GATES:
        flow.x, flow.second_half = (tape.linear(x, GATED * flow.width, has_bias=has_bias) for _ in range(2))
        return
    wider = 1 if "residual" in later else PLAIN
    flow.x = tape.linear(x, wider * flow.width, has_bias=has_bias)


def _head(flow: Flow) -> None:
    is_vocabulary = flow.width > WIDEST_HIDDEN
    hidden, vocabulary = (USUAL_HIDDEN, flow.width) if is_vocabulary else (flow.width, USUAL_VOCABULARY)
    flow.notes.append(
        f"head with loss: width is the {'vocabulary' if is_vocabulary else 'hidden size'};"
        f" hidden {hidden}, vocabulary {vocabulary}"
    )
    flow.width = hidden
    flow.x = flow.tape.linear(flow.current, vocabulary)


def _cross_entropy(flow: Flow) -> None:
    tape = flow.tape
    wide = tape.pointwise("_to_copy", flow.current, dtype="fp32")
    targets = tape.input((flow.rows,), "int64", is_trained=False)
    scores = tape.atomic("_log_softmax", "softmax", [wide], tape.shape(wide), dtype="fp32")
    loss = tape.tensor((1,), "fp32")
    tape.run("nll_loss_forward", "reduction", [scores, targets], [loss], reads=[targets])
    flow.x = tape._note("nll_loss_forward", [scores, targets], loss)


def _permute(flow: Flow) -> None:
    """Copies of every token in the order of their experts, found by a sort of what was chosen."""
    tape = flow.tape
    copies = flow.rows * CHOICES
    experts, order = (tape.tensor((copies,), "int64", "input") for _ in range(2))
    tape.run("sort", "sort", [experts], [order])
    places = tape.pointwise("div", order)
    flow.x = tape.atomic("index", "gather", [flow.current, places], (copies, flow.width))


def _unpermute(flow: Flow) -> None:
    """Copies back in the order of tokens, weighed and summed."""
    tape = flow.tape
    copies = flow.rows * CHOICES
    if flow.x < 0:
        flow.x = tape.input((copies, flow.width))
    places = tape.tensor((copies,), "int64", "input")
    back = tape.atomic("index", "gather", [flow.current, places], (copies, flow.width))
    split = tape.view("view", back, (flow.rows, CHOICES, flow.width))
    weighed_rows = tape.pointwise("mul", split, tape.input((flow.rows, CHOICES, 1)))
    output = tape.tensor((flow.rows, flow.width))
    tape.run("sum_choices", "reduction", [weighed_rows], [output])
    flow.x = tape._note("sum", [weighed_rows], output)


GATES = frozenset({"swiglu", "geglu", "reglu", "glu"})
WORDS: Mapping[str, Callable[[Flow], None]] = MappingProxyType(
    {
        "rmsnorm": _rmsnorm, "layernorm": _layernorm, "residual": _residual, "softmax": _softmax, "router": _router,
        "rotary": _rotary, "bias": _bias, "gelu": _activation("gelu"), "silu": _activation("silu"),
        "relu": _activation("relu"), "sigmoid": _activation("sigmoid"), "tanh": _activation("tanh"),
        "swiglu": _gate("silu"), "geglu": _gate("gelu"), "reglu": _gate("relu"), "glu": _gate("sigmoid"),
        "dropout": _dropout, "linear": _linear, "cross-entropy": _cross_entropy, "permute": _permute,
        "unpermute": _unpermute,
    }
)  # fmt: skip
"""What each word of a region's name runs."""
QUALIFIERS = frozenset({"fused", "heads"})
"""Words that change another: a norm in one library kernel, a norm of heads."""
SAME: Mapping[str, str] = MappingProxyType(
    {
        "rms": "rmsnorm", "rms norm": "rmsnorm", "layer norm": "layernorm", "ln": "layernorm", "add": "residual",
        "resid": "residual", "skip": "residual", "router topk": "router", "router top k": "router", "topk": "router",
        "top k": "router", "topk router": "router", "softmax topk": "router", "rope": "rotary",
        "rotary embedding": "rotary", "matmul": "linear", "gemm": "linear", "mm": "linear", "product": "linear",
        "proj": "linear", "projection": "linear", "lm head": "linear", "head loss": "linear cross-entropy",
        "head cross entropy": "linear cross-entropy", "lm head loss": "linear cross-entropy",
        "head ce": "linear cross-entropy", "cross entropy": "cross-entropy", "ce": "cross-entropy",
        "loss": "cross-entropy", "moe permute": "permute", "moe permutation": "permute", "permutation": "permute",
        "token permute": "permute", "moe unpermute": "unpermute", "combine": "unpermute", "fused aten": "fused",
        "aten": "fused", "head": "heads", "qk": "heads", "per head": "heads", "qk norm": "rmsnorm heads",
        "qknorm": "rmsnorm heads", "head norm": "rmsnorm heads", "headnorm": "rmsnorm heads",
        "gated silu": "swiglu", "silu mul": "swiglu", "gelu mul": "geglu", "addmm": "linear bias",
        "heads 128": "heads", "heads of 128": "heads", "of heads": "heads", "relu2": "relu", "swish": "silu",
    }
)  # fmt: skip
"""Other spellings, the longest first when a name is read."""
LONGEST = 4  # words of a spelling


def region_words(name: str) -> tuple[str, ...]:
    """The words of a region's name, or an `InputError` that names the first unknown one.

    >>> region_words("rmsnorm-fused-aten"), region_words("add+rmsnorm"), region_words("head+cross-entropy")
    (('rmsnorm', 'fused'), ('residual', 'rmsnorm'), ('linear', 'cross-entropy'))
    """
    pieces = name.lower().replace("+", " ").replace("-", " ").replace("_", " ").split()
    words: list[str] = []
    while pieces:
        for many in range(min(LONGEST, len(pieces)), 0, -1):
            text = " ".join(pieces[:many])
            spelling = SAME.get(text, text if text in WORDS or text in QUALIFIERS else "")
            if spelling:
                words += spelling.split()
                pieces = pieces[many:]
                break
        else:
            raise InputError(not_among("region", pieces[0], (*WORDS, *QUALIFIERS)))
    return tuple(words)


def region_base(name: str) -> str:
    """A region's words without what changes them: fits leave whole bases out.

    >>> region_base("rmsnorm-fused-aten"), region_base("add+rms_norm")
    ('rmsnorm', 'residual+rmsnorm')
    """
    return "+".join(word for word in region_words(name) if word not in QUALIFIERS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A region of a size: its ops forward and backward, and what was taken for granted to write them."""

    graph: OpGraph
    notes: tuple[str, ...] = ()


def region(name: str, tokens: int, width: int, dtype: str = "bf16") -> Region:
    """A region of so many tokens, each so wide.

    >>> norm = region("rmsnorm", 4096, 4096).graph
    >>> sum(op.phase == "forward" and op.kind != "view" for op in norm.ops)
    8
    """
    words = region_words(name)
    flow = Flow(tape=Tape(name, dtype), rows=tokens, width=width, words=words)
    for word in words:
        if word in WORDS:
            WORDS[word](flow)
    if not flow.tape.ops:
        raise InputError(not_among("region", name, WORDS))
    return Region(graph=flow.tape.graph(*dict.fromkeys([*flow.results, flow.x])), notes=tuple(flow.notes))
