"""Names that the room of compilers' programs offers."""

from ridgeline.compilers.cubin import is_cubin as is_cubin
from ridgeline.compilers.cubin import read_cubin as read_cubin
from ridgeline.compilers.multiprocessor import KernelResources as KernelResources
from ridgeline.compilers.multiprocessor import Occupancy as Occupancy
from ridgeline.compilers.multiprocessor import occupancy as occupancy
from ridgeline.compilers.normalisation import NormalForm as NormalForm
from ridgeline.compilers.normalisation import NormalOp as NormalOp
from ridgeline.compilers.normalisation import normal_form as normal_form
from ridgeline.compilers.ptx import PtxKernel as PtxKernel
from ridgeline.compilers.ptx import read_ptx as read_ptx
from ridgeline.compilers.readers import READERS as READERS
from ridgeline.compilers.readers import ProgramReader as ProgramReader
from ridgeline.compilers.readers import program_format as program_format
from ridgeline.compilers.readers import program_source as program_source
from ridgeline.compilers.readers import read_program as read_program
