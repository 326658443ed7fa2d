"""Scenario -> Prediction: cost prices, sim times. This is the door; `search` and `calibrate` use no other.

    predict, Prediction, Impossible       one step of a scenario, or the reasons why there is none
    simulate, Simulated, timeline         the same step event by event, and its Timeline
    PlanModel, Placement, ...             time and memory of every plan of a search
    LayoutModel                           time and memory of one plan's stage layouts
    StepBatch, StepTimes                  steps of many scenarios under any parameters, for a fit
    price_forward, ForwardSteps, ...      seconds of engine steps of a serving instance, any number at once
    serving_memory, ServingMemory         weights, KV cache and the tokens that fit on a serving instance
    Memory, peak_memory, capacity_of      bytes of the fullest chip, and of a chip
    Residual, interval, ...               how sure a prediction is
    sensitivities                         what steps answer to, parameter by parameter

Names are loaded when first used: a prediction need not load the event simulation.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ridgeline.ir.forward_steps import ForwardSteps as ForwardSteps
    from ridgeline.ir.forward_steps import forward_steps as forward_steps
    from ridgeline.sim.closed_form.overlap import SectionTimes as SectionTimes
    from ridgeline.sim.closed_form.step import StepTimes as StepTimes
    from ridgeline.sim.events.simulate import Simulated as Simulated
    from ridgeline.sim.events.simulate import simulate as simulate
    from ridgeline.sim.events.simulate import timeline as timeline
    from ridgeline.sim.forward_price import PRODUCTS as PRODUCTS
    from ridgeline.sim.forward_price import SIDE_BY_SIDE as SIDE_BY_SIDE
    from ridgeline.sim.forward_price import ForwardSeconds as ForwardSeconds
    from ridgeline.sim.forward_price import ForwardWorkload as ForwardWorkload
    from ridgeline.sim.forward_price import beside as beside
    from ridgeline.sim.forward_price import class_seconds as class_seconds
    from ridgeline.sim.forward_price import forward_work as forward_work
    from ridgeline.sim.forward_price import host_seconds as host_seconds
    from ridgeline.sim.forward_price import is_weight_only as is_weight_only
    from ridgeline.sim.forward_price import price_forward as price_forward
    from ridgeline.sim.layout_model import LayoutModel as LayoutModel
    from ridgeline.sim.layout_model import price_layouts as price_layouts
    from ridgeline.sim.memory.headroom import scenario_headroom as scenario_headroom
    from ridgeline.sim.memory.peak import Memory as Memory
    from ridgeline.sim.memory.peak import capacity_of as capacity_of
    from ridgeline.sim.memory.peak import peak_memory as peak_memory
    from ridgeline.sim.memory.serving import ServingMemory as ServingMemory
    from ridgeline.sim.memory.serving import limits_of as limits_of
    from ridgeline.sim.memory.serving import serving_memory as serving_memory
    from ridgeline.sim.phase_prediction import PhasePrediction as PhasePrediction
    from ridgeline.sim.phase_prediction import predict_phase as predict_phase
    from ridgeline.sim.plan_model import Placement as Placement
    from ridgeline.sim.plan_model import PlanModel as PlanModel
    from ridgeline.sim.plan_model import RowModel as RowModel
    from ridgeline.sim.plan_model import ScheduledRows as ScheduledRows
    from ridgeline.sim.plan_model import ShardedState as ShardedState
    from ridgeline.sim.plan_model import joined as joined
    from ridgeline.sim.predict_step import default_calibration as default_calibration
    from ridgeline.sim.predict_step import not_predictable as not_predictable
    from ridgeline.sim.predict_step import predict as predict
    from ridgeline.sim.predict_step import unpublished as unpublished
    from ridgeline.sim.prediction import Impossible as Impossible
    from ridgeline.sim.prediction import Prediction as Prediction
    from ridgeline.sim.prediction_interval import SHIPPED_RESIDUALS as SHIPPED_RESIDUALS
    from ridgeline.sim.prediction_interval import Residual as Residual
    from ridgeline.sim.prediction_interval import interval as interval
    from ridgeline.sim.prediction_interval import new_source_interval as new_source_interval
    from ridgeline.sim.prediction_interval import read_residuals as read_residuals
    from ridgeline.sim.step_batch import StepBatch as StepBatch
    from ridgeline.sim.step_sensitivity import sensitivities as sensitivities

_HOMES = {
    "closed_form.overlap": ("SectionTimes",),
    "closed_form.step": ("StepTimes",),
    "events.simulate": ("Simulated", "simulate", "timeline"),
    "forward_price": (
        "ForwardSeconds",
        "ForwardSteps",
        "ForwardWorkload",
        "PRODUCTS",
        "SIDE_BY_SIDE",
        "beside",
        "class_seconds",
        "is_weight_only",
        "forward_steps",
        "forward_work",
        "host_seconds",
        "price_forward",
    ),
    "layout_model": ("LayoutModel", "price_layouts"),
    "memory.headroom": ("scenario_headroom",),
    "memory.serving": ("ServingMemory", "limits_of", "serving_memory"),
    "memory.peak": ("Memory", "capacity_of", "peak_memory"),
    "phase_prediction": ("PhasePrediction", "predict_phase"),
    "plan_model": ("Placement", "PlanModel", "RowModel", "ScheduledRows", "ShardedState", "joined"),
    "predict_step": ("default_calibration", "not_predictable", "predict", "unpublished"),
    "prediction": ("Impossible", "Prediction"),
    "prediction_interval": (
        "SHIPPED_RESIDUALS",
        "Residual",
        "interval",
        "new_source_interval",
        "read_residuals",
    ),
    "step_batch": ("StepBatch",),
    "step_sensitivity": ("sensitivities",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'ridgeline.sim' has no attribute {name!r}")
    return getattr(import_module(f"ridgeline.sim.{_HOME[name]}"), name)
