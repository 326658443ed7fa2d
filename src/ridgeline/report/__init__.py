"""What people see of results: terminal pages, HTML files, pictures and tables; entries of the catalogs.

The package has the name of a verb and can be called as one: `ridgeline.report(...)` is `ridgeline.design_api.report`.
"""

from ridgeline.core.door import answer_calls, open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
answer_calls(__name__, "ridgeline.design_api")
