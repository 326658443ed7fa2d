"""Op graphs -> regions that one kernel could run, what that gains on a chip, and what to save for the backward.

The door: what other rooms take is listed in `__init__.pyi` and loaded when it is first asked for. The package has the
name of a verb and can be called as one: `ridgeline.graph(...)` is `ridgeline.api.graph`.
"""

import sys
from importlib import import_module
from types import ModuleType

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)


class _Verb(ModuleType):
    """A package that answers a call with the verb of its name."""

    def __call__(self, *given: object, **options: object) -> object:
        return import_module("ridgeline.api").graph(*given, **options)


sys.modules[__name__].__class__ = _Verb
