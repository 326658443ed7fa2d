"""Names that the room of op graphs offers."""

from ridgeline.graph.graph_file import is_graph_file as is_graph_file
from ridgeline.graph.graph_file import read_graph as read_graph
from ridgeline.graph.graph_file import write_graph as write_graph
