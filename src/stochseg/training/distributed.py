"""Calls that differ between a single process and several under `torchrun`."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from stochseg.devices import pick_device
from stochseg.errors import UserError

T = TypeVar("T")


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

    def parallel(self, module: nn.Module, *, idle_parameters: bool) -> nn.Module:
        """Average the gradients of a module over all processes; a step may leave idle parameters without one."""
        if self.world == 1:
            return module
        return DistributedDataParallel(module, find_unused_parameters=idle_parameters)

    def in_main(self, act: Callable[[], T]) -> T | None:
        """Run a function in the main process while the others wait; its UserError is raised in all of them."""
        problem, value = "", None
        if self.is_main:
            try:
                value = act()
            except UserError as error:
                if self.world == 1:
                    raise
                problem = str(error)
        if self.world > 1:
            shared = [problem]
            dist.broadcast_object_list(shared, device=self.device)
            if shared[0]:
                raise UserError(shared[0])
        return value

    def decide(self, act: Callable[[], T]) -> T:
        """Run a function in the main process and return its value in all: what one alone sees may differ."""
        shared = [self.in_main(act)]
        if self.world > 1:
            dist.broadcast_object_list(shared, device=self.device)
        return cast(T, shared[0])

    def wait(self) -> None:
        """Wait until all processes arrive here."""
        if self.world > 1:
            dist.barrier()


def restarts() -> int:
    """How often `torchrun --max-restarts` has started the processes again, because one of them died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def join(device: str = "auto") -> Processes:
    """Join the process group that `torchrun` describes in the environment, if any."""
    if "TORCHELASTIC_RUN_ID" in os.environ:  # set by torchrun
        threading.Thread(target=_end_with_parent, args=(os.getppid(),), name="parent watch", daemon=True).start()
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        return Processes(0, 1, pick_device(device))
    # Before any tensor is on a GPU, so that each process uses only its own.
    if torch.cuda.is_available() and device in ("auto", "cuda"):
        device = f"cuda:{os.environ['LOCAL_RANK']}"
        torch.cuda.set_device(device)
    chosen = pick_device(device)
    if not dist.is_initialized():
        store, rank, _ = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
        # torchrun keeps its store over restarts, with the addresses of the processes that died.
        own = dist.PrefixStore(f"restart-{restarts()}", store)  # type: ignore[attr-defined]
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo", store=own, rank=rank, world_size=world)
    return Processes(dist.get_rank(), world, chosen)


def _end_with_parent(parent: int) -> None:
    """End this process at once when its parent dies: a killed torchrun would leave it training alone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def leave() -> None:
    """Leave the process group, if any."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()
