"""MindSpeed-LLM on Ascend: arguments of its pretrain_gpt.py in a shell script, and such scripts read back."""
