"""Requests: drawn, read from traces, or from a log."""
