"""Turn a recurrent mixer that is neither SSD nor the gated delta rule into its parts: products, vectors, scan, state.

    selective   e = heads        h -> 2 e | e -> r + 2 n | r -> e | e -> h               Mamba 1, Jamba
    lightning   d = heads * v    h -> heads * (2 k + v) | h -> d | d -> h                MiniMax
    kda         d = heads * v    h -> heads * (2 k + v + 1) | h -> 2 r, r -> keys, r -> d | d -> h     Kimi Linear
    mlstm       d = heads * v    h -> heads * (2 k + 2 v) | h -> 2 heads | d -> h        xLSTM
    wkv         a = heads        h -> 3 a | a -> h                                       RWKV 4
    short-conv  c = heads        h -> 3 c | c -> h                                       LFM 2

h = hidden, n, k = key_dim, v = value_dim, r = rank. Which factor of a product tensor ranks split is said with it; forms
of `WHOLE` no framework splits.
"""

from __future__ import annotations

from typing import Literal, assert_never

from ridgeline.core.records import dataclass
from ridgeline.models.blocks import Recurrence, RecurrentForm

WHOLE: frozenset[RecurrentForm] = frozenset({"mlstm", "wkv"})
"""Forms that neither Megatron-Core nor a serving engine splits over tensor ranks."""
SELECTIVE_SCAN = 7.0  # flops of a state element: decay and input are made (3), the state moves on (2) and is read (2)
LINEAR_SCAN = 5.0  # the same with a decay that is there: decays (1), takes up a token (2), is read (2)
DELTA_SCAN = 7.0  # and what the key holds is read first (2)
WKV_SCAN = 14.0  # flops of a channel: two maxima, four exponents, two sums of a numerator and a denominator each


@dataclass(frozen=True, slots=True, kw_only=True)
class Projection:
    """A product with a weight; tensor ranks split its outputs (column parallel), its inputs (row parallel, then summed
    over ranks), or nothing."""

    label: str
    inputs: int
    outputs: int
    split: Literal["outputs", "inputs", "none"] = "outputs"

    @property
    def weights(self) -> int:
        """Elements of the matrix."""
        return self.inputs * self.outputs


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentParts:
    """What a recurrent mixer consists of; numbers are those of one token unless they say otherwise.

    into, out    products before and behind the scan
    vectors      parameters that tensor ranks split: convolution, decay, norm over all heads
    alike        parameters that every tensor rank holds: norm of a head, bias of the output
    scan_flops   flops of the recurrence and the convolution, token by token
    state        elements that a sequence holds, whatever its length
    convolved    elements that pass through the convolution
    gated        elements behind the scan that a norm or a gate works on
    saved        elements that the backward reads again, inputs of the layer apart
    """

    into: tuple[Projection, ...]
    out: Projection
    vectors: int
    alike: int
    scan_flops: float
    state: int
    convolved: int
    gated: int
    saved: int

    @property
    def weights(self) -> int:
        """Elements of all matrices."""
        return sum(one.weights for one in (*self.into, self.out))

    @property
    def whole(self) -> int:
        """Parameters that every tensor rank holds, matrices included."""
        return self.alike + sum(one.weights for one in self.into if one.split == "none")

    @property
    def params(self) -> int:
        """All parameters."""
        return self.weights + self.vectors + self.alike


def recurrent_parts(mixer: Recurrence, hidden: int) -> RecurrentParts:
    """The parts of a recurrent mixer in a model of width `hidden`.

    >>> mamba = Recurrence(form="selective", heads=5120, key_dim=16, rank=160, conv=4, conv_bias=True)
    >>> recurrent_parts(mamba, 2560).params, recurrent_parts(mamba, 2560).state
    (41241600, 97280)
    """
    match mixer.form:
        case "selective":
            return _selective(mixer, hidden)
        case "lightning":
            return _lightning(mixer, hidden)
        case "kda":
            return _kda(mixer, hidden)
        case "mlstm":
            return _mlstm(mixer, hidden)
        case "wkv":
            return _wkv(mixer, hidden)
        case "short-conv":
            return _short_conv(mixer, hidden)
        case _:
            assert_never(mixer.form)


def _selective(mixer: Recurrence, hidden: int) -> RecurrentParts:
    """Into two streams, a convolution, steps and matrices of every token, a scan by channel, out.

    vectors   e*(k + bias) of the convolution, e*n decays, e biases of steps, e skips        steps are summed over ranks
    """
    wide, state, steps = mixer.inner, mixer.key_dim, mixer.rank + 2 * mixer.key_dim
    return RecurrentParts(
        into=(
            Projection(label="state in", inputs=hidden, outputs=2 * wide),
            Projection(label="state steps", inputs=wide, outputs=steps, split="inputs"),
            Projection(label="state step up", inputs=mixer.rank, outputs=wide),
        ),
        out=Projection(label="state out", inputs=wide, outputs=hidden, split="inputs"),
        vectors=wide * (mixer.conv + mixer.conv_bias) + wide * (state + 2) + 2 * wide * mixer.bias,
        alike=hidden * mixer.bias + steps * mixer.inner_norms,
        scan_flops=SELECTIVE_SCAN * wide * state + 2.0 * mixer.conv * wide,
        state=wide * state + (mixer.conv - 1) * wide,
        convolved=wide,
        gated=wide,
        saved=6 * wide + steps,
    )


