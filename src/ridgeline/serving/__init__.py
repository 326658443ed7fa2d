"""Turn arrivals of requests into what an engine does with them, step by step: the request-level simulator."""
