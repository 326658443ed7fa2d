"""Rows of truth tables -> scenarios and measured step times; the bundled tables."""
