"""Side door for post-training: a question into split, parallelism of every role, staleness and engine replicas."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
