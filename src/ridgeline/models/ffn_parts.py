"""Describe feed-forward parts, dense or with experts, as their products and weights (`ridgeline.models.parts`)."""

from __future__ import annotations

from functools import lru_cache
from typing import assert_never

from ridgeline.core.records import dataclass
from ridgeline.models.blocks import Ffn, Mlp, Moe
from ridgeline.models.parts import Columns, Projection, SplitAxis, Weight


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseParts:
    """Up, activation, down; tensor ranks split the width inside.

    width   inside       gated   two products up instead of one, joined
    """

    name: str
    width: int
    gated: bool
    activation: str
    up: Projection
    down: Projection
    vectors: tuple[Weight, ...] = ()

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All parameters."""
        return (*self.up.weights, *self.down.weights, *self.vectors)

    @property
    def biased(self) -> bool:
        """Whether its products have biases."""
        return self.up.biased

    @property
    def params(self) -> int:
        """Number of all parameters."""
        return sum(weight.elements for weight in self.weights)

    @property
    def replicated(self) -> int:
        """Parameters that every tensor rank holds: the bias of the output."""
        return sum(weight.elements for weight in self.weights if not weight.splits)


@dataclass(frozen=True, slots=True, kw_only=True)
class FfnParts:
    """A feed-forward part.

    dense     what every token passes: an MLP, or the shared experts beside routed ones
    moe       routed experts; None: there are none
    experts   matrices of routed experts, all of them        expert_biases   beside these
    router    what stands around the experts: scores, gate of the shared part, projections to a latent width
    router_bias   of the scores
    widest    elements of a token that stand beside each other at the worst moment of a forward
    """

    dense: DenseParts | None = None
    moe: Moe | None = None
    experts: tuple[Weight, ...] = ()
    expert_biases: tuple[Weight, ...] = ()
    router: tuple[Weight, ...] = ()
    router_bias: tuple[Weight, ...] = ()
    widest: int = 0

    @property
    def weights(self) -> tuple[Weight, ...]:
        """All parameters."""
        dense = self.dense.weights if self.dense else ()
        return (*self.router, *self.router_bias, *self.experts, *self.expert_biases, *dense)


@lru_cache(maxsize=1024)
def ffn_parts(ffn: Ffn, hidden: int) -> FfnParts:
    """The parts of a feed-forward part in a model of width `hidden`.

        mlp   m*h*f + bias*((m-1)*f + h)        h = hidden, f = width inside, m = 3 matrices when gated and 2 when not

    >>> sum(weight.elements for weight in ffn_parts(Mlp(hidden=14336), 4096).weights)
    176160768
    """
    match ffn:
        case Mlp():
            dense = _dense("mlp", hidden, ffn.hidden, ffn.gated, ffn.activation, bias=ffn.bias)
            return FfnParts(dense=dense, widest=ffn.hidden * (2 + ffn.gated))
        case Moe():
            return _routed_parts(ffn, hidden)
        case _:
            assert_never(ffn)


def _dense(name: str, hidden: int, width: int, gated: bool, activation: str, *, bias: bool = False) -> DenseParts:
    into = width * (1 + gated)
    up, down = Columns(name=f"{name}.up.weight", outputs=into), Columns(name=f"{name}.down.weight", outputs=hidden)
    vectors = (
        Weight(name=f"{name}.up.bias", dims=(into,), splits=((0, "tp"),)),
        Weight(name=f"{name}.down.bias", dims=(hidden,)),
    )
    return DenseParts(
        name=name,
        width=width,
        gated=gated,
        activation=activation,
        up=Projection(label="up", inputs=hidden, columns=(up,), biased=bias, joins=(1, 1) if gated else ()),
        down=Projection(label="down", inputs=width, columns=(down,), split="inputs", biased=bias),
        vectors=vectors if bias else (),
    )


def _routed_parts(moe: Moe, hidden: int) -> FfnParts:
    """A mixture of experts.

        one expert  m*l*f + bias*((m-1)*f + l)        experts  E * one expert         visited  K * one expert
        shared      m*h*s                             router   h*C + router_bias*C + shared_gate*h + latent*2*h*l

    h = hidden, l = latent width or h, f = width inside an expert, s = width of the shared part, E = experts, K = topk,
    C = E and choices that do nothing, m = 3 matrices when gated and 2 when not. The shared part has no biases.
    """
    inner, wide = moe.latent or hidden, moe.hidden * (1 + moe.gated)
    expert: tuple[int, SplitAxis] = (0, "ep")
    router = [Weight(name="router.weight", dims=(moe.choices, hidden))]
    if moe.latent:
        router.append(Weight(name="experts.latent.weight", dims=(2, moe.latent, hidden)))
    if moe.shared_gate:
        router.append(Weight(name="shared_expert.gate.weight", dims=(1, hidden)))
    biases = (
        Weight(name="experts.up.bias", dims=(moe.experts, wide), splits=(expert, (1, "etp"))),
        Weight(name="experts.down.bias", dims=(moe.experts, inner), splits=(expert,)),
    )
    shared = _dense("shared_expert", hidden, moe.shared_hidden, moe.gated, moe.activation)
    return FfnParts(
        dense=shared if moe.shared_hidden else None,
        moe=moe,
        experts=(
            Weight(name="experts.up.weight", dims=(moe.experts, wide, inner), splits=(expert, (1, "etp"))),
            Weight(name="experts.down.weight", dims=(moe.experts, inner, moe.hidden), splits=(expert, (2, "etp"))),
        ),
        expert_biases=biases if moe.bias else (),
        router=tuple(router),
        router_bias=(Weight(name="router.bias", dims=(moe.choices,)),) if moe.router_bias else (),
        widest=moe.topk * (moe.hidden * (2 + moe.gated) + hidden),
    )
