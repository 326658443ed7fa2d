"""Train a scenario's model by its plan on the machine at hand: the reference engine `ridgeline`.

The modules, each importing only those before it:

    numerics      the constants of an architecture that no ModelSpec holds
    layout        a plan's mesh -> process groups and device meshes; which tokens a rank holds
    exchange      collectives as differentiable functions
    kernels, fused   Triton kernels of our own, and the same formulas in torch; narrow: products in 8 bits
    weights       parameters as DTensors: where they are cut, how they begin
    ring          attention over a sequence that context ranks share
    mixers, ffn   the two halves of a layer
    loss, offload what follows the head; saved activations in host memory
    stage         a virtual stage of the model: embedding, layers, head, loss
    assemble      every stage a rank holds, sharded over its data-parallel ranks
    pipeline      Ridgeline's action table through torch's pipeline runtime
    update        AdamW in any formats, states in host memory
    step          microbatches and gradients of an optimizer step; whole_step: with its update, or a CUDA graph of it
    token_files   documents packed into memory-mapped tokens, read by number
    data, loop    what is read; the steps, told as they go
    metrics_file, event_file   those steps as lines of JSON, and for TensorBoard
    verify        loss and every gradient against one process
    rank_work     what one rank does, in whatever process
    local_workers processes of this host: started, listened to, ended
    starter       attempts: again from the last checkpoint, then on fewer ranks
    ray_cluster   ranks on the nodes of a Ray cluster
    launch        which of these it is; or the ranks that torchrun or Slurm started

Activations are plain tensors and every collective stands in the forward by name; parameters are DTensors, so that
gradients, files and comparisons know where each piece belongs. The package imports `models` and `plan`, whose values it
executes, and neither `lowering`, `cost` nor `sim`: what it needs of a prediction is handed in.
"""
