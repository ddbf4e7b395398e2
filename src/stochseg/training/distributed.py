"""Calls that differ between a single process and several under `torchrun`."""

from __future__ import annotations

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist

from stochseg.devices import pick_device


@dataclass(frozen=True)
class Processes:
    """The processes of a run, as seen by one of them: its rank, their number, its device."""

    rank: int
    world: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Whether this process writes files and messages."""
        return self.rank == 0

    def total(self, value: float) -> float:
        """Sum a value over all processes."""
        return self.total_tensor(torch.tensor([value], dtype=torch.float64)).item()

    def total_tensor(self, values: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over all processes."""
        if self.world == 1:
            return values
        summed = values.to(self.device)
        dist.all_reduce(summed)
        return summed.cpu()

    def wait(self) -> None:
        """Wait until all processes arrive here."""
        if self.world > 1:
            dist.barrier()


def join(device: str = "auto") -> Processes:
    """Join the process group that `torchrun` describes in the environment, if any."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Processes(0, 1, pick_device(device))
    # Before any tensor is on a GPU, so that each process uses only its own.
    if torch.cuda.is_available() and device in ("auto", "cuda"):
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    chosen = pick_device(device)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    return Processes(dist.get_rank(), world, chosen)


def leave() -> None:
    """Leave the process group, if any."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
