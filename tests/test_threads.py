"""Threads of the command: as many as there are free cores, unless the user has chosen."""

import os
import subprocess
import sys

import pytest

from stochseg import threads
from stochseg.threads import free_cores, limit_threads

VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "GOMP_SPINCOUNT", "OMP_WAIT_POLICY")


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with 4 cores, torch not yet imported, and a given number of running processes."""

    def use(running: object, **variables: str) -> None:
        file = tmp_path / "loadavg"
        file.write_text(f"0.20 0.18 0.12 {running}/80 11206\n")
        monkeypatch.setattr(threads, "_LOADAVG", file)
        monkeypatch.setattr(threads, "_PAUSE", 0)
        monkeypatch.setattr(os, "cpu_count", lambda: 4)
        monkeypatch.setattr(threads, "_physical_cores", lambda: 4)
        monkeypatch.delitem(sys.modules, "torch")
        for name in VARIABLES:
            monkeypatch.setenv(name, "")  # so that a value set by the function is undone, too
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return use


@pytest.mark.parametrize(("running", "free"), [(0, 4), (1, 4), (2, 3), (4, 1), (40, 1), ("unknown", 4)])
def test_free_cores(machine, running, free):
    machine(running)
    assert free_cores() == free


def test_without_proc_all_cores_count_as_free(machine, monkeypatch, tmp_path):
    machine(3)
    monkeypatch.setattr(threads, "_LOADAVG", tmp_path / "none")
    assert free_cores() == 4


@pytest.mark.parametrize(("running", "chosen"), [(1, None), (2, "3"), (9, "1")])
def test_a_busy_machine_gets_fewer_threads(machine, running, chosen):
    machine(running)
    limit_threads()
    assert os.environ.get("OMP_NUM_THREADS") == chosen
    assert os.environ["GOMP_SPINCOUNT"] == "2000"


@pytest.mark.parametrize(
    "variables",
    [
        {"OMP_NUM_THREADS": "4", "GOMP_SPINCOUNT": "7"},
        {"MKL_NUM_THREADS": "2", "OMP_WAIT_POLICY": "ACTIVE"},
    ],
)
def test_the_choice_of_the_user_stays(machine, variables):
    machine(9, **variables)
    limit_threads()
    assert {name: os.environ[name] for name in VARIABLES if name in os.environ} == variables


def test_an_empty_variable_is_no_choice(machine):
    machine(9, OMP_NUM_THREADS="", OMP_WAIT_POLICY="")
    limit_threads()
    assert os.environ["OMP_NUM_THREADS"] == "1"
    assert os.environ["GOMP_SPINCOUNT"] == "2000"


def test_nothing_is_set_once_torch_has_been_imported(machine, monkeypatch):
    machine(9)
    monkeypatch.setitem(sys.modules, "torch", object())
    limit_threads()
    assert not any(name in os.environ for name in VARIABLES)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/loadavg")
def test_torch_computes_on_one_thread_next_to_as_many_busy_processes_as_cores():
    script = "import stochseg.threads as t; t.limit_threads(); import torch; print(torch.get_num_threads())"
    plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * os.cpu_count())]
    try:
        done = subprocess.run([sys.executable, "-c", script], env=plain, capture_output=True, text=True, check=True)
    finally:
        for process in busy:
            process.kill()
            process.wait()
    assert int(done.stdout) == 1
