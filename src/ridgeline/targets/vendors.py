"""Turn a scenario and the vendors whose chips a target runs on into a loss where the scenario's are others."""

from __future__ import annotations

from collections.abc import Iterator

from ridgeline.plan.scenario import Scenario
from ridgeline.targets.ledger import Lose


def runs_on(scenario: Scenario, *vendors: str) -> Iterator[Lose]:
    """Nothing where the chips are of one of the vendors.

    >>> import ridgeline
    >>> made = ridgeline.scenario({"model": "llama3-8b", "system": "tpu-v5p:2x2x2",
    ...     "workload": {"seq": 4096, "global_batch": 8}, "plan": {}})
    >>> [lost.why for lost in runs_on(made, "NVIDIA", "AMD")]
    ['it runs on chips of NVIDIA and AMD, not of Google']
    """
    vendor = scenario.system.chip.vendor
    if vendor not in vendors:
        *most, last = vendors
        names = f"{', '.join(most)} and {last}" if most else last
        yield Lose("system.chips", f"it runs on chips of {names}, not of {vendor}")
