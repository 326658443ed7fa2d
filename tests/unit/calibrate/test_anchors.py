"""Anchors: rates of kernels hold a fit, from above strictly and from below less so."""

from __future__ import annotations

import numpy as np
import pytest

from ridgeline.calibrate.fit import ABOVE, BELOW, Anchor, anchor_residuals, anchors, promised_rates
from ridgeline.cost.calibration import PARAMETERS, Calibration
from ridgeline.cost.machine import ParameterColumns
from ridgeline.hardware.load import chip


def columns(known: tuple[Anchor, ...], **offsets: float) -> ParameterColumns:
    """Defaults, moved by some offsets."""
    given = Calibration(offsets=offsets)
    return ParameterColumns(
        values={name: np.array([given.owner_value(name, anchor.owners) for anchor in known]) for name in PARAMETERS}
    )


def test_every_anchor_is_below_its_peak() -> None:
    for anchor in anchors():
        if anchor.kind == "product":
            assert anchor.low < anchor.high < chip(anchor.chip).peak[anchor.precision].value


def test_a_link_is_promised_its_share() -> None:
    link = tuple(anchor for anchor in anchors() if anchor.kind == "link")
    assert promised_rates(link, columns(link)) == pytest.approx([PARAMETERS["near"].default] * len(link))


def test_too_fast_costs_more_than_too_slow() -> None:
    one = (Anchor(kind="link", chip="h100-sxm", engine="generic", low=0.7, high=0.75, rows="by hand"),)
    fast, slow = columns(one, near=3.0), columns(one, near=-3.0)
    over, under = float(promised_rates(one, fast)[0]), float(promised_rates(one, slow)[0])
    assert anchor_residuals(one, fast) == pytest.approx([np.log(over / 0.75) / ABOVE])
    assert anchor_residuals(one, slow) == pytest.approx([np.log(under / 0.7) / BELOW])
    inside = (Anchor(kind="link", chip="h100-sxm", engine="generic", low=0.7, high=0.9, rows="by hand"),)
    assert anchor_residuals(inside, columns(inside)) == pytest.approx([0.0])


def test_backward_attention_is_slower_than_forward() -> None:
    pair = tuple(anchor for anchor in anchors() if anchor.chip == "b200-sxm" and anchor.kind == "attention")
    fast = dict(zip((anchor.direction for anchor in pair), promised_rates(pair, columns(pair)), strict=True))
    assert 0.4 < fast["backward"] / fast["forward"] < 1.1
