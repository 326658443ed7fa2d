"""What a communication library would do: NCCL, RCCL and HCCL by their published cost models."""
