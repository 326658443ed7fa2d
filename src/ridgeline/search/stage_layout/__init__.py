"""One plan -> the layers and the recompute of every virtual stage that make it fastest within its memory."""
