"""Freed memory: kept by the process or returned to the system."""

import subprocess
import sys

import pytest

from stochseg.memory import keep_freed_memory, release_freed_memory

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc's allocator")

# Prints the megabytes that the system fills page by page in the last twelve of twenty rounds of 16 + 128, and those
# that a release frees. Where the pieces land in the heap differs from start to start, and now and then a round fills a
# piece anew: one round alone proves nothing. It runs in its own process because the choice cannot be undone.
SCRIPT = """
import resource, sys, torch
from stochseg.memory import release_freed_memory, keep_freed_memory

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize() / 2**20

if not keep_freed_memory():
    sys.exit("no glibc")
for i in range(20):
    if i == 8:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    parts = [torch.empty(2**20).fill_(1.0) for _ in range(4)] + [torch.empty(2**25).fill_(1.0)]
    del parts
filled = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
held = resident()
release_freed_memory()
print(filled * resource.getpagesize() / 2**20, held - resident())
"""


def test_kept_memory_is_reused_and_can_be_released():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True)
    if "no glibc" in done.stderr:
        pytest.skip("the system's libc is not glibc")
    assert done.returncode == 0, done.stderr
    filled, freed = map(float, done.stdout.split())
    assert filled < 12 * 144 / 4, "12 times 144 without keeping, unless the system fills large pages"
    assert freed > 100


def test_without_glibc_nothing_happens(monkeypatch):
    monkeypatch.setattr("stochseg.memory.ctypes.CDLL", lambda name: (_ for _ in ()).throw(OSError(name)))
    assert keep_freed_memory() is False
    release_freed_memory()
