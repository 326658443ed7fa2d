"""Op graphs -> regions that one kernel could run, what that gains on a chip, and what to save for the backward.

The door: what other rooms take is listed in `__init__.pyi` and loaded when it is first asked for. The package has the
name of a verb and can be called as one: `ridgeline.graph(...)` is `ridgeline.run_api.graph`.
"""

from ridgeline.core.door import answer_calls, open_door

answer_calls(__name__, "ridgeline.run_api")
__getattr__, __dir__, __all__ = open_door(__name__, __file__)
