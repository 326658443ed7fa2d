"""Sections and their places -> peak memory of every pipeline rank: saved activations, footprint, peak."""
