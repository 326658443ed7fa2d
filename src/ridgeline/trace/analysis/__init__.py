"""Turn a Timeline, and its graph of dependencies, into numbers: one module a question.

breakdown          busy and idle, compute, communication, copies, exposed communication; by chip, step, stream, name
idle               why a chip idled: launch-bound, synchronisation, data loading, waiting for communication
host_activity      what the host did meanwhile
launches           what kernel launches cost, how far the host ran ahead
critical_path      the chain of spans and waits that made the step as long as it is
what_if            how long it would take with one thing changed
stragglers         skew of every collective, who comes last, pipeline bubbles (`pipeline_bubbles`)
exclusive_time     each nanosecond of a chip in one place: what `diff` compares
phases             forward, backward, optimizer, and the layer, of measured work
roofline           achieved rates against the chip's roof (`op_kernels`, `chip_names`)
join_counters      kernels with their hardware counters
memory_peaks       when memory peaked, and what had grown until then
"""
