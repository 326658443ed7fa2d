"""Collective x links -> seconds: topologies as columns, algorithms as terms, the fastest one on offer."""
