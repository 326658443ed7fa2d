"""Turn a Timeline, and its graph of dependencies, into numbers: one module a question.

breakdown          busy and idle, compute, communication, copies, exposed communication; by chip, step, stream, name
idle               why a chip idled, what the host did meanwhile, what kernel launches cost
critical_path      the chain of spans and waits that made the step as long as it is
what_if            how long it would take with one thing changed
collectives        communication by type and size, who comes last, pipeline bubbles
exclusive_time     each nanosecond of a chip in one place: what `diff` compares
phases             forward, backward, optimizer, and the layer, of measured work; unfused attention and optimizers
roofline           achieved rates against the chip's roof (`op_kernels`), kernels with their hardware counters
inference          steps of an engine, and what kernels of replayed graphs compute
memory_peaks       when memory peaked, and what had grown until then
"""
