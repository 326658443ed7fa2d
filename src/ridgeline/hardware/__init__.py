"""Machines as data: chips, links and systems, every number quoted."""
