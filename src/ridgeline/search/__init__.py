"""Many predictions at once: all ways to split a workload, priced, ranked, explained; and what failures leave of it."""
