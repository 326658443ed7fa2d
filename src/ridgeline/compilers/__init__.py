"""What compilers write of a program -> the op graph, their fusions and the resources of their kernels.

The door: what other rooms take is listed in `__init__.pyi` and loaded when it is first asked for.
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
