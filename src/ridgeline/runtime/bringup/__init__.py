"""Prove that a model computes the right thing on a device, and name the op that does not.

The modules, each importing only those before it:

    arithmetic               spacings, roundings, noise in fp64
    attention_contracts,
    norm_contracts, contracts    what each op may round, as programs in fp64
    sampling                 a part of what is large
    judge                    a result against its contract
    dispatcher               what torch's dispatcher knows of an op
    ridge, tensors           the fake accelerator; tensors to and from devices, strides and all
    journal, guard           what is about to run, where another process reads it; ops run under guard
    capture                  every op that reaches a device, with module and phase, judged
    standing                 ops of transformers on hard inputs
    faults                   faults of the fake accelerator, from a file
    observations, findings   what came of it, as values
    cut, target, generation,
    subject                  the model: one layer of each kind, or a torch module; with prefill and decode
    devices, repro, session  what all parts of a run share; a finding as a script
    inventory, roofline, speed,
    survey                   what the steps ask of the device; how fast it does it, beside what is possible
    verdict                  all parts of a run, in one process
    wire, worker, supervise  the same in processes that may die
    msprobe                  dumps of another machine, judged
    compare                  two reports, and what differs
"""
