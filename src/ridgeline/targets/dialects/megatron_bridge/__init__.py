"""Megatron-Bridge: a recipe that returns a ConfigContainer, and published recipes read back."""
