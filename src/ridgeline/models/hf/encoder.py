"""Turn configs of encoders (BERT to ModernBERT, embedders) and of encoders with a decoder (T5, BART, Whisper) into
ModelSpecs.

Layers of an encoder see both ways, and `architectures` decides what stands behind them (`hf.heads`). The encoder before
a decoder becomes `ModelSpec.encoder`; the decoder's layers become the model's own, with cross attention in each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.parts import (
    FULL,
    LAYER,
    RMS,
    SLIDING,
    Kind,
    Reader,
    architecture,
    bias_traits,
    divide,
    head_kind,
    heads,
    hidden_size,
    labels,
    mlp,
    model,
)
from ridgeline.models.hf.parts import model as whole
from ridgeline.models.spec import Attention, Block, Embedding, Encoder, Head, Mlp, ModelSpec, Norm


def _attention(cfg: Config, hidden: int) -> Attention:
    """Every head its own keys and values, biases everywhere; causal only where the file makes a decoder of it."""
    count = cfg.count(("num_attention_heads", "n_heads"))
    size, causal = divide(cfg, "num_attention_heads", hidden, count), cfg.flag("is_decoder", False)
    return Attention(
        heads=count, kv_heads=count, head_dim=size, causal=causal, positions="learned", qkv_bias=True, out_bias=True
    )


def _head(cfg: Config, hidden: int, *, pooler: bool, sequence: str, norm: Norm = LAYER) -> Head:
    """What BERT's relatives have behind their layers.

    language   a dense layer and a norm before logits
    sequence   scores behind a pooler, or behind a dense layer of the head's own ("dense"), or at once ("plain")
    none       a pooler, where the family has one
    """
    kind = head_kind(cfg)
    square, bias = hidden**2, hidden
    if kind == "language":
        two_heads = architecture(cfg).endswith("ForPreTraining") and pooler
        extra = bias + norm.params(hidden) + (bias + 2 * hidden + 2 if two_heads else 0)
        return Head(kind="language", dense=square * (2 if two_heads else 1), extra=extra)
    if kind == "none":
        return Head(kind="none", dense=square if pooler else 0, extra=bias if pooler else 0)
    many = labels(cfg)
    inner = kind == "sequence" and sequence != "plain"
    return Head(kind=kind, outputs=many, dense=square if inner else 0, extra=many + (bias if inner else 0))


def _embedding(cfg: Config, head: Head, rows: int) -> Embedding:
    speaks = head.kind == "language"
    tied = cfg.flag("tie_word_embeddings", True)
    return Embedding(positions=rows, norm=LAYER, tied=tied and speaks, head_bias=speaks)


def _bert(cfg: Config, *, sequence: str = "pooler", rows: int = 0, pooler: bool = True) -> ModelSpec:
    """A norm after the embedding and after each part, learned positions, rows for the kinds of segments."""
    cfg.understand("bert")
    hidden, layers = hidden_size(cfg), cfg.layers()
    head = _head(cfg, hidden, pooler=pooler, sequence=sequence)
    block = Block(mixer=_attention(cfg, hidden), ffn=mlp(cfg, gated=False, bias=True), norm=LAYER)
    rows = rows or cfg.count("max_position_embeddings") + cfg.size("type_vocab_size", 0)
    spec = model(cfg, [block] * layers, norm=None, embedding=_embedding(cfg, head, rows))
    return replace(spec, head=head)


def ernie(cfg: Config) -> ModelSpec:
    """ERNIE 1 to 3: BERT with rows for the kind of task, by switch."""
    tasks = cfg.count("task_type_vocab_size", 3) if cfg.flag("use_task_id", False) else 0
    cfg.ignore("task_type_vocab_size")
    return _bert(cfg, rows=cfg.count("max_position_embeddings") + cfg.size("type_vocab_size", 0) + tasks)


def roberta(cfg: Config) -> ModelSpec:
    """RoBERTa, XLM-RoBERTa, CamemBERT, BGE's and E5's: BERT with a dense layer in the head of a sequence."""
    return _bert(cfg, sequence="dense", pooler=head_kind(cfg) == "none")


def mpnet(cfg: Config) -> ModelSpec:
    """MPNet: RoBERTa with one table of relative positions for all layers."""
    buckets = cfg.count("relative_attention_num_buckets") * cfg.count("num_attention_heads")
    spec = _bert(cfg, sequence="dense", pooler=head_kind(cfg) == "none")
    first = replace(spec.blocks[0], extra=buckets)
    return replace(spec, blocks=(first, spec.blocks[0]), order=(0, *(1,) * (spec.layers - 1)))


def megatron_bert(cfg: Config) -> ModelSpec:
    """Megatron's BERT: norms before each part and one at the end, none after the embedding."""
    spec = _bert(cfg)
    return replace(spec, norm=LAYER, embedding=replace(spec.embedding, norm=None))


