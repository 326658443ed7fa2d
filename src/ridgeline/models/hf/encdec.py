"""Turn configs of models with an encoder and a decoder, from T5 and BART to Whisper, into ModelSpecs.

The encoder becomes `ModelSpec.encoder`; the decoder's layers become the model's own, with cross attention in each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ridgeline.models.hf.config import Config
from ridgeline.models.hf.heads import architecture, head_kind
from ridgeline.models.hf.parts import LAYER, RMS, divide, hidden_size
from ridgeline.models.hf.parts import model as whole
from ridgeline.models.spec import Attention, Block, Embedding, Encoder, Head, Mlp, ModelSpec

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
    cfg.ignore(
        "n_positions", "relative_attention_max_distance", "dropout_rate", "classifier_dropout", "scale_decoder_outputs"
    )
    hidden, count, size = hidden_size(cfg), cfg.count("num_heads"), cfg.count("d_kv")
    table = cfg.count("relative_attention_num_buckets") * count
    ffn, layers = _t5_ffn(cfg), cfg.layers("num_layers")
    seen = Attention(heads=count, kv_heads=count, head_dim=size, positions="relative")
    reads = Block(mixer=replace(seen, causal=False), ffn=ffn, extra=table if every else 0)
    deep = cfg.count("num_decoder_layers", layers)
    tied = cfg.flag("tie_word_embeddings", True)
    if architecture(cfg).endswith("EncoderModel"):
        first = replace(reads, extra=table)
        found = whole(cfg, [first, *[reads] * (layers - 1)], embedding=Embedding())
        return replace(found, head=Head(kind="none"))
    encoder = Encoder(
        hidden=hidden, block=reads, layers=layers, other_params=RMS.params(hidden) + (0 if every else table)
    )
    cross = replace(seen, causal=False, positions="none")
    block = Block(mixer=seen, cross=cross, ffn=ffn, norms=3, extra=table if every else 0)
    blocks = [replace(block, extra=table), *[block] * (deep - 1)]
    found = whole(cfg, blocks, embedding=Embedding(tied=tied))
    return _headed(cfg, replace(found, encoder=encoder))


def _headed(cfg: Config, spec: ModelSpec) -> ModelSpec:
    kind = head_kind(cfg)
    if architecture(cfg).endswith("ForCausalLM"):
        cfg.bad("architectures", architecture(cfg), "the whole model: its decoder alone is not described")
    if kind == "language":
        return spec
    if kind != "none":
        cfg.bad("architectures", architecture(cfg), "a model that writes, or one without a head")
    return replace(spec, head=Head(kind="none"), embedding=replace(spec.embedding, tied=False))


def t5(cfg: Config) -> ModelSpec:
    """T5, mT5, FLAN: relative positions by one table a stack, no biases, norms before each part."""
    return _t5(cfg, every=False)


def umt5(cfg: Config) -> ModelSpec:
    """UMT5: T5 with a table in every layer."""
    return _t5(cfg, every=True)


def _side(cfg: Config, side: str, hidden: int, **traits: Any) -> tuple[Attention, Mlp]:
    """Attention and mlp of one stack, which BART's relatives size apart."""
    count = cfg.count(f"{side}_attention_heads")
    size = divide(cfg, f"{side}_attention_heads", hidden, count)
    attention = Attention(
        heads=count, kv_heads=count, head_dim=size, positions="learned", qkv_bias=True, out_bias=True,
        causal=side == "decoder", **traits,
    )  # fmt: skip
    inner = cfg.count(f"{side}_ffn_dim")
    return attention, Mlp(hidden=inner, gated=False, bias=True, activation=cfg.word("activation_function"))


