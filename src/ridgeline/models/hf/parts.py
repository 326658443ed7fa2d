"""Turn the keys that many families share into parts of a ModelSpec: attention heads, mlps, layer kinds,
the whole, and the head behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Literal, get_args

from ridgeline.models.hf.config import Config, Keys
from ridgeline.models.spec import Attention, Block, Embedding, Head, Mlp, ModelSpec, Moe, Mtp, Norm, from_layers

Reader = Callable[[Config], ModelSpec]
RMS = Norm()
LAYER = Norm(kind="layer", bias=True)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")
TOPK = ("num_experts_per_tok", "experts_per_token")
FULL, SLIDING = "full_attention", "sliding_attention"
# what a spec calls a size -> what most configs call it
NAMES = MappingProxyType({"kv_heads": "num_key_value_heads", "topk": "num_experts_per_tok", "groups": "n_group"})


def heads(cfg: Config, hidden: int, **traits: Any) -> Attention:
    """Softmax attention from heads, key-value heads and head size; head size is hidden / heads when nothing says it."""
    count = cfg.count("num_attention_heads")
    kv_heads = cfg.count("num_key_value_heads", count)
    size, softcap = head_dim(cfg, hidden, count), bool(cfg.number("attn_logit_softcapping"))
    return Attention(heads=count, kv_heads=kv_heads, head_dim=size, softcap=softcap, **traits)


def head_dim(cfg: Config, hidden: int, count: int) -> int:
    """The key `head_dim` or its older name, or hidden / heads when both are absent."""
    size = cfg.size(("head_dim", "attention_head_dim"), 0)
    return size or divide(cfg, "num_attention_heads", hidden, count)


def divide(cfg: Config, key: str, whole: int, parts: int) -> int:
    """whole / parts, which must come out even."""
    if whole % parts:
        cfg.clash(key, parts, f"a divisor of {whole}", "or give the size of one part")
    return max(1, whole // parts)


def bias_traits(cfg: Config, key: str = "attention_bias") -> dict[str, bool]:
    """Traits of an attention whose four projections share one bias switch."""
    switch = cfg.flag(key)
    return {"qkv_bias": switch, "out_bias": switch}


def mlp(
    cfg: Config, key: Keys = "intermediate_size", act: Keys = "hidden_act", null: int | None = None, **traits: Any
) -> Mlp:
    """Dense feed-forward of the width that the key says; `null` where it says nothing."""
    return Mlp(hidden=cfg.count(key, null), activation=cfg.word(act), **traits)


def experts(
    cfg: Config, width: Keys = "moe_intermediate_size", number: Keys = EXPERTS, topk: Keys = TOPK, **traits: Any
) -> Moe:
    """Routed experts from their number, how many a token visits and their width."""
    visited, activation = cfg.count(topk), cfg.word("hidden_act")
    return Moe(experts=cfg.count(number), topk=visited, hidden=cfg.count(width), activation=activation, **traits)


def grouped_experts(cfg: Config) -> Moe:
    """DeepSeek's experts: chosen inside the best groups, beside shared experts of the same width."""
    shared = cfg.size("n_shared_experts", 0)
    moe = experts(cfg, groups=cfg.count("n_group", 1), group_topk=cfg.count("topk_group", 1))
    return replace(moe, shared_hidden=shared * moe.hidden)


def kinds(cfg: Config, layers: int, usual: Callable[[int], bool], other: str = SLIDING) -> tuple[str, ...]:
    """The kind of each layer: as `layer_types` lists it, otherwise `other` where `usual` says so and full elsewhere."""
    layer_kinds = cfg.words(("layer_types", "layers_block_type"), layers, (FULL, other))
    return layer_kinds or tuple(other if usual(index) else FULL for index in range(layers))


def windows(cfg: Config, layers: int, usual: Callable[[int], bool] | None = None) -> tuple[int, ...]:
    """Tokens that each layer's queries see: `sliding_window` on sliding layers, 0 for all of them on the others.

    Without a rule and without a list, every layer slides.
    """
    window = cfg.size("sliding_window", 0)
    return tuple(window if kind == SLIDING else 0 for kind in kinds(cfg, layers, usual or (lambda _: True)))


def qwen_windows(cfg: Config, layers: int) -> tuple[int, ...]:
    """Qwen's rule: when sliding is switched on, the layers from `max_window_layers` upwards slide."""
    uses_window, first = cfg.flag("use_sliding_window", False), cfg.size("max_window_layers", layers)
    window = cfg.size("sliding_window", 0)
    layer_kinds = kinds(cfg, layers, lambda index: uses_window and window > 0 and index >= first)
    return tuple(window if uses_window and kind == SLIDING else 0 for kind in layer_kinds)


def expert_layers(cfg: Config, layers: int) -> tuple[bool, ...]:
    """Qwen's rule: every `decoder_sparse_step`-th layer has experts, except those in `mlp_only_layers`."""
    step, dense = cfg.count("decoder_sparse_step", 1), set(cfg.counts("mlp_only_layers"))
    return tuple(index not in dense and (index + 1) % step == 0 for index in range(layers))


def exaone_windows(cfg: Config, layers: int) -> tuple[int, ...]:
    """Every n-th layer is full, or as letters L (local) and G (global) repeat; none slides without a window."""
    pattern = cfg.data.get("sliding_window_pattern", 4)
    cfg.ignore("sliding_window_pattern")
    is_pattern = isinstance(pattern, str) and 0 < len(pattern) <= layers and set(pattern) <= {"L", "G"}
    if not is_pattern and not (type(pattern) is int and pattern > 0) and cfg.has("sliding_window"):
        cfg.bad("sliding_window_pattern", pattern, "a number of layers, or letters L and G")
        pattern = 4
    if isinstance(pattern, str):
        return windows(cfg, layers, lambda index: pattern[index % len(pattern)] == "L" and index < layers - 1)
    return windows(cfg, layers, lambda index: (index + 1) % (pattern or 4) != 0 and index < layers - 1)


