from ridgeline.comm.simulation.conditions import Conditions as Conditions
from ridgeline.comm.simulation.conditions import NetworkOptions as NetworkOptions
from ridgeline.comm.simulation.conditions import parse_conditions as parse_conditions
from ridgeline.comm.simulation.messages import Job as Job
from ridgeline.comm.simulation.messages import Method as Method
from ridgeline.comm.simulation.simulate import Contention as Contention
from ridgeline.comm.simulation.simulate import over_seeds as over_seeds
from ridgeline.comm.simulation.simulate import simulated_graph as simulated_graph
