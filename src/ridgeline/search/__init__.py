"""Many predictions at once: every way to split a workload, priced, ranked explained; what failures leave of it."""
