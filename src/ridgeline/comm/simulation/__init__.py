"""Algorithms on a graph as fluid flows that share links: path choice, messages, max-min rates, other seeds."""
