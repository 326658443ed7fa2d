"""Op x chip -> seconds: a few named physical rates, and how ops are priced with them.

The door: what other rooms take is listed in `__init__.pyi` and loaded when it is first asked for. Side doors:

    pricing         columns of systems, parameters and ops, and the prices of ops that they give
    step_part       the parts that a step's seconds are told apart by
    anchoring       what a user's own runs say about another step
    fitting         what a fit asks of chips, kernels and files beside that
    library_times   what benchmarks of collectives measure
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
