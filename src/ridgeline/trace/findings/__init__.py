"""Turn analyses into findings: what limits the step, the spans that prove it, what changing it would gain.

finding                        what a finding is, the facts that rules look at, and what it would gain, by replay
communication, idle, kernels, ranks   the rules: small functions that yield findings
rules                          all of them in one tuple, and `findings`, which asks them
"""
