"""Side door for whoever simulates requests of its own: what makes loads, closed batches, schedulers and replicas."""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
