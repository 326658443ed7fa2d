"""Turn the numerics of a model into pieces in Megatron's words: rotary base and scaling, norm epsilon, router."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.models.numerics import numerics_of, unknown_numerics
from ridgeline.models.spec import LatentAttention
from ridgeline.plan.scenario import Scenario
from ridgeline.targets.ledger import Fixed, Lose, Piece, Say

AT = "model.numerics"
FIRST = 4096  # the first context that YaRN takes for granted


def numerics(scenario: Scenario) -> Iterator[Piece]:
    """What a converted checkpoint needs, and what training from nothing should have too."""
    found = numerics_of(scenario.model)
    if found.rotary_base is not None:
        yield Say("--rotary-base", int(found.rotary_base), f"{AT}.rotary_base")
    if found.norm_eps is not None:
        yield Say("--norm-epsilon", found.norm_eps, f"{AT}.norm_eps")
    yield from _scaling(scenario)
    yield from _router(scenario)
    if unknown := unknown_numerics(scenario.model):
        why = f"{', '.join(unknown)} of this model: not known; set them as its checkpoint has them"
        yield Lose(f"{AT}.unknown", why, yours=True)


def _scaling(scenario: Scenario) -> Iterator[Piece]:
    scaling, at = numerics_of(scenario.model).rotary_scaling, f"{AT}.rotary_scaling"
    latent = all(isinstance(block.mixer, LatentAttention) for block in scenario.model.blocks)
    if scaling is None:
        if latent:
            yield Say("--rope-type", "rope")
        return
    if scaling.kind == "llama3":
        yield Say("--use-rope-scaling", True, f"{at}.kind", f"{at}.first_context")
        yield Say("--rope-scaling-factor", scaling.factor, f"{at}.factor")
    elif latent:
        yield Say("--rope-type", "yarn", f"{at}.kind")
        yield Say("--rotary-scaling-factor", scaling.factor, f"{at}.factor")
        yield Fixed(f"{at}.first_context", FIRST, "what YaRN starts from unless told otherwise")
    else:
        yield Lose(f"{at}.*", "YaRN is for latent attention here")


def _router(scenario: Scenario) -> Iterator[Piece]:
    router, at = numerics_of(scenario.model).router, f"{AT}.router"
    if router is None:
        return
    yield Say("--moe-router-score-function", router.score, f"{at}.score")
    if router.bias:
        yield Say("--moe-router-enable-expert-bias", True, f"{at}.bias")
    yield Fixed(f"{at}.bias", False, "none unless told otherwise")
    if router.scale != 1.0:
        yield Say("--moe-router-topk-scaling-factor", router.scale, f"{at}.scale")
    yield Fixed(f"{at}.scale", 1.0, "as they are unless told otherwise")
