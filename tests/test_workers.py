"""Work on the workers of a Dask cluster."""

import os
import time
import uuid
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from stochseg import workers
from stochseg.errors import UserError
from stochseg.workers import _own_gpu, open_pool, run_here
from tests.support.workers import DeadlyPool, worker_pids

distributed = pytest.importorskip("distributed")
pytestmark = pytest.mark.xdist_group("dask")


@dataclass(frozen=True)
class Token:
    """Makes something that differs at every call."""

    name: str = "a"

    def __call__(self) -> str:
        return f"{self.name}-{uuid.uuid4()}"


def multiply(shared, chunk):
    return [(shared, os.getpid(), 10 * case) for case in chunk]


def fail(shared, chunk):
    raise UserError(f"cannot use {chunk[0]}")


def wait(folder, chunk):
    (Path(folder) / str(os.getpid())).touch()
    time.sleep(120)
    return chunk


CHUNKS = [[i, i + 1] for i in range(0, 20, 2)]


def test_every_case_once_and_one_setup_per_process(pool):
    found = list(pool.run(Token(), multiply, CHUNKS, lost=print))
    assert sorted(value for _, _, value in found) == [value for _, _, value in run_here(str, multiply, CHUNKS, print)]
    assert 1 <= len({pid for _, pid, _ in found}) <= 2
    assert len({(token, pid) for token, pid, _ in found}) == len({pid for _, pid, _ in found})
    others = list(pool.run(Token("b"), multiply, CHUNKS, lost=print))
    assert all(token.startswith("b") for token, _, _ in others), "another setup"


def test_a_case_that_kills_its_workers_twice_is_lost_and_no_other(pool):
    """Cases of the same chunk are repeated alone."""
    before = worker_pids(pool)
    found = list(DeadlyPool(pool, "17").run(str, multiply, CHUNKS, lost=lambda case: ("", 0, -case)))
    assert Counter(value for _, _, value in found) == Counter(-i if i == 17 else 10 * i for i in range(20))
    assert any(not Path(f"/proc/{pid}").exists() for pid in before)


def test_errors_of_the_work_reach_the_caller(pool):
    with pytest.raises(UserError, match="cannot use 3"):
        list(pool.run(str, fail, [[3]], lost=print))


def test_workers_do_not_continue_what_nobody_waits_for(pool, tmp_path):
    @dataclass(frozen=True)
    class Folder:
        def __call__(self, path=str(tmp_path)):
            return path

    def chunks():
        yield [1]
        deadline = time.monotonic() + 60
        while not list(tmp_path.iterdir()) and time.monotonic() < deadline:
            time.sleep(0.02)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), closing(pool.run(Folder(), wait, chunks(), lost=print)) as results:
        list(results)
    (file,) = tmp_path.iterdir()
    deadline = time.monotonic() + 30
    while Path(f"/proc/{file.name}").exists() and time.monotonic() < deadline:
        time.sleep(0.02)  # a killed process takes a moment to end
    assert not Path(f"/proc/{file.name}").exists()
    assert list(pool.run(str, multiply, [[1]], lost=print)), "a new one has taken its place"


def test_a_cluster_that_is_already_there():
    options = {"n_workers": 1, "processes": False, "protocol": "tcp://", "dashboard_address": None}
    with distributed.LocalCluster(threads_per_worker=1, **options) as cluster:
        with open_pool(None, cluster.scheduler_address) as pool:
            assert [value for _, _, value in pool.run(str, multiply, [[1], [2]], lost=print)] == [10, 20]
        cluster.scale(0)
    with (
        distributed.LocalCluster(threads_per_worker=2, **options) as cluster,
        pytest.raises(UserError, match="--nthreads 1"),
        open_pool(None, cluster.scheduler_address),
    ):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((2, "tcp://node:8786"), "pass one of them"),
        ((2, None, "cuda:1"), "CUDA_VISIBLE_DEVICES"),
        ((None, "tcp://127.0.0.1:1"), "--scheduler tcp://127.0.0.1:1: cannot connect"),
        ((None, "nonsense://x"), "cannot connect"),
    ],
)
def test_refusals(arguments, message, monkeypatch):
    monkeypatch.setattr(workers, "_CONNECT_SECONDS", 0.5)
    with pytest.raises(UserError, match=message), open_pool(*arguments):
        pass


def test_without_workers_there_is_no_pool():
    with open_pool(None, None) as pool:
        assert pool is None


def test_workers_take_the_gpus_in_turn(monkeypatch):
    assert [_own_gpu(i, "3,5") for i in range(3)] == ["3", "5", "3"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    assert [_own_gpu(i, None) for i in (0, 7, 8)] == ["0", "7", "0"]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    assert _own_gpu(0, None) is None
