"""Names that the room of real machines offers."""

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
from ridgeline.runtime.bringup.findings import unheard as unheard
from ridgeline.runtime.bringup.msprobe.replay import ImportedDump as ImportedDump
from ridgeline.runtime.bringup.msprobe.replay import bringup_msprobe as bringup_msprobe
from ridgeline.runtime.bringup.supervise import allowances as allowances
from ridgeline.runtime.bringup.supervise import bringup
from ridgeline.runtime.bringup.supervise import fault_names as fault_names
from ridgeline.runtime.bringup.supervise import folder_of as folder_of
from ridgeline.runtime.bringup.target import target_of as target_of
from ridgeline.runtime.capture import capture
from ridgeline.runtime.capture import capture_config as capture_config
from ridgeline.runtime.measure import Characterization as Characterization
from ridgeline.runtime.measure import StandaloneFile as StandaloneFile
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
from ridgeline.runtime.train.launch import describe_plan as describe_plan
from ridgeline.runtime.train.refuse import refusals as refusals
from ridgeline.runtime.train.request import Numerics as Numerics
from ridgeline.runtime.train.request import Options as Options
from ridgeline.runtime.train.request import RunMemory as RunMemory
from ridgeline.runtime.train.request import RunOutcome as RunOutcome
from ridgeline.runtime.train.request import SbatchScript as SbatchScript
from ridgeline.runtime.train.request import StepRow as StepRow
from ridgeline.runtime.train.request import Verification as Verification
from ridgeline.runtime.train.run_scenario import run as run
from ridgeline.runtime.train.run_scenario import trace_plan as trace_plan
from ridgeline.runtime.train.token_files import Packed as Packed
from ridgeline.runtime.train.token_files import pack as pack

bring_up = bringup  # the packages have the plain names
capture_module = capture
