"""Decisions as data: mesh, plan, workload, scenario, schedules.

The package has the name of a verb and can be called as one: `ridgeline.plan(...)` is `ridgeline.api.plan`, whatever
module of the package was imported before.
"""

import sys
from importlib import import_module
from types import ModuleType


class _Verb(ModuleType):
    """A package that answers a call with the verb of its name."""

    def __call__(self, *given: object, **options: object) -> object:
        return import_module("ridgeline.api").plan(*given, **options)


sys.modules[__name__].__class__ = _Verb
