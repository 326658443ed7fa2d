"""Describe mixers with a state as their parts: products, vectors, scan, state.

    ssd         e = heads * head_dim   h -> 2 e + 2 g n + heads | e -> h                         Mamba 2
    delta       k, v of all heads      h -> 2 k + 2 v + 2 heads | v -> h                         gated delta net
    selective   e = heads        h -> 2 e | e -> r + 2 n | r -> e | e -> h               Mamba 1, Jamba
    lightning   d = heads * v    h -> heads * (2 k + v) | h -> d | d -> h                MiniMax
    kda         d = heads * v    h -> heads * (2 k + v + 1) | h -> 2 r, r -> keys, r -> d | d -> h     Kimi Linear
    mlstm       d = heads * v    h -> heads * (2 k + 2 v) | h -> 2 heads | d -> h        xLSTM
    wkv         a = heads        h -> 3 a | a -> h                                       RWKV 4
    short-conv  c = heads        h -> 3 c | c -> h                                       LFM 2

h = hidden, n, k = key_dim, v = value_dim, r = rank, g = groups. Forms of `WHOLE` no framework splits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Literal

from ridgeline.models.blocks import GatedDeltaNet, Mamba2, Recurrence, RecurrentForm
from ridgeline.models.parts import (
    ChannelScan,
    Columns,
    DeltaScan,
    HeadCount,
    LinearScan,
    MixerParts,
    Projection,
    RankSplits,
    Recurrent,
    Saved,
    Scan,
    Weight,
)

WHOLE: frozenset[RecurrentForm] = frozenset({"mlstm", "wkv"})
"""Forms that neither Megatron-Core nor a serving engine splits over tensor ranks."""
SELECTIVE_SCAN = 7.0  # flops of a state element: decay and input are made (3), the state moves on (2) and is read (2)
LINEAR_SCAN = 5.0  # the same with a decay that is there: decays (1), takes up a token (2), is read (2)
DELTA_SCAN = 7.0  # and what the key holds is read first (2)
WKV_SCAN = 14.0  # flops of a channel: two maxima, four exponents, two sums of a numerator and a denominator each
TITLES: Mapping[RecurrentForm, str] = MappingProxyType(
    {
        "selective": "Mamba", "lightning": "lightning attention", "kda": "Kimi delta attention", "mlstm": "mLSTM",
        "wkv": "WKV", "short-conv": "short convolution",
    }
)  # fmt: skip


def ssd_parts(mixer: Mamba2, hidden: int) -> MixerParts:
    """A state-space mixer.

        in      h*(2*e + 2*g*s + H)  + proj_bias*(2*e + 2*g*s + H)
        conv    (e + 2*g*s) * (k + conv_bias)
        heads   3*H                             decay, step bias and skip
        norm    e, if any
        out     e*h + proj_bias*h
        state   e*s + (k - 1) * (e + 2*g*s)

    H = heads, e = H * head_dim, g = groups, s = state, k = conv. A state element decays (1), takes up the token (2)
    and is read (2); chunked kernels do more.
    """
    inner, heads = mixer.inner, mixer.heads
    conv_width = inner + 2 * mixer.groups * mixer.state
    wide = inner + conv_width + heads
    vectors = [
        Weight(name="mamba.conv.weight", dims=(conv_width, mixer.conv + mixer.conv_bias), splits=((0, "tp"),)),
        Weight(name="mamba.heads", dims=(heads, 3), splits=((0, "tp"),)),
    ]
    if mixer.gated_norm:
        vectors.append(Weight(name="mamba.norm.weight", dims=(inner,), splits=((0, "tp"),)))
    if mixer.proj_bias:
        vectors.append(Weight(name="mamba.in.bias", dims=(wide,), splits=((0, "tp"),)))
        vectors.append(Weight(name="mamba.out.bias", dims=(hidden,)))
    return MixerParts(
        name="mamba",
        title=f"Mamba-2 {heads}x{mixer.head_dim}, state {mixer.state}",
        into=(_project("state in", hidden, wide, name="mamba.in.weight"),),
        out=(_project("state out", inner, hidden, "inputs", name="mamba.out.weight"),),
        core=mixer,
        splits=RankSplits(
            tensor=(
                HeadCount(count=heads, name="state-space heads"),
                HeadCount(count=mixer.groups, name="state-space groups", shared=True),
            ),
            context=heads,
            traded=True,
        ),
        vectors=tuple(vectors),
        recurrent=Recurrent(
            state=inner * mixer.state,
            conv_state=(mixer.conv - 1) * conv_width,
            flops=2.0 * mixer.conv * conv_width + LINEAR_SCAN * inner * mixer.state,
            convolved=conv_width,
            gated=inner,
        ),
        saved=Saved(split=2 * conv_width + 2 * inner),
    )


def delta_parts(mixer: GatedDeltaNet, hidden: int) -> MixerParts:
    """A gated delta-rule mixer.

        in      h*(2*K + 2*V + 2*Hv)            queries, keys, values, output gate; step size and decay per value head
        conv    (2*K + V) * k
        heads   2*Hv                            decay and step bias
        norm    value_dim
        out     V*h
        state   V*dk + (k - 1) * (2*K + V)

    K = key_heads * key_dim, V = value_heads * value_dim, Hv = value_heads, dk = key_dim, k = conv.

    >>> delta_parts(GatedDeltaNet(key_heads=16, value_heads=32, key_dim=128, value_dim=128), 2048).params
    33718464
    """
    keys, values, heads = mixer.key_heads * mixer.key_dim, mixer.value_heads * mixer.value_dim, mixer.value_heads
    conv_width, state = 2 * keys + values, values * mixer.key_dim
    return MixerParts(
        name="delta",
        title=f"gated delta net {heads} heads",
        into=(_project("delta in", hidden, 2 * keys + 2 * values + 2 * heads, name="delta.in.weight"),),
        out=(_project("delta out", values, hidden, "inputs", name="delta.out.weight"),),
        core=DeltaScan(heads=heads, key_dim=mixer.key_dim, value_dim=mixer.value_dim),
        splits=RankSplits(
            tensor=(
                HeadCount(count=heads, name="value heads"),
                HeadCount(count=mixer.key_heads, name="key heads", shared=True),
            ),
            context=heads,
            traded=True,
        ),
        vectors=(
            Weight(name="delta.conv.weight", dims=(conv_width, mixer.conv), splits=((0, "tp"),)),
            Weight(name="delta.heads", dims=(heads, 2), splits=((0, "tp"),)),
            Weight(name="delta.norm.weight", dims=(mixer.value_dim,)),
        ),
        recurrent=Recurrent(
            state=state,
            conv_state=(mixer.conv - 1) * conv_width,
            flops=2.0 * mixer.conv * conv_width + DELTA_SCAN * state,
            convolved=conv_width,
            gated=values,
        ),
        saved=Saved(split=4 * keys + 4 * values),
    )


def recurrence_parts(mixer: Recurrence, hidden: int) -> MixerParts:
    """A recurrence of another form.

    >>> mamba = Recurrence(form="selective", heads=5120, key_dim=16, rank=160, conv=4, conv_bias=True)
    >>> recurrence_parts(mamba, 2560).params, recurrence_parts(mamba, 2560).state
    (41241600, 97280)
    """
    parts = FORMS[mixer.form](mixer, hidden)
    size = f"{mixer.key_dim}x{mixer.value_dim}" if mixer.value_dim > 1 else f"state {mixer.key_dim}"
    size = "" if mixer.form in ("wkv", "short-conv") else f", {size}"
    unsplit_form = mixer.form if mixer.form in WHOLE else ""
    heads = (HeadCount(count=mixer.heads, name=f"{mixer.form} heads"),)
    return replace(
        parts,
        title=f"{TITLES[mixer.form]} {mixer.heads}{size}",
        splits=RankSplits(tensor=heads, whole=unsplit_form, recurrence=mixer.form),
    )


def _project(
    label: str, inputs: int, outputs: int, split: Literal["outputs", "inputs", "none"] = "outputs", name: str = ""
) -> Projection:
    """A product of a mixer with a state; its tensor is named by its label unless `name` says how."""
    name = name or f"recurrence.{label.replace(' ', '_')}.weight"
    return Projection(label=label, inputs=inputs, columns=(Columns(name=name, outputs=outputs),), split=split)


def _recurrence(
    mixer: Recurrence,
    products: tuple[Projection, ...],
    core: Scan | None,
    recurrent: Recurrent,
    saved: int,
    vectors: tuple[int, int],
) -> MixerParts:
    """Parts of a recurrence: `products` with the output last, parameters that tensor ranks split and that each holds.

    Products of a layer with biases sum their gradients at the first and the last one.
    """
    split, replicated_size = vectors
    weights = [Weight(name="recurrence.vectors", dims=(split,), splits=((0, "tp"),))]
    if replicated_size:
        weights.append(Weight(name="recurrence.alike", dims=(replicated_size,)))
    first, *middle, last = products
    first, last = replace(first, biased=mixer.bias), replace(last, biased=mixer.bias)
    return MixerParts(
        name="recurrence",
        title="",
        into=(first, *middle),
        out=(last,),
        core=core,
        splits=RankSplits(),
        vectors=tuple(weights),
        recurrent=recurrent,
        saved=Saved(split=saved),
    )


def _selective(mixer: Recurrence, hidden: int) -> MixerParts:
    """Into two streams, a convolution, steps and matrices of every token, a scan by channel, out.

    vectors   e*(k + bias) of the convolution, e*n decays, e biases of steps, e skips        steps are summed over ranks
    """
    wide, state, steps = mixer.inner, mixer.key_dim, mixer.rank + 2 * mixer.key_dim
    scan = SELECTIVE_SCAN * wide * state
    return _recurrence(
        mixer,
        (
            _project("state in", hidden, 2 * wide),
            _project("state steps", wide, steps, "inputs"),
            _project("state step up", mixer.rank, wide),
            _project("state out", wide, hidden, "inputs"),
        ),
        ChannelScan(flops=scan, channels=wide, shared=state),
        Recurrent(
            state=wide * state + (mixer.conv - 1) * wide,
            flops=scan + 2.0 * mixer.conv * wide,
            convolved=wide,
            gated=wide,
        ),
        saved=6 * wide + steps,
        vectors=(
            wide * (mixer.conv + mixer.conv_bias) + wide * (state + 2) + 2 * wide * mixer.bias,
            hidden * mixer.bias + steps * mixer.inner_norms,
        ),
    )


def _lightning(mixer: Recurrence, hidden: int) -> MixerParts:
    keys, values = mixer.keys, mixer.inner
    return _recurrence(
        mixer,
        (
            _project("qkv", hidden, 2 * keys + values),
            _project("output gate in", hidden, values),
            _project("attention out", values, hidden, "inputs"),
        ),
        _linear(mixer),
        Recurrent(state=keys * mixer.value_dim, flops=LINEAR_SCAN * keys * mixer.value_dim, convolved=0, gated=values),
        saved=2 * (2 * keys + values) + 3 * values,
        vectors=(values, 0),
    )


def _linear(mixer: Recurrence) -> LinearScan:
    return LinearScan(heads=mixer.heads, key_dim=mixer.key_dim, value_dim=mixer.value_dim, chunk=mixer.chunk)


def _kda(mixer: Recurrence, hidden: int) -> MixerParts:
    """Queries, keys and values through a convolution; a decay of every key channel and a gate of every value, both
    through a rank that every tensor rank makes whole; one step size a head."""
    keys, values, rank = mixer.keys, mixer.inner, mixer.rank
    conv_width, state = 2 * keys + values, keys * mixer.value_dim
    return _recurrence(
        mixer,
        (
            _project("delta in", hidden, conv_width + mixer.heads),
            _project("gates down", hidden, 2 * rank, "none"),
            _project("forget gate up", rank, keys),
            _project("output gate up", rank, values),
            _project("delta out", values, hidden, "inputs"),
        ),
        DeltaScan(heads=mixer.heads, key_dim=mixer.key_dim, value_dim=mixer.value_dim),
        Recurrent(
            state=state + (mixer.conv - 1) * conv_width,
            flops=DELTA_SCAN * state + 2.0 * mixer.conv * conv_width,
            convolved=conv_width,
            gated=values,
        ),
        saved=2 * conv_width + keys + 3 * values + 2 * rank,
        vectors=(conv_width * mixer.conv + mixer.heads + keys, mixer.value_dim),
    )


def _mlstm(mixer: Recurrence, hidden: int) -> MixerParts:
    """Queries, keys, values and an output gate; an input and a forget gate a head, which have a bias; the state holds
    a matrix, a normaliser and a largest exponent of every head."""
    keys, values = mixer.keys, mixer.inner
    wide = 2 * keys + 2 * values
    return _recurrence(
        mixer,
        (
            _project("memory in", hidden, wide),
            _project("memory gates", hidden, 2 * mixer.heads),
            _project("memory out", values, hidden, "inputs"),
        ),
        _linear(mixer),
        Recurrent(
            state=keys * mixer.value_dim + keys + mixer.heads,
            flops=LINEAR_SCAN * (keys * mixer.value_dim + keys),
            convolved=0,
            gated=values,
        ),
        saved=wide + 3 * values + 2 * mixer.heads,
        vectors=(values * (1 + mixer.bias) + wide * mixer.bias + 2 * mixer.heads, hidden * mixer.bias),
    )


def _wkv(mixer: Recurrence, hidden: int) -> MixerParts:
    """Key, value and receptance of a token mixed with the one before it. The state is a numerator, a denominator and a
    largest exponent of every channel, and the last token that each part of the layer saw."""
    wide = mixer.inner
    return _recurrence(
        mixer,
        (_project("wkv in", hidden, 3 * wide), _project("wkv out", wide, hidden, "inputs")),
        ChannelScan(flops=WKV_SCAN * wide, channels=wide, shared=mixer.key_dim),
        Recurrent(state=3 * wide + 2 * hidden, flops=WKV_SCAN * wide, convolved=3 * hidden, gated=wide),
        saved=3 * hidden + 5 * wide,
        vectors=(2 * wide, 3 * hidden),
    )


def _short_conv(mixer: Recurrence, hidden: int) -> MixerParts:
    wide = mixer.inner
    return _recurrence(
        mixer,
        (_project("gates in", hidden, 3 * wide), _project("gates out", wide, hidden, "inputs")),
        None,
        Recurrent(state=(mixer.conv - 1) * wide, flops=2.0 * mixer.conv * wide, convolved=wide, gated=wide),
        saved=5 * wide,
        vectors=(wide * (mixer.conv + mixer.conv_bias) + 3 * wide * mixer.bias, hidden * mixer.bias),
    )


FORMS: Mapping[RecurrentForm, Callable[[Recurrence, int], MixerParts]] = MappingProxyType(
    {
        "selective": _selective,
        "lightning": _lightning,
        "kda": _kda,
        "mlstm": _mlstm,
        "wkv": _wkv,
        "short-conv": _short_conv,
    }
)
