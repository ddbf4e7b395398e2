"""New folders: all or nothing, and never one that exists."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stochseg.files import write_new_folder


def test_writers_at_the_same_time_get_folders_of_their_own(tmp_path):
    def write(number: int) -> Path:
        return write_new_folder(tmp_path / "a", "name", lambda folder: (folder / "x").write_text(str(number)))

    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(write, range(24)))
    assert len(set(folders)) == 24
    assert {folder.name for folder in folders} == {"name", *(f"name-{i}" for i in range(2, 25))}
    assert [(folder / "x").read_text() for folder in folders] == [str(i) for i in range(24)]
    assert sorted(tmp_path.glob("a/*")) == sorted(folders), "no scratch folder is left"


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    def fail(folder: Path) -> None:
        (folder / "x").write_text("half")
        raise OSError("full")

    with pytest.raises(OSError, match="full"):
        write_new_folder(tmp_path, "name", fail)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_name_is_kept(tmp_path):
    (tmp_path / "name").write_text("mine")
    assert write_new_folder(tmp_path, "name", lambda folder: None).name == "name-2"
    assert (tmp_path / "name").read_text() == "mine"
