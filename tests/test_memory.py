"""Memory that tensors free: kept by the process, or given back to the system."""

import subprocess
import sys

import pytest

from stochseg.memory import give_back_memory, keep_freed_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")

# Megabytes that the system fills page by page in the eighth round of 16 + 128, and that giving back frees. In a process
# of its own: the choice cannot be taken back.
SCRIPT = """
import resource, sys, torch
from stochseg.memory import give_back_memory, keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20

if not keep_freed_memory():
    sys.exit("no glibc")
for _ in range(8):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [torch.empty(2**20).fill_(1.0) for _ in range(4)] + [torch.empty(2**25).fill_(1.0)]
    filled = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del parts
held = resident()
give_back_memory()
print(filled * resource.getpagesize() / 2**20, held - resident())
"""


def test_kept_memory_is_not_filled_again_and_can_be_given_back():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    if "no glibc" in done.stderr:
        pytest.skip("the system's libc is not glibc")
    assert done.returncode == 0, done.stderr
    filled, freed = map(float, done.stdout.split())
    assert filled < 4, "144 otherwise, unless the system fills large pages"
    assert freed > 100


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr("stochseg.memory.ctypes.CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    assert keep_freed_memory() is False
    give_back_memory()
