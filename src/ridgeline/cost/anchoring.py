"""Turn the runs that anchored a calibration into what they say about another step: by how much, and how sure.

    mean      k . weight                        weight = (K + noise^2)^-1 gap
    variance  k_own - k (K + noise^2)^-1 k      K, k = covariances among the runs, and of the step with each of them

the conditional normal distribution (Gaussian process regression), its covariances those of `Components`. Along
parameters the mean is applied as offsets, so that values stay in their range; the rest of it is the pace, a factor on
the whole step that parameters do not explain.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log2

import numpy as np

from ridgeline.core.arrays import Array
from ridgeline.cost.anchored import Anchored, AnchorRun, Components, Sensitivity, WorkShape
from ridgeline.cost.calibration import APART, PARAMETERS, Calibration, Owner, owners
from ridgeline.plan.scenario import Scenario

__all__ = (
    "APART",
    "PARTS",
    "AnchorRun",
    "Anchored",
    "Components",
    "Sensitivity",
    "after_one_more",
    "basis",
    "covariance",
    "shape_of",
    "variances",
)

LENGTH = 2.0  # doublings of a size over which the effect of alike runs fades
OTHER = {"experts": 1.0, "chip": 2.0, "engine": 2.0}  # squared distance of runs that differ in this
OWNERS: tuple[Owner, ...] = tuple(APART)
CHIP, ENGINE = OWNERS.index("chip"), OWNERS.index("engine")
SIZES = ("size", "hidden", "chips", "seq")
PARTS = ("owners", "shared", "same", "near")  # components that runs share, in the order of `basis`


def shape_of(scenario: Scenario) -> WorkShape:
    """What makes a scenario alike to others, its plan apart: a search compares plans, and none may look better for
    being unlike what was measured.

    >>> from ridgeline.plan.scenario_file import read_scenario
    >>> shape_of(read_scenario("examples/llama3-70b-64xh100.toml")).chips
    6.0
    """
    model = scenario.model
    return WorkShape(
        size=log2(model.hidden) * 2 + log2(model.layers),
        hidden=log2(model.hidden),
        chips=log2(scenario.system.chips),
        seq=log2(scenario.workload.seq),
        experts=any(block.ffn is not None and block.ffn.kind == "moe" for block in model.blocks),
    )


def basis(one: Sequence[Sensitivity], other: Sequence[Sensitivity]) -> tuple[Array, ...]:
    """Covariances of some steps with others for components of 1, by `PARTS`."""
    names = [[run.owners for run in side] for side in (one, other)]
    same_owner = [np.array([[a[at] == b[at] != "" for b in names[1]] for a in names[0]]) for at in range(len(OWNERS))]
    shape = len(one), len(other)
    same_owner = [run.reshape(shape) for run in same_owner]
    return (
        _along_parameters(_slopes(one), _slopes(other), same_owner),
        np.ones(shape),
        (same_owner[CHIP] & same_owner[ENGINE]).astype(np.float64),
        np.exp(-_distance(one, other, same_owner) / 2),
    )


def _slopes(each: Sequence[Sensitivity]) -> Array:
    return np.array([[run.slopes.get(name, 0.0) for name in PARAMETERS] for run in each]).reshape(-1, len(PARAMETERS))


def _along_parameters(one: Array, other: Array, alike: Sequence[Array]) -> Array:
    prior_spread = np.array([item.common_spread for item in PARAMETERS.values()])
    products: Array = (one * prior_spread**2) @ other.T
    for owner, same in zip(OWNERS, alike, strict=True):
        indices = [index for index, item in enumerate(PARAMETERS.values()) if owner in item.per]
        products = products + APART[owner] ** 2 * same * (one[:, indices] @ other[:, indices].T)
    return products


def _distance(one: Sequence[Sensitivity], other: Sequence[Sensitivity], alike: Sequence[Array]) -> Array:
    """Squared, in lengths."""
    sizes = [np.array([[getattr(run.shape, name) for name in SIZES] for run in side]) for side in (one, other)]
    gaps = (sizes[0].reshape(-1, 1, len(SIZES)) - sizes[1].reshape(1, -1, len(SIZES))) / LENGTH
    experts = [np.array([run.shape.experts for run in side]) for side in (one, other)]
    unlike = experts[0].reshape(-1, 1) != experts[1].reshape(1, -1)
    squares: Array = (gaps**2).sum(-1) + OTHER["experts"] * unlike
    for at, name in ((CHIP, "chip"), (ENGINE, "engine")):
        squares = squares + OTHER[name] * ~alike[at].astype(np.bool_)
    return squares


def covariance(one: Sequence[Sensitivity], other: Sequence[Sensitivity], components: Components) -> Array:
    """Covariances of some steps with others, noise apart."""
    return sum_parts(basis(one, other), components)


def sum_parts(parts: Sequence[Array], components: Components, names: Sequence[str] = PARTS) -> Array:
    """Parts of a covariance in the sizes of their components."""
    scaled_parts = [
        getattr(components, name) ** 2 * part for name, part in zip(PARTS, parts, strict=True) if name in names
    ]
    return np.asarray(sum(scaled_parts[1:], start=scaled_parts[0]))


def pace_of(calibration: Calibration, scenario: Scenario) -> float:
    """The factor on a scenario's step that anchoring leaves beside its parameters; 1 without anchors."""
    anchors = calibration.anchored
    if anchors is None or not anchors.runs:
        return 1.0
    sensitivity = Sensitivity(
        owners=owners(scenario.system.chip, scenario.engine).of_training, shape=shape_of(scenario), slopes=NO_SLOPES
    )
    parts = basis([sensitivity], [run.sensitivity for run in anchors.runs])
    effects = sum_parts(parts, anchors.components, PARTS[1:])
    return exp(float(effects[0] @ np.array([run.weight for run in anchors.runs])))


NO_SLOPES: dict[str, float] = {}


def after_one_more(
    known: Anchored, own: Sensitivity, other: Sensitivity, noise: float, *, kernel: bool
) -> tuple[float, float]:
    """Variance of log(measured / predicted) of a step before and after a measurement of something else.

    kernel   whether only parameters are measured, and none of the effects that whole runs of a user share
    """
    sensitivities = [*(run.sensitivity for run in known.runs), other]
    step_share = np.array([*(1.0 for _ in known.runs), 0.0 if kernel else 1.0])
    among, across = basis(sensitivities, sensitivities), basis([own], sensitivities)
    among = (among[0], *(part * np.outer(step_share, step_share) for part in among[1:]))
    across = (across[0], *(part * step_share for part in across[1:]))
    sizes = known.components
    variance = sum_parts(among, sizes) + np.diag([*(run.noise**2 for run in known.runs), noise**2])
    towards = sum_parts(across, sizes)[0]
    before = variances(known, own)[1]
    first = float(covariance([own], [own], sizes)[0, 0]) + sizes.noise**2
    return before, first - float(towards @ np.linalg.solve(variance, towards))


def variances(known: Anchored, own: Sensitivity, *, noise: bool = True) -> tuple[float, float]:
    """Variance of log(measured / predicted) of a step before and after the runs that anchored a calibration."""
    components, runs = known.components, [run.sensitivity for run in known.runs]
    before = float(covariance([own], [own], components)[0, 0]) + (components.noise**2 if noise else 0.0)
    if not runs:
        return before, before
    across = covariance([own], runs, components)[0]
    among = covariance(runs, runs, components) + np.diag([run.noise**2 for run in known.runs])
    return before, before - float(across @ np.linalg.solve(among, across))
