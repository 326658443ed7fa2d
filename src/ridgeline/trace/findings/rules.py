"""Turn an analysis into findings: what limits the time, the spans that prove it, what it would gain to change it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from ridgeline.trace.classes import UNKNOWN
from ridgeline.trace.findings.communication import (
    exposed_communication,
    exposed_copies,
    late_in_turn,
    late_ranks,
    moving_imbalance,
    pipeline_bubble,
    slow_links,
    small_collectives,
    uneven_ranks,
)
from ridgeline.trace.findings.finding import LEAST, Facts, Finding, Gain, Rule
from ridgeline.trace.findings.idle import held_back, launches_late, outlier_steps, pauses, start_up, waits
from ridgeline.trace.findings.kernels import (
    fusible_chains,
    layout_changes,
    slow_attention,
    slow_products,
    slow_traffic,
    unfused_attention,
    unfused_optimizer,
    unpacked_weights,
    without_matrix_unit,
)

NOISE, LARGE = 0.002, 0.04  # a gain this small is said only of what takes this much
REAL = 0.05  # a gain from which on a finding goes before what is only of the capture


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Everything worth saying, largest gain first; what is only of the capture goes behind what gains something."""
    candidates = [
        replace(finding, rule=rule.__name__)
        for rule in RULES
        for finding in rule(facts)
        if finding.share_of_step >= LEAST
    ]
    relevant = [finding for finding in candidates if finding.predicted_gain >= NOISE or finding.share_of_step >= LARGE]
    return tuple(sorted(relevant, key=_place))


def _place(finding: Finding) -> tuple[int, float]:
    """Where a finding stands: what gains, then what is of the capture, then the rest."""
    if finding.capture:
        return 1, -finding.predicted_gain
    return (0 if finding.predicted_gain >= REAL else 2), -finding.predicted_gain


def unknown_work(facts: Facts) -> Iterator[Finding]:
    """No gain: the numbers by class are less certain."""
    rows = np.flatnonzero(facts.of_class(UNKNOWN))
    yield facts.finding(
        f"{len(facts.parts.unknown)} kernel names belong to no class and count as compute",
        [row.rows[0] for row in facts.parts.unknown], facts.union_ns(rows), Gain(0.0),
        "name them in a TOML file and pass it with --classes",
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    launches_late,
    pauses,
    waits,
    start_up,
    held_back,
    outlier_steps,
    exposed_communication,
    slow_links,
    small_collectives,
    exposed_copies,
    unfused_attention,
    layout_changes,
    slow_products,
    unpacked_weights,
    slow_attention,
    slow_traffic,
    without_matrix_unit,
    fusible_chains,
    unfused_optimizer,
    uneven_ranks,
    moving_imbalance,
    late_ranks,
    late_in_turn,
    pipeline_bubble,
    unknown_work,
)
"""All rules, in the order they are asked."""
