"""A post-training scenario -> how long a step takes, what fits, who waits; split over roles on top of serving and sim.

    lengths                  described lengths and times -> numbers, sample by sample
    mixture                  sources of data and replay -> lengths of documents, and what replay costs
    rollout_batch            samples and the cost of a step -> the closed batch of one replica, end by end
    parameters               what post-training costs beyond its phases, as fitted
    rollout                  all replicas of a step: the slowest, the tail, and a steady stream of samples
    training                 passes over the samples: log-probabilities, reference, critic, reward, updates
    sync_time                new weights on their way to the engines
    memory                   every role's bytes at every moment
    prediction               the answer
    step                     the verb
    timeline                 its phases as spans

Each line imports only lines above it.
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
