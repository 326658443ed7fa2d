"""The columns of a timeline by the width of their numbers; `core.arrays` has those of any floor."""

import numpy as np
from numpy.typing import NDArray

Longs = NDArray[np.int64]
"""Nanoseconds, and points of a graph."""
Codes = NDArray[np.int32]
"""Positions in a table of texts, or rows of a timeline."""
Classes = NDArray[np.int16]
Layers = NDArray[np.int16]
Bytes = NDArray[np.int8]
"""Positions in a small table: phases, kinds of edges."""
