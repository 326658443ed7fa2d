"""Prove that a model computes the right thing on a device, and name the op that does not.

The modules, each importing only those before it:

    findings, compare        what came of it, as values; two reports, and what differs
    arithmetic, contracts    spacings, roundings, noise in fp64; what each op may round, as programs in fp64
    judge                    a result against its contract
    fake_device, faults      the fake accelerator, tensors to and from devices; what makes it misbehave
    devices                  opening a device; what torch's dispatcher knows of it; its arithmetic's fingerprint
    op_suite                 ops of transformers on hard inputs
    guard                    ops run under guard, written down where another process reads it
    capture                  every op that reaches a device, with module and phase, judged
    target, subject          the model: one layer of each kind, or a torch module; with prefill and decode
    repro                    what all parts of a run share; a finding as a script
    inventory                what the steps ask of the device; how fast it does it, beside what is possible
    testbed, ladder,
    invariances              a small model against its exact self, from one module to training steps
    run_parts, supervise     all parts of a run, in one process, and in processes that may die
    msprobe                  dumps of another machine, judged
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