def roberta_prelayernorm(cfg: Config) -> ModelSpec:
    """RoBERTa with norms before each part and one at the end."""
    return replace(roberta(cfg), norm=LAYER)


def electra(cfg: Config) -> ModelSpec:
    """ELECTRA: BERT with narrow rows; no pooler. Its discriminator, a score for every token, is its pretraining."""
    hidden, layers, narrow = hidden_size(cfg), cfg.layers(), cfg.count("embedding_size")
    unused_keys = ("summary_type", "summary_use_proj", "summary_activation", "summary_last_dropout", "type_vocab_size")
    cfg.ignore(*unused_keys, "position_embedding_type")
    rows = cfg.count("max_position_embeddings") + cfg.size("type_vocab_size", 0)
    if architecture(cfg).endswith("ForPreTraining"):
        head = Head(kind="tokens", outputs=1, dense=hidden**2, extra=hidden + 1)
    else:
        head = _head(cfg, hidden, pooler=False, sequence="dense")
    if head.kind == "language":  # its dense layer leads to the width of a row
        head = replace(head, dense=hidden * narrow, extra=narrow + LAYER.params(narrow))
    block = Block(mixer=_attention(cfg, hidden), ffn=mlp(cfg, gated=False, bias=True), norm=LAYER)
    embedding = _embedding(cfg, head, 0)
    spec = model(cfg, [block] * layers, norm=None, embedding=replace(embedding, norm=None))
    if narrow == hidden:
        return replace(spec, head=head, embedding=replace(spec.embedding, norm=LAYER, positions=rows))
    # rows, their positions and norm are narrow; one projection widens them
    outer_params = rows * narrow + LAYER.params(narrow) + hidden
    extra = head.extra + outer_params - (hidden * narrow if head.kind == "language" else 0)
    wide = replace(spec.embedding, width=narrow)
    return replace(spec, head=replace(head, extra=max(extra, 0)), embedding=wide)


def distilbert(cfg: Config) -> ModelSpec:
    """DistilBERT: BERT without segments and pooler."""
    cfg.understand("distilbert")
    hidden, layers = cfg.count(("dim", "hidden_size")), cfg.layers(("n_layers", "num_hidden_layers"))
    head = _head(cfg, hidden, pooler=False, sequence="dense")
    ffn = mlp(cfg, "hidden_dim", "activation", gated=False, bias=True)
    block = Block(mixer=_attention(cfg, hidden), ffn=ffn, norm=LAYER)
    embedding = _embedding(cfg, head, cfg.count("max_position_embeddings"))
    blocks = [block] * layers
    return replace(model(cfg, blocks, norm=None, embedding=embedding, hidden=hidden), head=head)


def modernbert(cfg: Config) -> ModelSpec:
    """ModernBERT: rotary positions, gated mlps, windows on all layers but every third; no norm before the first."""
    cfg.understand("modernbert")
    hidden, layers = hidden_size(cfg), cfg.layers()
    norm = Norm(kind="layer", bias=cfg.flag("norm_bias"))
    interval = cfg.count("global_attn_every_n_layers", 3)
    layer_kinds = cfg.words("layer_types", layers, (FULL, SLIDING))
    kinds = layer_kinds or tuple(SLIDING if index % interval else FULL for index in range(layers))
    window = cfg.count("local_attention")
    bias = cfg.flag("attention_bias")
    attention = replace(_attention(cfg, hidden), positions="rope", qkv_bias=bias, out_bias=bias)
    ffn = mlp(cfg, act="hidden_activation", bias=cfg.flag("mlp_bias"))
    block = Block(mixer=attention, ffn=ffn, norm=norm)
    blocks = [
        replace(block, mixer=replace(attention, window=window if kind == SLIDING else 0), norms=2 if index else 1)
        for index, kind in enumerate(kinds)
    ]
    head = _modern_head(cfg, hidden, norm)
    speaks = head.kind == "language"
    embedding = Embedding(
        tied=cfg.flag("tie_word_embeddings") and speaks, norm=norm, head_bias=cfg.flag("decoder_bias") and speaks
    )
    return replace(model(cfg, blocks, norm=norm, embedding=embedding), head=head)


def _modern_head(cfg: Config, hidden: int, norm: Norm) -> Head:
    """A dense layer and a norm before every kind of scores."""
    kind: Kind = head_kind(cfg)
    bias = cfg.flag("classifier_bias")
    if kind == "none":
        return Head(kind="none")
    inner = hidden * bias + norm.params(hidden)
    many = 0 if kind == "language" else labels(cfg)
    return Head(kind=kind, outputs=many, dense=hidden**2, extra=inner + many)


