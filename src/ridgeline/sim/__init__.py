"""Scenario -> Prediction: cost prices, sim times. This is the door; `search` and `calibrate` use no other.

    predict, Prediction, Impossible       one step of a scenario, or the reasons why there is none
    simulate, timeline                    the same step event by event, and its Timeline
    PlanModel, Placement, ...             time and memory of every plan of a search
    LayoutModel                           time and memory of one plan's stage layouts
    StepBatch, StepTimes                  steps of many scenarios under any parameters, for a fit
    price_forward, ForwardSteps, ...      seconds of engine steps of a serving instance, any number at once
    serving_memory, ServingMemory         weights, KV cache and the tokens that fit on a serving instance
    peak_memory, capacity_of              bytes of the fullest chip, and of a chip
    Residual, interval, ...               how sure a prediction is
    sensitivities                         what steps answer to, parameter by parameter

Names are loaded when first used: a prediction need not load the event simulation.
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
