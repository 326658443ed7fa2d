"""Replicas that step, the router before them, and requests on their way through."""
