"""Turn a question of post-training into split, parallelism of every role, staleness and engine replicas."""
