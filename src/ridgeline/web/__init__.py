"""The workbench in a browser: pages as pure functions of a URL's choices, and a server that answers this machine alone.

query -> PageState -> PageView (JSON) -> one script draws it        every number in it opens
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
