"""Names that Ridgeline offers; `__init__.py` says what each is."""

from ridgeline.api import analyze as analyze
from ridgeline.api import collective as collective
from ridgeline.api import diff as diff
from ridgeline.api import explain as explain
from ridgeline.api import library_choice as library_choice
from ridgeline.api import plan as plan
from ridgeline.api import predict as predict
from ridgeline.api import profile as profile
from ridgeline.api import recommend as recommend
from ridgeline.api import roofline as roofline
from ridgeline.api import scenario_of as scenario_of
from ridgeline.api import validate as validate
from ridgeline.calibrate.cross_validate import fit_with as fit_with
from ridgeline.calibrate.next_measurement import next_measurements as next_measurements
from ridgeline.comm import collective_list as collective_list
from ridgeline.comm import collective_verify as collective_verify
from ridgeline.cost import profile_report as profile_report
from ridgeline.cost.profile import Profile as Profile
from ridgeline.cost.profile import read_profile as read_profile
from ridgeline.design_api import design as design
from ridgeline.design_api import report as report
from ridgeline.design_api import sense as sense
from ridgeline.hardware.load import CHIPS as CHIPS
from ridgeline.hardware.load import SYSTEMS as SYSTEMS
from ridgeline.hardware.load import chip as chip
from ridgeline.hardware.load import system as system
from ridgeline.models.load import MODELS as MODELS
from ridgeline.models.load import model as model
from ridgeline.plan.check import check as check
from ridgeline.plan.engine import ENGINES as ENGINES
from ridgeline.plan.engine import engine as engine
from ridgeline.plan.plan import Plan as Plan
from ridgeline.plan.scenario import Scenario as Scenario
from ridgeline.plan.scenario_file import read_scenario as read_scenario
from ridgeline.plan.scenario_file import scenario as scenario
from ridgeline.plan.scenario_file import schema as schema
from ridgeline.plan.schedules import SCHEDULES as SCHEDULES
from ridgeline.plan.schedules import build
from ridgeline.report.show import show as show
from ridgeline.run_api import bringup as bringup
from ridgeline.run_api import dry_run as dry_run
from ridgeline.run_api import export as export
from ridgeline.run_api import fit as fit
from ridgeline.run_api import graph as graph
from ridgeline.run_api import open_workbench
from ridgeline.run_api import run as run
from ridgeline.run_api import scenario_text as scenario_text
from ridgeline.run_api import write_sbatch as write_sbatch
from ridgeline.runtime import characterize as characterize
from ridgeline.runtime import collective_run as collective_run
from ridgeline.runtime import doctor as doctor
from ridgeline.runtime import preflight as preflight
from ridgeline.runtime.capture import capture as capture
from ridgeline.runtime.train import pack as pack
from ridgeline.search.training.plan_search import find_plan as find_plan
from ridgeline.search.training.request import PlanRequest as PlanRequest
from ridgeline.serving import ServingPrediction as ServingPrediction
from ridgeline.serving import why_slow as why_slow
from ridgeline.serving.measured import served_model as served_model
from ridgeline.sim.events.simulate import timeline as timeline
from ridgeline.sim.predict_step import estimate as estimate
from ridgeline.sim.prediction import Impossible as Impossible
from ridgeline.sim.prediction import Prediction as Prediction
from ridgeline.targets import import_run as import_run
from ridgeline.trace.read.readers import read_timeline as read_timeline
from ridgeline.trace.span_query import query as query
from ridgeline.version import __version__ as __version__

open = open_workbench
schedule = build
