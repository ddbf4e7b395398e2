"""Write golden.npz with the results of this checkout: `python -m tests.golden.record`."""

import json
from pathlib import Path

import numpy as np
import torch

from tests.golden.cases import sample_cases

FILE = Path(__file__).with_name("golden.npz")


def platform() -> str:
    """Everything except this code that floating-point results depend on."""
    return json.dumps({"torch": torch.__version__.partition("+")[0], "cpu": torch.backends.cpu.get_cpu_capability()})


if __name__ == "__main__":
    torch.set_num_threads(1)
    arrays = {"platform": np.array(platform())}
    for name, compute in sample_cases().items():
        arrays |= {f"{name}/{key}": value for key, value in compute().items()}
    np.savez_compressed(FILE, **arrays)
    print(f"{len(arrays)} arrays, {FILE.stat().st_size / 1e3:.0f} kB")
