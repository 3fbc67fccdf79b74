"""Many jobs on one machine: as processes, with NVIDIA MPS, or as CUDA streams of one process."""