def without_rotary(attention: Attention, window: int, spans: tuple[int, ...]) -> Attention:
    """The attention of a layer where the full ones among sliding ones have no positions."""
    return replace(attention, window=window, positions="none" if any(spans) and not window else "rope")


def rotary_layers(cfg: Config, layers: int) -> tuple[bool, ...]:
    """Which layers rotate: `no_rope_layers` holds a 1 for each that does; otherwise all but every n-th."""
    interval = cfg.count("no_rope_layer_interval")
    flags = cfg.counts("no_rope_layers")
    if flags and len(flags) != layers:
        cfg.bad("no_rope_layers", flags, f"a list of {layers} numbers, one for each layer")
        flags = ()
    return tuple(bool(item) for item in flags) or tuple((index + 1) % interval != 0 for index in range(layers))


def dense_first(cfg: Config, layers: int, usual: int = 0) -> tuple[bool, ...]:
    """DeepSeek's rule: which layers have experts, from `mlp_layer_types` or all after `first_k_dense_replace`."""
    first = cfg.size("first_k_dense_replace", usual)
    cfg.only("moe_layer_freq", 1)
    layer_kinds = cfg.words("mlp_layer_types", layers, ("dense", "sparse"))
    return (
        tuple(kind == "sparse" for kind in layer_kinds)
        if layer_kinds
        else tuple(index >= first for index in range(layers))
    )


def model(
    cfg: Config,
    layers: Iterable[Block],
    *,
    norm: Norm | None = RMS,
    embedding: Embedding | None = None,
    mtp: Mtp | None = None,
    hidden: int = 0,
) -> ModelSpec:
    """The whole from its layers; the id is given later. Tying is read here unless the embedding is given."""
    blocks, order = from_layers(layers)
    for block in blocks:
        _check(cfg, block)
    return ModelSpec(
        id="",
        name="",
        hidden=hidden or hidden_size(cfg),
        vocab=cfg.count("vocab_size"),
        embedding=replace(
            embedding or Embedding(tied=cfg.flag("tie_word_embeddings", False)),
            softcap=bool(cfg.number("final_logit_softcapping")),
        ),
        blocks=blocks,
        order=order,
        norm=norm,
        context=cfg.size(("max_position_embeddings", "n_positions", "max_seq_len"), 0),
        mtp=mtp,
    )


def hidden_size(cfg: Config) -> int:
    """Width of the residual stream, under any of its names."""
    return cfg.count(("hidden_size", "n_embd", "d_model", "n_embed"))


def predictor(depth: int, block: Block) -> Mtp | None:
    """Multi-token prediction of that depth, if any."""
    return Mtp(depth=depth, block=block) if depth else None


def _check(cfg: Config, block: Block) -> None:
    """Note what the sizes of one layer say together."""
    parts = [part for part in (block.mixer, block.ffn) if isinstance(part, (Attention, Moe))]
    for problem in (problem for part in parts for problem in part.problems()):
        cfg.clash(NAMES[problem.path], problem.given, problem.expected, problem.todo)


Kind = Literal["language", "sequence", "tokens", "none"]
SUFFIXES: tuple[tuple[str, Kind], ...] = (
    ("ForSequenceClassification", "sequence"),
    ("ForSequenceRegression", "sequence"),
    ("ForRewardModel", "sequence"),
    ("RewardModel", "sequence"),
    ("ForTokenClassification", "tokens"),
    ("ForQuestionAnswering", "tokens"),
    ("LMHeadModel", "language"),
    ("LMHead", "language"),
    ("DreamModel", "language"),
    ("EncoderModel", "none"),
    ("Model", "none"),
)


def head_kind(cfg: Config) -> Kind:
    """Which head stands behind the last layer by `architectures`, the class that a checkpoint was saved from: logits of
    the vocabulary, scores, or none where hidden states are the answer. `head = "none"` (from --set model.head=none)
    says it where a checkpoint of an embedder was saved as a language model."""
    head = cfg.data.get("head")
    cfg.ignore("head")
    if head is not None:
        kinds = get_args(Kind)
        if head in kinds:
            return head  # type: ignore[no-any-return]
        cfg.bad("head", head, f"one of {', '.join(kinds)}")
    name = architecture(cfg)
    return next((kind for suffix, kind in SUFFIXES if name.endswith(suffix)), "language")


def architecture(cfg: Config) -> str:
    """The class that a checkpoint was saved from; empty where the file does not say."""
    names = cfg.data.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def labels(cfg: Config) -> int:
    """Scores of a classification head: `num_labels`, or as many as are named; two where nothing says, as transformers
    builds it."""
    cfg.ignore("num_labels", "id2label", "label2id")
    labels_by_id = cfg.data.get("id2label")
    if cfg.has("num_labels"):
        return cfg.count("num_labels")
    return len(labels_by_id) if isinstance(labels_by_id, dict) and 0 < len(labels_by_id) <= 10**6 else 2


def decoder_head(cfg: Config, spec: ModelSpec) -> ModelSpec:
    """A language model under the head that its config says: one matrix for classes, with a bias where every token has
    some, or nothing."""
    kind = head_kind(cfg)
    if kind == "language" or spec.head is not None:
        return spec
    many = 0 if kind == "none" else labels(cfg)
    scores_head = Head(kind=kind, outputs=many, extra=many if kind == "tokens" else 0)
    return replace(spec, head=scores_head, embedding=replace(spec.embedding, tied=False, head_bias=False), mtp=None)
