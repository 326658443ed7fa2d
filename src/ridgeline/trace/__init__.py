"""Predicted or measured, one type: a Timeline of spans and counters, the files it is read from and written to."""

from ridgeline.trace.chrome import chrome_events, write_chrome
from ridgeline.trace.detail import About, Collective, Detail, Shape, Sparse
from ridgeline.trace.timeline import Counter, Span, Tables, Timeline

__all__ = [
    "About",
    "Collective",
    "Counter",
    "Detail",
    "Shape",
    "Span",
    "Sparse",
    "Tables",
    "Timeline",
    "chrome_events",
    "write_chrome",
]
