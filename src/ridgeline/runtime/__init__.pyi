"""Names that the room of real machines offers, beside its side doors `train`, `bringup` and `capture`."""

from ridgeline.runtime.installation import Doctor as Doctor
from ridgeline.runtime.installation import InstalledPackage as InstalledPackage
from ridgeline.runtime.installation import TorchDevice as TorchDevice
from ridgeline.runtime.installation import doctor as doctor
from ridgeline.runtime.measure import Characterization as Characterization
from ridgeline.runtime.measure import best_measured as best_measured
from ridgeline.runtime.measure import characterize as characterize
from ridgeline.runtime.measure import merge_profiles as merge_profiles
from ridgeline.runtime.measure import need_torch as need_torch
from ridgeline.runtime.measure import write_standalone as write_standalone
from ridgeline.runtime.rank_check import Preflight as Preflight
from ridgeline.runtime.rank_check import PreflightFinding as PreflightFinding
from ridgeline.runtime.rank_check import preflight as preflight
from ridgeline.runtime.run_collective import CollectiveRun as CollectiveRun
from ridgeline.runtime.run_collective import collective_run as collective_run
