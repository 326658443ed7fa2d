"""Many predictions over machines and models: sensitivities, design spaces, architectures, requirement reports.

The package has the name of a verb and can be called as one: `ridgeline.design(...)` is `ridgeline.design_api.design`.
"""

from ridgeline.core.door import answer_calls, open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
answer_calls(__name__, "ridgeline.design_api")
