"""All or nothing: power loss, scratch of dead processes, several writers of one file."""

import os
from dataclasses import replace

import pytest

from stochseg import files
from stochseg.files import replaced_file, replaced_folder, sweep, write_text
from stochseg.models import create, load, save
from stochseg.owners import current_owner
from tests.support.processes import dead_owner


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def calls(monkeypatch):
    """Names of what is synced, and moves, in their order."""
    found, opened = [], {}
    real = {name: getattr(os, name) for name in ("open", "fsync", "replace")}

    def open_(path, *arguments, **options):
        handle = real["open"](path, *arguments, **options)
        opened[handle] = str(path)
        return handle

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "fsync", lambda handle: found.append(("sync", opened[handle])) or real["fsync"](handle))
    monkeypatch.setattr(os, "replace", lambda a, b: found.append(("move", str(a), str(b))) or real["replace"](a, b))
    return found


def test_a_file_is_synced_before_and_its_folder_after_the_move(tmp_path, calls):
    write_text(tmp_path / "a.txt", "a")
    scratch = calls[0][1]
    target = str(tmp_path / "a.txt")
    assert calls == [("sync", scratch), ("move", scratch, target), ("sync", str(tmp_path))]
    assert scratch != target


def test_a_folder_is_synced_with_everything_in_it_before_the_move(tmp_path, calls):
    def write():
        with replaced_folder(tmp_path / "a", ours=lambda _: True, kind="") as folder:
            (folder / "deep").mkdir()
            (folder / "deep/file").touch()
            (folder / "file").touch()
        return str(folder)

    write()
    calls.clear()
    scratch = write()
    *before, moved_aside, moved, after = calls
    assert {call[1] for call in before} == {scratch, f"{scratch}/file", f"{scratch}/deep", f"{scratch}/deep/file"}
    assert {call[0] for call in before} == {"sync"}
    assert before[-1] == ("sync", scratch)
    assert (moved_aside[:2], moved) == (("move", str(tmp_path / "a")), ("move", scratch, str(tmp_path / "a")))
    assert after == ("sync", str(tmp_path))


def write_version(path, text, keep=3):
    with replaced_folder(path, ours=lambda _: True, kind="", keep=keep) as folder:
        (folder / "text").write_text(text)


def versions(path):
    return {name: (path.parent / name / "text").read_text() for name in names(path.parent)}


def test_former_versions_are_kept(tmp_path):
    for text in "abcd":
        write_version(tmp_path / "x", text)
    assert versions(tmp_path / "x") == {"x": "d", "x-1": "c", "x-2": "b"}
    write_version(tmp_path / "x", "e", keep=1)
    assert versions(tmp_path / "x") == {"x": "e", "x-1": "c", "x-2": "b"}


@pytest.mark.parametrize("call", [1, 2, 3, 4])
def test_a_failed_move_leaves_all_versions(tmp_path, monkeypatch, call):
    for text in "abc":
        write_version(tmp_path / "x", text)
    move, count = os.replace, []

    def fail(source, target):
        count.append(1)
        if len(count) == call:
            raise OSError("no space for the name")
        move(source, target)

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="no space"):
        write_version(tmp_path / "x", "d")
    monkeypatch.undo()
    assert versions(tmp_path / "x") == {"x": "c", "x-1": "b", "x-2": "a"}


@pytest.mark.parametrize("name", ["x" * 255, "ä" * 127])
def test_the_longest_names(tmp_path, name):
    write_text(tmp_path / name, "text")
    assert names(tmp_path) == [name]


def test_two_writers_of_one_file(tmp_path):
    with replaced_file(tmp_path / "a") as one, replaced_file(tmp_path / "a") as two:
        one.write_text("one")
        two.write_text("two")
    assert (tmp_path / "a").read_text() == "one"
    assert names(tmp_path) == ["a"]


def test_scratch_of_dead_processes_of_this_machine_is_removed(tmp_path):
    alive, remote = current_owner(), replace(current_owner(), host="000000")
    for owner in (dead_owner(), alive, remote):
        (tmp_path / f".a.txt.{owner.tag}-0000.part").touch()
        (tmp_path / f".model.v2.{owner.tag}-0000.part").mkdir()
        (tmp_path / f".model.v2.{owner.tag}-0000.part" / "half").touch()
    (tmp_path / ".notes.old").touch()
    sweep(tmp_path)
    kept = [f".{name}.{owner.tag}-0000.part" for name in ("a.txt", "model.v2") for owner in (alive, remote)]
    assert names(tmp_path) == sorted([*kept, ".notes.old"])


def test_the_next_writer_removes_the_scratch_of_a_dead_process(tmp_path):
    left = tmp_path / f".model.{dead_owner().tag}-0000.part"
    left.mkdir()
    files._sweep_once.cache_clear()
    save(create("unet-ce", 2, 1, base=4, multipliers=[1]), tmp_path / "model")
    assert names(tmp_path) == ["model"]


def test_a_read_only_run_with_a_leftover_is_read(tmp_path, monkeypatch):
    """Moved aside by a process that was killed; the reader may not write here."""
    saved = save(create("unet-ce", 2, 1, base=4, multipliers=[1]), tmp_path / "run/best")
    saved.rename(saved.with_name(f".best.{dead_owner().tag}-0000.old"))
    before = names(tmp_path / "run")
    for name in ("replace", "rename", "unlink", "mkdir", "rmdir"):
        monkeypatch.setattr(os, name, lambda *_, **__: (_ for _ in ()).throw(OSError(30, "Read-only file system")))
    load(tmp_path / "run")
    assert names(tmp_path / "run") == before
