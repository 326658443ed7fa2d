"""Known algorithms: each a function from ranks (and their place on a graph) to an Algorithm."""
