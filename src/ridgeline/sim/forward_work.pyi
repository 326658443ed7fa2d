from ridgeline.sim.forward_price import PARTS
from ridgeline.sim.forward_price import PRODUCTS as PRODUCTS
from ridgeline.sim.forward_price import SIDE_BY_SIDE as SIDE_BY_SIDE
from ridgeline.sim.forward_price import ForwardWorkload as ForwardWorkload
from ridgeline.sim.forward_price import class_seconds as class_seconds
from ridgeline.sim.forward_price import forward_work as forward_work
from ridgeline.sim.forward_price import host_seconds as host_seconds
from ridgeline.sim.forward_price import is_weight_only as is_weight_only
from ridgeline.sim.forward_price import overlap_host as overlap_host
from ridgeline.sim.phase_prediction import DecodeStep as DecodeStep
from ridgeline.sim.phase_prediction import PhasePrediction as PhasePrediction
from ridgeline.sim.phase_prediction import decode_step as decode_step
from ridgeline.sim.phase_prediction import predict_phase as predict_phase

PHASE_PARTS = PARTS
