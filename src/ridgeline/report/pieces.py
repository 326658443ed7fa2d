"""Pieces of pages that the workbench shares: charts, styles, sentences and the headers of the Perfetto page."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
