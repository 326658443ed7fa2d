"""Names that the room of collectives offers."""

from ridgeline.comm.algorithm import Algorithm as Algorithm
from ridgeline.comm.answer import CollectiveOptions as CollectiveOptions
from ridgeline.comm.answer import CollectivePrices as CollectivePrices
from ridgeline.comm.answer import CollectiveTime as CollectiveTime
from ridgeline.comm.answer import LayerPrice as LayerPrice
from ridgeline.comm.answer import collective as collective
from ridgeline.comm.answer import collective_list as collective_list
from ridgeline.comm.answer import collective_verify as collective_verify
from ridgeline.comm.bounds import lower_bound as lower_bound
from ridgeline.comm.comparisons import AlgorithmList as AlgorithmList
from ridgeline.comm.comparisons import SizeRange as SizeRange
from ridgeline.comm.contract import PLAIN_COLLECTIVES as PLAIN_COLLECTIVES
from ridgeline.comm.contract import Collective as Collective
from ridgeline.comm.contract import bus_factor as bus_factor
from ridgeline.comm.graph import Graph as Graph
from ridgeline.comm.library.algorithms import pairwise as pairwise
from ridgeline.comm.library.algorithms import ring_allgather as ring_allgather
from ridgeline.comm.library.algorithms import sends as sends
from ridgeline.comm.library.table import closed_forms as closed_forms
from ridgeline.comm.routes import shortest_routes as shortest_routes
from ridgeline.comm.topologies import graph_of_system as graph_of_system
from ridgeline.comm.topologies import topology as topology
from ridgeline.comm.verify import verify_algorithm as verify_algorithm
