"""Closed forms of collectives: the wiring of systems as columns, and seconds of an algorithm on them as terms."""
