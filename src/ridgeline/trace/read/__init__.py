"""Turn trace files into one Timeline. A format is one module with `recognises` and `read`, and one row of `READERS`.

readers             which reader reads a file, and `read_timeline`
source, folder      bytes of a file, inflated; the files of a folder or archive, by rank
kineto              PyTorch's profiler and every other Chrome trace     chrome_events, chrome_columns, chrome_dialects
sqlite_files        databases: Nsight Systems (nsys), msprof, rocprofv3
kernel_tables       CSV of the Ascend profiler, msprof, rocprofv3
chakra, xplane      execution traces; XLA's own profiles                protobuf
kernel_counters     tables of hardware counters, one row a kernel: no Timeline, joined to one by `analysis`
memory_snapshot     records of PyTorch's allocator: no Timeline either
join                rows -> a `TracePart` a file; parts -> the Timeline, launches linked, steps marked (`host_marks`)
timestamps          times as files write them -> whole nanoseconds
"""
