"""Turn trace files into one Timeline. A format is one module with `recognises` and `read`, and one row of `READERS`.

readers             which reader reads a file, and `read_timeline`
source, folder      bytes of a file, inflated; the files of a folder, by rank
kineto              PyTorch's profiler and every other Chrome trace     json_stream, chrome_*, unit_check
nsys                Nsight Systems' SQLite export                       nsys_tables, nsys_names
ascend              kernel_details.csv of the Ascend profiler           csv_rows
chakra              Chakra execution traces                             protobuf, chakra_layout
kernel_counters     tables of hardware counters, one row a kernel: no Timeline, joined to one by `analysis`
row_columns, join   rows -> a `Part` a file; parts -> the Timeline, launches linked, steps marked (`mark_steps`)
timestamps          times as files write them -> whole nanoseconds
"""
