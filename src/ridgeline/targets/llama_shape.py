"""Turn a model into the parts of its one block, where it is of the shape that Llama and Mixtral have."""

from __future__ import annotations

from ridgeline.models.spec import Attention, Mlp, ModelSpec, Moe, Norm


def plain_block(model: ModelSpec) -> tuple[Attention, Mlp | Moe] | None:
    """The parts of a model of equal pre-norm layers as Llama and Mixtral have them."""
    if len(model.blocks) != 1 or model.mtp or model.vision or model.norm != Norm():
        return None
    block = model.blocks[0]
    mixer, ffn, embedding = block.mixer, block.ffn, model.embedding
    if not isinstance(mixer, Attention) or not isinstance(ffn, (Mlp, Moe)):
        return None
    plain_mixer = Attention(heads=mixer.heads, kv_heads=mixer.kv_heads, head_dim=mixer.head_dim)
    plain_ffn: Mlp | Moe = (
        Mlp(hidden=ffn.hidden) if isinstance(ffn, Mlp) else Moe(experts=ffn.experts, topk=ffn.topk, hidden=ffn.hidden)
    )
    outer = (embedding.positions, embedding.width, embedding.norm, embedding.head_bias) == (0, 0, None, False)
    same = mixer == plain_mixer and ffn == plain_ffn and outer
    usual = (block.norm, block.norms, block.parallel, block.extra, block.beside) == (Norm(), 2, False, 0, None)
    return (mixer, ffn) if same and usual else None
