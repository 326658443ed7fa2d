"""Many predictions at once: every way to split a workload, priced, ranked and explained; and what failures leave of it."""
