"""Turn an analysis into findings: what limits the time, the spans that prove it, what it would gain to change it."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.trace.findings.communication import (
    exposed_communication,
    exposed_copies,
    late_ranks,
    pipeline_bubble,
    uneven_ranks,
)
from ridgeline.trace.findings.finding import LEAST, Facts, Finding, Gain, Rule
from ridgeline.trace.findings.idle import held_back, launches_late, pauses, start_up, waits
from ridgeline.trace.findings.kernels import (
    fusible_chains,
    slow_attention,
    slow_products,
    slow_traffic,
    unfused_optimizer,
    without_matrix_unit,
)

NOISE, LARGE = 0.002, 0.04  # a gain this small is said only of what takes this much


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Everything worth saying, largest gain first."""
    found = [finding for rule in RULES for finding in rule(facts) if finding.share_of_step >= LEAST]
    told = [one for one in found if one.predicted_gain >= NOISE or one.share_of_step >= LARGE]
    return tuple(sorted(told, key=lambda finding: -finding.predicted_gain))


def unknown_work(facts: Facts) -> Iterator[Finding]:
    """No gain: the numbers by class are less certain."""
    lost = sum(one.total_ns for one in facts.parts.unknown)
    rows = [one.rows[0] for one in facts.parts.unknown]
    yield facts.finding(
        f"{len(facts.parts.unknown)} kernel names belong to no class and count as compute", rows, lost, Gain(0.0),
        "name them in a TOML file and pass it with --classes",
    )  # fmt: skip


RULES: tuple[Rule, ...] = (
    launches_late,
    pauses,
    waits,
    start_up,
    held_back,
    exposed_communication,
    exposed_copies,
    slow_products,
    slow_attention,
    slow_traffic,
    without_matrix_unit,
    fusible_chains,
    unfused_optimizer,
    uneven_ranks,
    late_ranks,
    pipeline_bubble,
    unknown_work,
)
"""All rules, in the order they are asked."""
