"""Prove that a model computes the right thing on a device, and name the op that does not.

The modules, each importing only those before it:

    arithmetic               spacings, roundings, noise in fp64
    attention_contracts,
    norm_contracts, contracts    what each op may round, as programs in fp64
    sampling                 a part of what is large
    judge                    a result against its contract
    capture                  every op that reaches a device, with module and phase, judged
    standing                 ops of transformers on hard inputs
    ridge                    the fake accelerator
    faults                   faults of it, from a file
    subject                  the model: one layer of each kind
    verdict                  all of it on one device
"""
