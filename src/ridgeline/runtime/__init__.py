"""Measure real machines: the only floor with torch.

It knows no prediction: what it needs of one is handed in as values.
"""
