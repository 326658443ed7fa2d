"""Who starts a run on its nodes: scripts, Slurm, Kubernetes, clouds."""