def _lightning(mixer: Recurrence, hidden: int) -> RecurrentParts:
    keys, values = mixer.keys, mixer.inner
    return RecurrentParts(
        into=(
            Projection(label="qkv", inputs=hidden, outputs=2 * keys + values),
            Projection(label="output gate in", inputs=hidden, outputs=values),
        ),
        out=Projection(label="attention out", inputs=values, outputs=hidden, split="inputs"),
        vectors=values,
        alike=0,
        scan_flops=LINEAR_SCAN * keys * mixer.value_dim,
        state=keys * mixer.value_dim,
        convolved=0,
        gated=values,
        saved=2 * (2 * keys + values) + 3 * values,
    )


def _kda(mixer: Recurrence, hidden: int) -> RecurrentParts:
    """Queries, keys and values through a convolution; a decay of every key channel and a gate of every value, both
    through a rank that every tensor rank makes whole; one step size a head."""
    keys, values, rank = mixer.keys, mixer.inner, mixer.rank
    mixed = 2 * keys + values
    return RecurrentParts(
        into=(
            Projection(label="delta in", inputs=hidden, outputs=mixed + mixer.heads),
            Projection(label="gates down", inputs=hidden, outputs=2 * rank, split="none"),
            Projection(label="forget gate up", inputs=rank, outputs=keys),
            Projection(label="output gate up", inputs=rank, outputs=values),
        ),
        out=Projection(label="delta out", inputs=values, outputs=hidden, split="inputs"),
        vectors=mixed * mixer.conv + mixer.heads + keys,
        alike=mixer.value_dim,
        scan_flops=DELTA_SCAN * keys * mixer.value_dim + 2.0 * mixer.conv * mixed,
        state=keys * mixer.value_dim + (mixer.conv - 1) * mixed,
        convolved=mixed,
        gated=values,
        saved=2 * mixed + keys + 3 * values + 2 * rank,
    )


def _mlstm(mixer: Recurrence, hidden: int) -> RecurrentParts:
    """Queries, keys, values and an output gate; an input and a forget gate a head, which have a bias; the state holds
    a matrix, a normaliser and a largest exponent of every head."""
    keys, values = mixer.keys, mixer.inner
    wide = 2 * keys + 2 * values
    return RecurrentParts(
        into=(
            Projection(label="memory in", inputs=hidden, outputs=wide),
            Projection(label="memory gates", inputs=hidden, outputs=2 * mixer.heads),
        ),
        out=Projection(label="memory out", inputs=values, outputs=hidden, split="inputs"),
        vectors=values * (1 + mixer.bias) + wide * mixer.bias + 2 * mixer.heads,
        alike=hidden * mixer.bias,
        scan_flops=LINEAR_SCAN * (keys * mixer.value_dim + keys),
        state=keys * mixer.value_dim + keys + mixer.heads,
        convolved=0,
        gated=values,
        saved=wide + 3 * values + 2 * mixer.heads,
    )


def _wkv(mixer: Recurrence, hidden: int) -> RecurrentParts:
    """Key, value and receptance of a token mixed with the one before it. The state is a numerator, a denominator and a
    largest exponent of every channel, and the last token that each part of the layer saw."""
    wide = mixer.inner
    return RecurrentParts(
        into=(Projection(label="wkv in", inputs=hidden, outputs=3 * wide),),
        out=Projection(label="wkv out", inputs=wide, outputs=hidden, split="inputs"),
        vectors=2 * wide,
        alike=3 * hidden,
        scan_flops=WKV_SCAN * wide,
        state=3 * wide + 2 * hidden,
        convolved=3 * hidden,
        gated=wide,
        saved=3 * hidden + 5 * wide,
    )


def _short_conv(mixer: Recurrence, hidden: int) -> RecurrentParts:
    wide = mixer.inner
    return RecurrentParts(
        into=(Projection(label="gates in", inputs=hidden, outputs=3 * wide),),
        out=Projection(label="gates out", inputs=wide, outputs=hidden, split="inputs"),
        vectors=wide * (mixer.conv + mixer.conv_bias) + 3 * wide * mixer.bias,
        alike=hidden * mixer.bias,
        scan_flops=2.0 * mixer.conv * wide,
        state=(mixer.conv - 1) * wide,
        convolved=wide,
        gated=wide,
        saved=5 * wide,
    )
