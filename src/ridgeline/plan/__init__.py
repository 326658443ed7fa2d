"""Decisions as data: mesh, plan, workload, scenario, schedules.

The package has the name of a verb and can be called as one: `ridgeline.plan(...)` is `ridgeline.api.plan`, whatever
module of the package was imported before.
"""

from ridgeline.core.door import answer_calls

answer_calls(__name__, "ridgeline.api")