def eurobert(cfg: Config) -> ModelSpec:
    """EuroBERT: Llama's layers that see both ways; no dense layer before the logits."""
    cfg.ignore("classifier_pooling", "mask_token_id", "mask_token", "clf_pooling")
    attention = replace(heads(cfg, hidden_size(cfg), **bias_traits(cfg)), causal=False)
    block = Block(mixer=attention, ffn=mlp(cfg, bias=cfg.flag("mlp_bias")))
    spec = model(cfg, [block] * cfg.layers())
    if head_kind(cfg) != "sequence":
        return spec
    head = _head(cfg, spec.hidden, pooler=False, sequence="dense")
    return replace(spec, head=head, embedding=replace(spec.embedding, tied=False))


FRAMES_PER_SECOND = 50  # positions of a second of sound: 100 spectra, halved by the second convolution


def _pair(cfg: Config) -> None:
    cfg.ignore("is_encoder_decoder", "num_hidden_layers", "add_cross_attention", "is_decoder")


def _t5_ffn(cfg: Config) -> Mlp:
    """`feed_forward_proj` is an activation, after `gated-` where the mlp has a gate."""
    words = cfg.word("feed_forward_proj").split("-")
    cfg.ignore("dense_act_fn", "is_gated_act", "tokenizer_class", "output_past")
    return Mlp(hidden=cfg.count("d_ff"), gated=words[0] == "gated", activation=words[-1])


def _t5(cfg: Config, every: bool) -> ModelSpec:
    _pair(cfg)
    cfg.understand("t5")
    hidden, count, size = hidden_size(cfg), cfg.count("num_heads"), cfg.count("d_kv")
    table = cfg.count("relative_attention_num_buckets") * count
    ffn, layers = _t5_ffn(cfg), cfg.layers("num_layers")
    encoder_attention = Attention(heads=count, kv_heads=count, head_dim=size, positions="relative")
    reads = Block(mixer=replace(encoder_attention, causal=False), ffn=ffn, extra=table if every else 0)
    deep = cfg.count("num_decoder_layers", layers)
    tied = cfg.flag("tie_word_embeddings", True)
    if architecture(cfg).endswith("EncoderModel"):
        first = replace(reads, extra=table)
        spec = whole(cfg, [first, *[reads] * (layers - 1)], embedding=Embedding())
        return replace(spec, head=Head(kind="none"))
    encoder = Encoder(
        hidden=hidden, block=reads, layers=layers, other_params=RMS.params(hidden) + (0 if every else table)
    )
    cross = replace(encoder_attention, causal=False, positions="none")
    block = Block(mixer=encoder_attention, cross=cross, ffn=ffn, norms=3, extra=table if every else 0)
    blocks = [replace(block, extra=table), *[block] * (deep - 1)]
    spec = whole(cfg, blocks, embedding=Embedding(tied=tied))
    return _with_head(cfg, replace(spec, encoder=encoder))


def _with_head(cfg: Config, spec: ModelSpec) -> ModelSpec:
    kind = head_kind(cfg)
    if architecture(cfg).endswith("ForCausalLM"):
        cfg.bad("architectures", architecture(cfg), "the whole model: its decoder alone is not described")
    if kind == "language":
        return spec
    if kind != "none":
        cfg.bad("architectures", architecture(cfg), "a model that writes, or one without a head")
    return replace(spec, head=Head(kind="none"), embedding=replace(spec.embedding, tied=False))


def _side(cfg: Config, side: str, hidden: int, key_bias: bool = True) -> tuple[Attention, Mlp]:
    """Attention and mlp of one stack, which BART's relatives size apart."""
    count = cfg.count(f"{side}_attention_heads")
    size = divide(cfg, f"{side}_attention_heads", hidden, count)
    attention = Attention(
        heads=count, kv_heads=count, head_dim=size, positions="learned", qkv_bias=True, out_bias=True,
        causal=side == "decoder", key_bias=key_bias,
    )  # fmt: skip
    inner = cfg.count(f"{side}_ffn_dim")
    return attention, Mlp(hidden=inner, gated=False, bias=True, activation=cfg.word("activation_function"))


