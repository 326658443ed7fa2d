"""Train a scenario's model by its plan on the machine at hand: the reference engine `ridgeline`.

The modules, each importing only those before it:

    request       what is asked of a run, the constants of its model, what it tells; refuse: what it cannot do
    layout        a plan's mesh -> process groups and device meshes; collectives as differentiable functions
    kernels, fused   Triton kernels of our own, the same formulas in torch, head and loss, products in 8 bits
    weights       parameters as DTensors: where they are cut, how they begin
    layer         the two halves of a layer: attention (also round a ring) and feed-forward or experts
    offload       saved activations in host memory
    stage         a virtual stage of the model: embedding, layers, head, loss
    assemble      every stage a rank holds, sharded over its data-parallel ranks
    pipeline      Ridgeline's action table through torch's pipeline runtime
    update        AdamW in any formats, states in host memory
    step          microbatches, gradients and update of an optimizer step, or a CUDA graph of it
    token_files   documents packed into memory-mapped tokens, read by number
    data, loop    what is read; the steps, told as they go, and tensors by kind at the worst moment of the first
    checkpoint, hf_weights   a run on disk, and weights in Hugging Face's names
    verify        loss and every gradient against one process
    dry           every op of a step of any number of ranks, on one CPU and without them
    launch        ranks of this host, of torchrun or of Slurm; again from the last checkpoint, then on fewer
    ray_cluster   ranks on the nodes of a Ray cluster
    run_scenario  `ridgeline run`, with metrics and TensorBoard files

Activations are plain tensors and every collective stands in the forward by name; parameters are DTensors, so that
gradients, files and comparisons know where each piece belongs. The package imports `models` and `plan`, whose values it
executes, and neither `lowering`, `cost` nor `sim`: what it needs of a prediction is handed in.
"""

from ridgeline.core.door import open_door

__getattr__, __dir__, __all__ = open_door(__name__, __file__)
