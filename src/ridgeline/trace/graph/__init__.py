"""Turn a Timeline into a graph of dependencies between starts and ends of spans, and replay it with changes.

edges                       the points, and the kinds of dependency
host_waits                  silences of a host that waited for its last launch
device_, host_, rank_edges  who finds them: on chips' streams, on hosts' threads, between ranks
match_collectives           the parts of one collective on all ranks, and how far the ranks' clocks are apart
match_p2p                   sends with their receives
toposort                    an order in which every edge goes forward
dependency_graph            all of it together; `replay`
"""