def _bart(cfg: Config, *, rows: int | None, first: bool, last: bool) -> ModelSpec:
    """Two stacks of layer norms and biases.

    rows    learned positions beyond those the file says; None: computed ones
    first   a norm after each embedding        last   a norm at the end of each stack
    """
    _pair(cfg)
    cfg.understand("bart")
    hidden = hidden_size(cfg)
    positions = 0 if rows is None else cfg.count("max_position_embeddings") + rows
    norm = LAYER.params(hidden)
    encoder_attention, ffn = _side(cfg, "encoder", hidden)
    outer_params = positions * hidden + norm * first + norm * last
    block = Block(mixer=encoder_attention, ffn=ffn, norm=LAYER)
    context = cfg.size("max_position_embeddings", 0)
    encoder = Encoder(
        hidden=hidden, block=block, layers=cfg.layers("encoder_layers"), context=context, other_params=outer_params
    )
    decoder_attention, wide = _side(cfg, "decoder", hidden)
    layer = Block(
        mixer=decoder_attention, cross=replace(decoder_attention, causal=False), ffn=wide, norm=LAYER, norms=3
    )
    embedding = Embedding(
        tied=cfg.flag("tie_word_embeddings", True), positions=positions, norm=LAYER if first else None
    )
    blocks = [layer] * cfg.layers("decoder_layers")
    return _with_head(
        cfg, replace(whole(cfg, blocks, norm=LAYER if last else None, embedding=embedding), encoder=encoder)
    )


def marian(cfg: Config) -> ModelSpec:
    """Marian: BART without norms after the embeddings; positions are computed."""
    cfg.only("share_encoder_decoder_embeddings", True)
    return _bart(cfg, rows=None, first=False, last=False)


def whisper(cfg: Config) -> ModelSpec:
    """Whisper: two convolutions over a spectrogram, an encoder with computed positions, a decoder that reads it.

    Keys have no biases. A window of 30 seconds is 1,500 positions.
    """
    _pair(cfg)
    augmentation_keys = ("apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks")
    cfg.ignore(
        *augmentation_keys, "mask_feature_prob", "mask_feature_length", "mask_feature_min_masks", "median_filter_width"
    )
    cfg.ignore("encoder_layerdrop", "decoder_layerdrop", "classifier_proj_size", "use_weighted_layer_sum", "lang_ids")
    hidden, bins = hidden_size(cfg), cfg.count("num_mel_bins")
    encoder_attention, ffn = _side(cfg, "encoder", hidden, key_bias=False)
    convolutions = 3 * bins * hidden + hidden + 3 * hidden * hidden + hidden
    encoder = Encoder(
        reads="audio", hidden=hidden,
        block=Block(mixer=replace(encoder_attention, positions="none"), ffn=ffn, norm=LAYER),
        layers=cfg.layers("encoder_layers"), context=cfg.count("max_source_positions"),
        front=2 * 3 * bins * hidden + 3 * hidden * hidden, per_second=FRAMES_PER_SECOND,
        other_params=convolutions + LAYER.params(hidden),
    )  # fmt: skip
    decoder_attention, wide = _side(cfg, "decoder", hidden, key_bias=False)
    layer = Block(
        mixer=decoder_attention, cross=replace(decoder_attention, causal=False), ffn=wide, norm=LAYER, norms=3
    )
    rows = cfg.count("max_target_positions")
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings", True), positions=rows)
    spec = whole(cfg, [layer] * cfg.layers("decoder_layers"), norm=LAYER, embedding=embedding)
    return _with_head(cfg, replace(spec, encoder=encoder, context=rows))


pegasus = partial(_bart, rows=None, first=False, last=True)
ENCODERS: Mapping[str, Reader] = MappingProxyType(
    {
        "bart": partial(_bart, rows=2, first=True, last=False),
        "bert": _bert,
        "blenderbot": partial(_bart, rows=0, first=False, last=True),
        "camembert": roberta,
        "data2vec-text": roberta,
        "distilbert": distilbert,
        "electra": electra,
        "ernie": ernie,
        "eurobert": eurobert,
        "m2m_100": pegasus,
        "marian": marian,
        "mbart": partial(_bart, rows=2, first=True, last=True),
        "megatron-bert": megatron_bert,
        "modernbert": modernbert,
        "mpnet": mpnet,
        "mt5": partial(_t5, every=False),
        "pegasus": pegasus,
        "plbart": partial(_bart, rows=2, first=True, last=False),
        "roberta": roberta,
        "roberta-prelayernorm": roberta_prelayernorm,
        "t5": partial(_t5, every=False),
        "umt5": partial(_t5, every=True),
        "whisper": whisper,
        "xlm-roberta": roberta,
    }
)
"""T5 has relative positions by one table a stack, UMT5 in every layer; BART norms after each part and the embeddings,
mBART, Pegasus, M2M-100, NLLB and Blenderbot before each part and at the end."""
