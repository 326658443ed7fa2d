"""Turn a Timeline into a graph of dependencies between starts and ends of spans, and replay it with changes.

edges                the points, the kinds of dependency, and silences of a host that waited for its last launch
match_collectives    the parts of one collective on all ranks, sends with their receives, and how far clocks are apart
dependencies         who finds edges: on chips' streams, on hosts' threads, between ranks
dependency_graph     all of it together, in an order in which every edge goes forward; `replay`
"""
