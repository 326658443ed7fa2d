"""Predicted or measured, one type: a Timeline of spans and counters, and the files it is written to."""

from ridgeline.trace.chrome import chrome_events, write_chrome
from ridgeline.trace.timeline import Counter, Span, Timeline

__all__ = ["Counter", "Span", "Timeline", "chrome_events", "write_chrome"]
