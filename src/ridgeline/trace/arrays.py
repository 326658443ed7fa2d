"""The columns that this room is made of, by the width of their numbers."""

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
"""Nanoseconds, and points of a graph."""
Floats = NDArray[np.float64]
Codes = NDArray[np.int32]
"""Positions in a table of texts, or rows of a timeline."""
Classes = NDArray[np.int16]
Layers = NDArray[np.int16]
Bytes = NDArray[np.int8]
"""Positions in a small table: phases, kinds of edges."""
Mask = NDArray[np.bool_]
