"""Names that the room of compilers' programs offers."""

from ridgeline.compilers.readers import READERS as READERS
from ridgeline.compilers.readers import ProgramReader as ProgramReader
from ridgeline.compilers.readers import program_format as program_format
from ridgeline.compilers.readers import read_program as read_program
