from ridgeline.comm.libraries.choice import BenchmarkTime as BenchmarkTime
from ridgeline.comm.libraries.choice import LibraryChoice as LibraryChoice
from ridgeline.comm.libraries.choice import SweepPoint as SweepPoint
from ridgeline.comm.libraries.choice import chosen_option as chosen_option
from ridgeline.comm.libraries.choice import library_choice as library_choice
from ridgeline.comm.libraries.choice import library_of as library_of
from ridgeline.comm.libraries.tuners import PCI_SHARE as PCI_SHARE
from ridgeline.comm.libraries.tuners import constants as constants
