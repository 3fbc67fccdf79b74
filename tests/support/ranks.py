"""Work done by two processes that talk over gloo."""

from pathlib import Path

import torch
import torch.distributed as dist

RANKS = 2


def run(work, folder: Path) -> list[dict]:
    """What `work` returns on each of two ranks that were seeded alike."""
    torch.multiprocessing.spawn(_rank, (work, folder), nprocs=RANKS)
    return [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]


def _rank(rank: int, work, folder: Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=RANKS)
    try:
        torch.manual_seed(0)
        torch.save(work(), folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()
