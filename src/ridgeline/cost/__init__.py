"""Op x chip -> seconds: a few named physical rates, and how ops are priced with them.

The door: what other rooms take is listed in `__init__.pyi` and loaded when it is first asked for. Side doors: `pricing`
for whoever prices steps, `fitting` for whoever fits, `library_times` for what benchmarks of collectives measure.
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
