"""Two writers at once, and what a killed one leaves behind."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
from PIL import Image

from stochseg import locks
from stochseg.data import plan_import, write_store
from stochseg.errors import UserError
from stochseg.inference import predict
from stochseg.locks import LOCK, locked
from stochseg.owners import Owner, current_owner
from stochseg.training import train
from tests.support.predictions import QUICK, gray, small_model
from tests.support.processes import dead_owner


def write_lock(folder, owner, age=0.0):
    """Write the lock of another process, renewed `age` seconds ago."""
    file = folder / LOCK
    file.write_text(json.dumps({"owner": owner.tag, "pid": owner.pid, "host": "elsewhere", "since": 0}))
    os.utime(file, (time.time() - age,) * 2)


def test_one_writer_at_a_time(tmp_path):
    with locked(tmp_path / "a/b"):
        with pytest.raises(UserError, match=rf"in use by process {os.getpid()} .*--out"), locked(tmp_path / "a/b"):
            pass
        with locked(tmp_path / "a/b", "another.lock"):
            pass
    assert not (tmp_path / "a").exists(), "created for nothing"
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        raise ZeroDivisionError
    with locked(tmp_path):
        (tmp_path / "kept").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


HERE = current_owner()


@pytest.mark.parametrize(
    ("owner", "age", "is_free"),
    [
        (HERE, 1000, False),
        (dead_owner(), 0, True),
        (replace(HERE, boot="000000"), 0, True),  # before the machine was restarted
        (replace(HERE, host="000000"), 200, False),
        (replace(HERE, host="000000"), 400, True),
        (replace(HERE, namespace="000000"), 0, False),  # another container
        (replace(HERE, namespace="000000"), 400, True),
    ],
)
def test_locks_of_other_processes(tmp_path, owner, age, is_free):
    write_lock(tmp_path, owner, age)
    if is_free:
        with locked(tmp_path):
            pass
        assert not list(tmp_path.iterdir())
    else:
        with pytest.raises(UserError, match=r"in use by process .* on elsewhere.*--out"), locked(tmp_path):
            pass
        assert [path.name for path in tmp_path.iterdir()] == [LOCK]


@pytest.mark.parametrize("text", ["", "half {", "[1]", '{"owner": 3}'])
def test_unreadable_locks_count_by_their_age(tmp_path, text):
    (tmp_path / LOCK).write_text(text)
    with pytest.raises(UserError, match=rf"remove .*{LOCK}"), locked(tmp_path):
        pass
    os.utime(tmp_path / LOCK, (0, 0))
    with locked(tmp_path):
        pass


def test_a_lock_is_renewed_and_its_loss_noticed(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "RENEW_SECONDS", 0.01)
    with locked(tmp_path) as lock:
        os.utime(tmp_path / LOCK, (0, 0))
        deadline = time.monotonic() + 10
        while (tmp_path / LOCK).stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert (tmp_path / LOCK).stat().st_mtime > 0
        lock.check()
        write_lock(tmp_path, HERE)
        with pytest.raises(UserError, match="does not belong to this process any more"):
            lock.check()
    assert (tmp_path / LOCK).exists(), "the lock of another"


def test_a_patient_process_waits_until_the_lock_of_another_machine_is_stale(tmp_path):
    write_lock(tmp_path, replace(HERE, host="000000"), age=locks.STALE_SECONDS - 1)
    with pytest.raises(UserError, match="in use"), locked(tmp_path):
        pass
    with locked(tmp_path, patience=30):
        pass


@pytest.mark.parametrize("attempt", range(8))
def test_one_of_many_takes_a_stale_lock_over(tmp_path, attempt):
    write_lock(tmp_path, dead_owner())
    together, inside, most = threading.Barrier(8), [], []

    def take():
        together.wait()
        try:
            with locked(tmp_path):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.02)
                inside.pop()
        except UserError:
            pass

    threads = [threading.Thread(target=take) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most
    assert max(most) == 1
    assert not list(tmp_path.iterdir())


def test_a_lock_that_another_process_took_over_first_is_given_back(tmp_path, monkeypatch):
    """Both saw the stale lock; the other one replaced it before this one moved it away."""
    write_lock(tmp_path, dead_owner())
    rename = os.rename

    def late(source, target):
        write_lock(tmp_path, HERE)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late)
    with pytest.raises(UserError, match="in use"), locked(tmp_path):
        pass
    assert Owner.parse(json.loads((tmp_path / LOCK).read_text())["owner"]) == HERE
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_a_file_system_without_hard_links(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(1, "Operation not permitted")))
    test_one_writer_at_a_time(tmp_path)


HOLD = """
import sys
from pathlib import Path
from stochseg.locks import locked

with locked(Path(sys.argv[1])):
    input()
"""


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdin=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (tmp_path / LOCK).exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    with pytest.raises(UserError, match=f"in use by process {holder.pid}"), locked(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    owner = Owner.parse(json.loads((tmp_path / LOCK).read_text())["owner"])
    while owner.is_alive() and time.monotonic() < deadline:  # also before anybody waited for it
        time.sleep(0.01)
    with locked(tmp_path):
        pass
    holder.communicate()


def test_every_writer_asks_for_the_lock(tiny_run, tmp_path, folder_root):
    Image.fromarray(gray()).save(tmp_path / "a.png")
    with locked(tmp_path / "out"), locked(tmp_path, ".data.h5.lock"):
        for resume in (False, True):
            with pytest.raises(UserError, match="in use"):
                train(tiny_run(), tmp_path / "out", resume=resume, device="cpu")
        with pytest.raises(UserError, match="in use"):
            predict(small_model(), [tmp_path / "a.png"], tmp_path / "out", QUICK)
        with pytest.raises(UserError, match="in use"):
            write_store(plan_import("folder", folder_root), tmp_path / "data.h5")
        assert [path.name for path in (tmp_path / "out").iterdir()] == [LOCK]


def test_exit_code(run, tmp_path):
    with locked(tmp_path / "run"):
        code, _, messages = run("train", "phantom-tiny", "steps=1", "--out", tmp_path / "run", "--device", "cpu")
    assert code == 2
    assert "in use" in messages
