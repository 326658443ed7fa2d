"""Many predictions at once: all ways to split a workload, priced, ranked, explained; and what failures leave of it.

This is the door. A plan for training is a `PlanRequest` for `recommend`, a deployment that serves a `DeploymentRequest`
for `recommend_deployment`; `find_plan` searches one scenario. Names are loaded when first used. What every search has
(`request`, `choices`, `progress`, `target`, `recommendation`) stands here once; `training` and `deployment` fill it in.
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
