"""Primus, AMD's launcher: an experiment (YAML) of its Megatron backend, and such files read back."""
