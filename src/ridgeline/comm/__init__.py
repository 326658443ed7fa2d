"""Topology graphs, and collective algorithms as data: bounds, verification, a library, synthesis, times."""
