"""Turn a Scenario into the files that training software reads, and such files back into a Scenario.

`ridgeline.export` is both this package and the verb: the package can be called, so that `ridgeline.export(scenario,
to="megatron")` works whether or not one of its modules was imported before.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ridgeline.export.target import Export
    from ridgeline.plan.scenario import Scenario


class _Verb(ModuleType):
    """A package that is a function too."""

    def __call__(self, scenario: Scenario, *, to: str) -> Export:
        from ridgeline.export.verbs import export

        return export(scenario, to=to)


sys.modules[__name__].__class__ = _Verb
