"""What a model asks of a machine: its architecture, its parameters, flops and cache."""
