"""What other systems than Linux do differently, as far as it can be shown here."""

from __future__ import annotations

import ast
import errno
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from stochseg import files, locks, memory, owners

SOURCES = sorted((Path(__file__).resolve().parents[1] / "src/stochseg").rglob("*.py"))


def test_text_files_are_utf8_whatever_the_system_prefers():
    found = [
        f"{file.name}:{node.lineno}"
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("read_text", "write_text")
        and not any(each.arg == "encoding" for each in node.keywords)
    ]
    assert not found


@pytest.fixture
def without_proc(monkeypatch, tmp_path):
    """A system without /proc, as macOS and Windows are."""
    monkeypatch.setattr(owners, "_PROC", tmp_path / "none")
    owners._owner.cache_clear()
    yield monkeypatch
    owners._owner.cache_clear()


def test_processes_of_macos_are_found_by_signal_zero(without_proc):
    here = owners.current_owner()
    assert here.is_alive()
    dead = owners.Owner(here.host, here.boot, here.namespace, 2**22 + 1, 0)
    assert dead.is_alive() is False


def test_on_windows_no_process_is_signaled(without_proc):
    def kill(*_):
        raise AssertionError("os.kill ends processes on Windows")

    here = owners.current_owner()
    without_proc.setattr(owners, "os", SimpleNamespace(name="nt", kill=kill, getpid=os.getpid, readlink=os.readlink))
    assert here.is_alive() is None, "unknown: its lock is respected until it is stale"


def test_folders_that_cannot_be_synced_are_written(tmp_path, monkeypatch):
    real = os.open

    def open_(path, flags, *rest):
        if os.path.isdir(path):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", open_)
    with files.replaced_folder(tmp_path / "a", ours=lambda _: True, kind="a test") as scratch:
        (scratch / "file").write_text("x", encoding="utf-8")
    assert (tmp_path / "a/file").read_text(encoding="utf-8") == "x"
    assert files.write_text(tmp_path / "b.txt", "ä").read_bytes() == "ä".encode()


def test_folders_are_not_moved_onto_others(tmp_path, monkeypatch):
    def rename(source, target):  # as on Windows, where even an empty folder is in the way
        if os.path.exists(target):
            raise FileExistsError(errno.EEXIST, "exists", str(target))
        os.replace(source, target)

    def replace(source, target, real=os.replace):
        if os.path.isdir(target):
            raise PermissionError(errno.EACCES, "denied", str(target))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    monkeypatch.setattr(os, "rename", rename)
    (tmp_path / "run").mkdir()
    written = files.write_new_folder(tmp_path, "run", lambda folder: (folder / "x").touch())
    assert written == tmp_path / "run-2"
    for text in "ab":
        with files.replaced_folder(tmp_path / "model", ours=lambda _: True, kind="a model") as scratch:
            (scratch / text).touch()
    assert [file.name for file in (tmp_path / "model").iterdir()] == ["b"]


def test_locks_work_without_fcntl_and_hard_links(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "fcntl", None)
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOTSUP, "no links")))
    with locks.locked(tmp_path), pytest.raises(ValueError, match="in use by process"), locks.locked(tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_memory_is_unknown_on_windows(monkeypatch):
    monkeypatch.delattr(os, "sysconf")
    assert memory.physical_memory() == 2**63


def test_no_module_needs_a_posix_library_to_be_imported():
    posix = {"fcntl", "resource", "pwd", "grp", "termios", "tty"}
    imported = {
        f"{file.name}: {name.name}"
        for file in SOURCES
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Import)
        for name in node.names
        if name.name in posix
    }
    assert not imported


def test_class_variables_of_configs_have_types():
    """Python 3.10 cannot evaluate a bare ClassVar, which pydantic does for the fields of a config."""
    bare = {
        f"{file.name}: {node.target.id}"
        for file in SOURCES
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.annotation, ast.Name)
        and node.annotation.id == "ClassVar"
        and node.target.id in ("renamed_keys", "values_before")
    }
    assert not bare


def test_names_of_files_have_no_colons():
    """Windows reads a colon as a stream of a file."""
    from stochseg.experiments.compare import folder_of

    assert ":" not in folder_of("smp:deeplabv3/resnet50")
    assert ":" not in files.scratch_path(Path("a")).name
