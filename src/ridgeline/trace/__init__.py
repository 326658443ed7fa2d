"""Predicted or measured, one type: a Timeline of spans and counters, read from files, analysed, written to files.

    timeline                 the columns every span has, and the side tables of what few carry
    intervals                unions and overlaps of times, exact to the nanosecond
    classes                  what a span is: by the op that launched it, by its name and kind; which spans count
    read/                    files -> Timeline: one reader a format, all of them in `read.readers.READERS`
    graph/                   Timeline -> what had to happen before what, across streams, hosts and ranks; replayed
    analysis/                Timeline -> breakdown, idle causes, critical path, stragglers, roofline, phases, what-ifs
    findings/                all of that -> what limits the step, and what to change first; `findings.rules.RULES`
    analyze_traces, diff     the verbs
    chrome_writer            Timeline -> a file that Perfetto opens, and `read` reads back

Each line imports only lines above it.
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
