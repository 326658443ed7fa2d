"""Algorithms made for a graph: all-gather by matching chunks to links, trees that share links evenly."""
