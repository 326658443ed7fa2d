"""Many predictions over machines and models: sensitivities, design spaces, architectures, requirement reports.

The package has the name of a verb and can be called as one: `ridgeline.design(...)` is `ridgeline.design_api.design`.
"""

import sys
from importlib import import_module
from types import ModuleType

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)


class _Verb(ModuleType):
    """A package that answers a call with the verb of its name."""

    def __call__(self, *given: object, **options: object) -> object:
        return import_module("ridgeline.design_api").design(*given, **options)


sys.modules[__name__].__class__ = _Verb