def _bart(cfg: Config, *, rows: int | None, first: bool, last: bool) -> ModelSpec:
    """Two stacks of layer norms and biases.

    rows    learned positions beyond those the file says; None: computed ones
    first   a norm after each embedding        last   a norm at the end of each stack
    """
    _pair(cfg)
    cfg.ignore("classif_dropout", "encoder_layerdrop", "decoder_layerdrop", "normalize_before", "normalize_embedding")
    cfg.ignore("static_position_embeddings", "add_final_layer_norm", "add_bias_logits", "extra_pos_embeddings")
    cfg.ignore("share_encoder_decoder_embeddings", "decoder_vocab_size", "force_bos_token_to_be_generated", "save_step")
    cfg.ignore("normalize_before", "use_scan", "classifier_proj_size")
    hidden = hidden_size(cfg)
    positions = 0 if rows is None else cfg.count("max_position_embeddings") + rows
    norm = LAYER.params(hidden)
    seen, ffn = _side(cfg, "encoder", hidden)
    around = positions * hidden + norm * first + norm * last
    block = Block(mixer=seen, ffn=ffn, norm=LAYER)
    context = cfg.size("max_position_embeddings", 0)
    encoder = Encoder(
        hidden=hidden, block=block, layers=cfg.layers("encoder_layers"), context=context, other_params=around
    )
    own, wide = _side(cfg, "decoder", hidden)
    layer = Block(mixer=own, cross=replace(own, causal=False), ffn=wide, norm=LAYER, norms=3)
    embedding = Embedding(
        tied=cfg.flag("tie_word_embeddings", True), positions=positions, norm=LAYER if first else None
    )
    blocks = [layer] * cfg.layers("decoder_layers")
    return _headed(cfg, replace(whole(cfg, blocks, norm=LAYER if last else None, embedding=embedding), encoder=encoder))


def bart(cfg: Config) -> ModelSpec:
    """BART, PLBart: norms after each part and after the embeddings; two spare rows of positions."""
    return _bart(cfg, rows=2, first=True, last=False)


def mbart(cfg: Config) -> ModelSpec:
    """mBART: norms before each part, after the embeddings and at the end."""
    return _bart(cfg, rows=2, first=True, last=True)


def pegasus(cfg: Config) -> ModelSpec:
    """Pegasus, M2M-100, NLLB: norms before each part and at the end; positions are computed."""
    return _bart(cfg, rows=None, first=False, last=True)


def marian(cfg: Config) -> ModelSpec:
    """Marian: BART without norms after the embeddings; positions are computed."""
    cfg.only("share_encoder_decoder_embeddings", True)
    return _bart(cfg, rows=None, first=False, last=False)


def blenderbot(cfg: Config) -> ModelSpec:
    """Blenderbot: norms before each part and at the end, learned positions without spare rows."""
    return _bart(cfg, rows=0, first=False, last=True)


def whisper(cfg: Config) -> ModelSpec:
    """Whisper: two convolutions over a spectrogram, an encoder with computed positions, a decoder that reads it.

    Keys have no biases. A window of 30 seconds is 1,500 positions.
    """
    _pair(cfg)
    augmented = ("apply_spec_augment", "mask_time_prob", "mask_time_length", "mask_time_min_masks")
    cfg.ignore(*augmented, "mask_feature_prob", "mask_feature_length", "mask_feature_min_masks", "median_filter_width")
    cfg.ignore("encoder_layerdrop", "decoder_layerdrop", "classifier_proj_size", "use_weighted_layer_sum", "lang_ids")
    hidden, bins = hidden_size(cfg), cfg.count("num_mel_bins")
    seen, ffn = _side(cfg, "encoder", hidden, key_bias=False)
    convolutions = 3 * bins * hidden + hidden + 3 * hidden * hidden + hidden
    encoder = Encoder(
        reads="audio", hidden=hidden, block=Block(mixer=replace(seen, positions="none"), ffn=ffn, norm=LAYER),
        layers=cfg.layers("encoder_layers"), context=cfg.count("max_source_positions"),
        front=2 * 3 * bins * hidden + 3 * hidden * hidden, per_second=FRAMES_PER_SECOND,
        other_params=convolutions + LAYER.params(hidden),
    )  # fmt: skip
    own, wide = _side(cfg, "decoder", hidden, key_bias=False)
    layer = Block(mixer=own, cross=replace(own, causal=False), ffn=wide, norm=LAYER, norms=3)
    rows = cfg.count("max_target_positions")
    embedding = Embedding(tied=cfg.flag("tie_word_embeddings", True), positions=rows)
    found = whole(cfg, [layer] * cfg.layers("decoder_layers"), norm=LAYER, embedding=embedding)
    return _headed(cfg, replace(found, encoder=encoder, context=rows))
