"""Post-train a model here: losses, a sampler, tasks that check themselves, and the run that joins them.

The names of `__init__.pyi` are loaded when first used; torch is imported by the modules that compute alone.
"""

from __future__ import annotations

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
