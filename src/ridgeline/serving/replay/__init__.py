"""Recordings of real schedulers, replayed by the simulated ones."""
