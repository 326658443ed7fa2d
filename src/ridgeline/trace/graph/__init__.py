"""Turn a Timeline into a graph of dependencies between starts and ends of spans, and replay it with changes.

edges                the points, the kinds of dependency, and who finds them: on streams, on threads, between ranks
match_collectives    the parts of one collective on all ranks, sends with their receives, and how far clocks are apart
dependency_graph     all of it together, in an order in which every edge goes forward; `replay`
"""
