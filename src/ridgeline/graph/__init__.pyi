"""Names that the room of op graphs offers."""

from ridgeline.graph.compare_graphs import ComparedWork as ComparedWork
from ridgeline.graph.compare_graphs import GraphComparison as GraphComparison
from ridgeline.graph.dot import dot_text as dot_text
from ridgeline.graph.fusible_regions import FusibleRegion as FusibleRegion
from ridgeline.graph.graph_file import is_graph_file as is_graph_file
from ridgeline.graph.graph_file import read_graph as read_graph
from ridgeline.graph.graph_file import write_graph as write_graph
from ridgeline.graph.graph_report import GraphReport as GraphReport
from ridgeline.graph.graph_report import GraphTotal as GraphTotal
from ridgeline.graph.kernel_time import RATES as RATES
from ridgeline.graph.kernel_time import GraphChip as GraphChip
from ridgeline.graph.kernel_time import KernelRates as KernelRates
from ridgeline.graph.kernel_time import Variant as Variant
from ridgeline.graph.kernel_time import graph_work as graph_work
from ridgeline.graph.kernel_time import kernels_of as kernels_of
from ridgeline.graph.kernel_time import shipped_rates as shipped_rates
from ridgeline.graph.kernel_time import work_seconds as work_seconds
from ridgeline.graph.lowering_check import check_lowering as check_lowering
from ridgeline.graph.program_files import compare_files as compare_files
from ridgeline.graph.program_files import graph_of_file as graph_of_file
from ridgeline.graph.region_table import region as region
from ridgeline.graph.region_table import region_base as region_base
from ridgeline.graph.save_sets import RecomputeAnswer as RecomputeAnswer
