"""torchtitan: a job file (TOML), and such files or configuration functions read back."""
