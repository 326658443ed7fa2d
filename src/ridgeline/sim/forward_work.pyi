from ridgeline.sim.forward_price import PRODUCTS as PRODUCTS
from ridgeline.sim.forward_price import SIDE_BY_SIDE as SIDE_BY_SIDE
from ridgeline.sim.forward_price import ForwardWorkload as ForwardWorkload
from ridgeline.sim.forward_price import class_seconds as class_seconds
from ridgeline.sim.forward_price import forward_work as forward_work
from ridgeline.sim.forward_price import host_seconds as host_seconds
from ridgeline.sim.forward_price import is_weight_only as is_weight_only
from ridgeline.sim.forward_price import overlap_host as overlap_host
