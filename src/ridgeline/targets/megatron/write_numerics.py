"""Turn the numerics of a model into pieces in Megatron's words: rotary base and scaling, norm epsilon, router."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.models.numerics import RotaryScaling, numerics_of, unknown_numerics
from ridgeline.models.spec import Attention, LatentAttention, ModelSpec
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.decisions import has_experts
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say

AT = "model.numerics"
FIRST = 4096  # the first context that YaRN takes for granted


def numerics(scenario: Scenario) -> Iterator[Piece]:
    """What a converted checkpoint needs, and what training from nothing should have too."""
    found = numerics_of(scenario.model)
    if found.rotary_base is not None and turned(scenario.model):
        yield Say("--rotary-base", int(found.rotary_base), f"{AT}.rotary_base")
    yield Fixed(f"{AT}.rotary_base", found.rotary_base, "no positions are rotated")
    if found.rotary_share is not None and not _latent(scenario.model):
        yield Say("--rotary-percent", found.rotary_share, f"{AT}.rotary_share")
    yield Fixed(f"{AT}.rotary_share", found.rotary_share, "how much of a head is rotated has its own size here")
    yield Lose(f"{AT}.local_rotary_base", "one rotary base for all layers")
    if found.norm_eps is not None:
        yield Say("--norm-epsilon", found.norm_eps, f"{AT}.norm_eps")
    yield Lose(f"{AT}.score_softcap", "scores are not capped")
    yield Lose(f"{AT}.logit_softcap", "logits are not capped")
    sizes = {block.mixer.head_dim for block in scenario.model.blocks if isinstance(block.mixer, Attention)}
    yield Fixed(
        f"{AT}.score_scale", next(iter(sizes)) if len(sizes) == 1 else None, "scores are scaled by a head's size"
    )
    yield from _scaling(scenario)
    yield from _router(scenario)
    if unknown := unknown_numerics(scenario.model):
        why = f"{', '.join(unknown)} of this model: not known; set them as its checkpoint has them"
        yield Lose(f"{AT}.unknown", why, yours=True)


def turned(model: ModelSpec) -> bool:
    """Whether any layer has rotary positions."""
    return _latent(model) or any(
        isinstance(block.mixer, Attention) and block.mixer.positions == "rope" for block in model.blocks
    )


def _latent(model: ModelSpec) -> bool:
    return all(isinstance(block.mixer, LatentAttention) for block in model.blocks)


def scaled_by_yarn(model: ModelSpec) -> bool:
    """Whether positions of softmax attention are scaled by YaRN, which is a kind of position embedding here."""
    scaling = numerics_of(model).rotary_scaling
    return scaling is not None and scaling.kind == "yarn" and not _latent(model)


def _scaling(scenario: Scenario) -> Iterator[Piece]:
    scaling, at = numerics_of(scenario.model).rotary_scaling, f"{AT}.rotary_scaling"
    latent = _latent(scenario.model)
    if scaling is None:
        if latent:
            yield Say("--rope-type", "rope")
        return
    if scaling.kind == "llama3":
        yield Say("--use-rope-scaling", True, f"{at}.kind")
        yield Say("--rope-scaling-factor", scaling.factor, f"{at}.factor")
        for name, value in (("first_context", 8192), ("fast", 4.0), ("slow", 1.0)):
            yield Fixed(f"{at}.{name}", value, "what its Llama 3 scaling has")
        if latent:
            yield Say("--rope-type", "rope")
    elif scaling.kind == "yarn":
        yield from _yarn(scaling, latent)
    else:
        if latent:
            yield Say("--rope-type", "rope")
        yield Lose(f"{at}.*", "positions are scaled as Llama 3 does or by YaRN")


def _yarn(scaling: RotaryScaling, latent: bool) -> Iterator[Piece]:
    at = f"{AT}.rotary_scaling"
    yield Say("--rope-type", "yarn", f"{at}.kind") if latent else Say("--position-embedding-type", "yarn", f"{at}.kind")
    yield Say("--rotary-scaling-factor", scaling.factor, f"{at}.factor")
    if latent:
        for name, option in (("mscale", "--mscale"), ("mscale_all", "--mscale-all-dim")):
            if getattr(scaling, name) is not None:
                yield Say(option, getattr(scaling, name), f"{at}.{name}")
        for name, value in (("first_context", FIRST), ("fast", 32.0), ("slow", 1.0)):
            yield Fixed(f"{at}.{name}", value, "what YaRN starts from unless told otherwise")
        return
    yield Say("--yarn-original-max-position-embeddings", scaling.first_context, f"{at}.first_context")
    for name, option in (("fast", "--yarn-beta-fast"), ("slow", "--yarn-beta-slow")):
        if getattr(scaling, name) is not None:
            yield Say(option, getattr(scaling, name), f"{at}.{name}")
    yield Lose(f"{at}.mscale*", "scores are scaled with YaRN in latent attention")


def _router(scenario: Scenario) -> Iterator[Piece]:
    router, at = numerics_of(scenario.model).router, f"{AT}.router"
    if router is None or not has_experts(scenario.model):
        yield Fixed(f"{at}.*", None, "no experts")
        return
    yield Say("--moe-router-score-function", router.score, f"{at}.score")
    if router.bias:
        yield Say("--moe-router-enable-expert-bias", True, f"{at}.bias")
    yield Fixed(f"{at}.bias", False, "none unless told otherwise")
    if router.scale != 1.0:
        yield Say("--moe-router-topk-scaling-factor", router.scale, f"{at}.scale")
    yield Fixed(f"{at}.scale", 1.0, "as they are unless told otherwise")
    if router.normalized is False and router.score == "softmax":  # a softmax over all experts, before some are picked
        yield Say("--moe-router-pre-softmax", True, f"{at}.normalized")
    yield Fixed(f"{at}.normalized", True, "weights of the picked experts add up to one")
    if router.aux_loss is not None:
        yield Say("--moe-router-load-balancing-type", "aux_loss", f"{at}.aux_loss")
        yield Say("--moe-aux-loss-coeff", router.aux_loss, f"{at}.aux_loss")
