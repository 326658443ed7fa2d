"""Names of bringing a device up that others use."""

from ridgeline.runtime.bringup.compare import ReportDiff as ReportDiff
from ridgeline.runtime.bringup.compare import diff_reports as diff_reports
from ridgeline.runtime.bringup.compare import is_report as is_report
from ridgeline.runtime.bringup.compare import read_report as read_report
from ridgeline.runtime.bringup.faults import CORPUS as CORPUS
from ridgeline.runtime.bringup.findings import BringUp as BringUp
from ridgeline.runtime.bringup.findings import Check as Check
from ridgeline.runtime.bringup.findings import FaultsReport as FaultsReport
from ridgeline.runtime.bringup.findings import Fingerprint as Fingerprint
from ridgeline.runtime.bringup.findings import FingerprintReport as FingerprintReport
from ridgeline.runtime.bringup.findings import Inventory as Inventory
from ridgeline.runtime.bringup.findings import OpFinding as OpFinding
from ridgeline.runtime.bringup.findings import OpSpeed as OpSpeed
from ridgeline.runtime.bringup.findings import Rates as Rates
from ridgeline.runtime.bringup.findings import Remark as Remark
from ridgeline.runtime.bringup.findings import SpeedReport as SpeedReport
from ridgeline.runtime.bringup.findings import rates_of as rates_of
from ridgeline.runtime.bringup.msprobe.replay import ImportedDump as ImportedDump
from ridgeline.runtime.bringup.msprobe.replay import bringup_msprobe as bringup_msprobe
from ridgeline.runtime.bringup.supervise import allowances as allowances
from ridgeline.runtime.bringup.supervise import bringup as bringup
from ridgeline.runtime.bringup.supervise import fault_names as fault_names
from ridgeline.runtime.bringup.supervise import folder_of as folder_of
from ridgeline.runtime.bringup.target import target_of as target_of
