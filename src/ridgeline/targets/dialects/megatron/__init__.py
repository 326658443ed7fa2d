"""Megatron-LM: arguments of pretrain_gpt.py in a shell script, and such scripts read back."""
