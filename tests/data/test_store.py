"""Packed stores: lossless, written all or nothing, resumable, safe across processes."""

from __future__ import annotations

import errno
import pickle
import sys
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from stochseg.data import Store, write_store
from stochseg.data.importers.plans import Item, Plan, Provenance, Record
from stochseg.data.readers.hdf5 import open_hdf5
from stochseg.data.store import writing
from stochseg.errors import UserError
from stochseg.training.stream import TrainingStream
from stochseg.types import DatasetInfo

INFO = DatasetInfo(name="toy", num_classes=3, image_channels=2, ignore=255)
PROVENANCE = Provenance(kind="toy", source="nowhere", license="CC0", citation="nobody")


def record(i: int, size: tuple[int, int] = (6, 5), count: int = 2, dtype: type = np.uint8, **changes) -> Record:
    rng = np.random.default_rng(i)
    fields = {
        "id": f"e{i}",
        "group": f"g{i // 2}",
        "split": "val" if i // 2 % 3 == 2 else "train",
        "image": (rng.random((*size, 2)) * 255).astype(dtype),
        "raters": rng.choice([0, 1, 2, 255], (count, *size)).astype(np.uint8),
        "rater_names": tuple(f"r{k}" for k in range(count)),
        "spacing": (0.5, 0.7) if i % 2 else None,
    }
    return Record(**{**fields, **changes})


def plan(records: list[Record], max_raters: int = 4) -> Plan:
    items = [Item(r.id, r.group, r.split, partial(lambda r: r, r)) for r in records]
    return Plan(INFO, PROVENANCE, items, max_raters)


@pytest.fixture
def mixed() -> list[Record]:
    """Records of several sizes, types and numbers of raters, for more than one shard."""
    shapes = [(6, 5), (4, 4), (1, 1)]
    types = [np.uint8, np.uint16, np.float32]
    return [record(i, shapes[i % 3], 1 + i % 4, types[i % 2 + i % 3 % 2]) for i in range(23)]


@pytest.fixture(autouse=True)
def small_shards(monkeypatch):
    monkeypatch.setattr(writing, "SHARD_EXAMPLES", 5)


def test_stored_records_equal_their_sources(mixed, tmp_path):
    out = write_store(plan(mixed), tmp_path / "toy.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["toy.h5"]
    expected = {r.id: r for r in mixed}
    seen = set()
    names = tuple(sorted({name for record in mixed for name in record.rater_names}))
    for split in ("train", "val"):
        data = Store(split, path=str(out))
        assert data.info == INFO.model_copy(update={"rater_names": names})
        assert data.provenance == PROVENANCE
        for i in range(len(data)):
            example, source = data[i], expected[data[i].id]
            image, labels = data.read(i)
            assert image.dtype == source.image.dtype
            np.testing.assert_array_equal(image, source.image)
            np.testing.assert_array_equal(labels, source.raters)
            assert (example.group, example.rater_names, example.spacing) == (
                source.group,
                source.rater_names,
                source.spacing,
            )
            assert source.split == split
            raw = INFO.normalization.inverse(example.image).permute(1, 2, 0)
            np.testing.assert_allclose(raw, source.image.astype(np.float32), rtol=1e-5, atol=1e-4)
            seen.add(example.id)
    assert seen == set(expected)


def test_center(tmp_path):
    records = [record(i, (7, 4)) for i in range(4)]
    out = write_store(plan(records), tmp_path / "toy.h5")
    image, labels = Store("train", path=str(out), center=5).read(0)
    np.testing.assert_array_equal(image, records[0].image[1:6], "a shorter side is read whole")
    np.testing.assert_array_equal(labels, records[0].raters[:, 1:6])
    with pytest.raises(UserError, match="center.* 0"):
        Store("train", path=str(out), center=0)


def test_images_and_provenance_are_plain_hdf5(tmp_path):
    out = write_store(plan([record(0), record(1)]), tmp_path / "toy.h5")
    with h5py.File(out) as file:
        assert '"license":"CC0"' in file.attrs["provenance"]
        (block,) = file["blocks"].values()
        assert block["images"].shape == (2, 6, 5, 2)
        assert block["images"].fletcher32


def test_interrupted_import_resumes(mixed, tmp_path):
    out, reads = tmp_path / "toy.h5", []

    def interrupted(r: Record, stop_at: str | None) -> Record:
        if r.id == stop_at:
            raise KeyboardInterrupt
        reads.append(r.id)
        return r

    def items(stop_at: str | None) -> Plan:
        made = [Item(r.id, r.group, r.split, partial(interrupted, r, stop_at)) for r in mixed]
        return Plan(INFO, PROVENANCE, made, 4)

    with pytest.raises(KeyboardInterrupt):
        write_store(items("e12"), out)
    assert not out.exists()
    reads.clear()
    write_store(items(None), out)
    assert reads == [f"e{i}" for i in range(10, 23)], "two whole shards of five must not be read again"
    assert len(Store("train", path=str(out))) + len(Store("val", path=str(out))) == 23
    assert [p.name for p in tmp_path.iterdir()] == ["toy.h5"]


def test_scratch_of_an_import_killed_at_its_end_is_removed_by_the_next(mixed, tmp_path, monkeypatch):
    with monkeypatch.context() as killed:
        killed.setattr(writing.shutil, "rmtree", lambda *_, **__: None)
        out = write_store(plan(mixed), tmp_path / "toy.h5")
    assert len(list(tmp_path.iterdir())) == 2
    with pytest.raises(UserError, match="exists"):
        write_store(plan(mixed), out)
    assert list(tmp_path.iterdir()) == [out]


def test_shards_are_limited_in_bytes(mixed, tmp_path, monkeypatch):
    written = []
    original = writing._write_shard
    monkeypatch.setattr(writing, "SHARD_BYTES", 200)
    monkeypatch.setattr(writing, "_write_shard", lambda h, p, r: (written.append(len(r)), original(h, p, r)))
    write_store(plan(mixed), tmp_path / "toy.h5")
    assert sum(written) == 23
    assert 1 <= min(written) <= max(written) < 5


def test_other_plan_does_not_resume_an_interrupted_one(mixed, tmp_path):
    def stop() -> Record:
        raise KeyboardInterrupt

    broken = plan(mixed)
    cut = Plan(INFO, PROVENANCE, [*broken.items[:-1], Item("e22", "g11", mixed[22].split, stop)], 4)
    with pytest.raises(KeyboardInterrupt):
        write_store(cut, tmp_path / "toy.h5")
    others = [record(i, count=3) for i in range(4)]
    write_store(plan(others), tmp_path / "toy.h5")
    assert Store("train", path=str(tmp_path / "toy.h5"))[0].raters.shape[0] == 3


def test_full_disk_leaves_nothing(mixed, tmp_path, monkeypatch):
    calls = []

    def full(handle, *args):
        calls.append(handle)
        if len(calls) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        return original(handle, *args)

    original = writing._write_shard
    monkeypatch.setattr(writing, "_write_shard", full)
    with pytest.raises(UserError, match="toy.h5.*No space left on device"):
        write_store(plan(mixed), tmp_path / "toy.h5")
    assert list(tmp_path.iterdir()) == []


BAD = {
    "undeclared label": (record(0, raters=np.full((1, 6, 5), 7, np.uint8)), r"e0: .*0\.\.2 or 255.*\[7\]"),
    "size": (record(0, raters=np.zeros((2, 5, 6), np.uint8)), r"e0: .*\(5, 6\).*\(6, 5\)"),
    "no labels": (record(0, raters=np.zeros((0, 6, 5), np.uint8)), "e0: .*no label map"),
    "NaN": (record(0, image=np.full((6, 5, 2), np.nan, np.float32)), "e0: .*NaN"),
    "raters": (record(0, count=5), "e0: 5 label maps.* 4"),
    "channels": (record(0, image=np.zeros((6, 5, 1), np.uint8)), r"e0: .*2 channel.*\(6, 5, 1\)"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_record_is_named_and_nothing_is_left(case, tmp_path):
    bad, message = BAD[case]
    with pytest.raises(UserError, match=message):
        write_store(plan([bad, record(1)]), tmp_path / "toy.h5")
    assert list(tmp_path.iterdir()) == []


def test_group_in_two_splits_is_refused(tmp_path):
    records = [record(0, split="train"), record(1, split="val")]
    with pytest.raises(UserError, match="'g0' is in both 'train' and 'val'"):
        write_store(plan(records), tmp_path / "toy.h5")


def test_two_examples_of_one_id_are_refused(tmp_path):
    with pytest.raises(UserError, match="two examples.*'e0'"):
        write_store(plan([record(0), record(0)]), tmp_path / "toy.h5")


def test_existing_store_is_not_overwritten(tmp_path):
    out = write_store(plan([record(0)]), tmp_path / "toy.h5")
    with pytest.raises(UserError, match="toy.h5 exists"):
        write_store(plan([record(0)]), out)


def test_damaged_store_is_refused(mixed, tmp_path):
    out = write_store(plan(mixed), tmp_path / "toy.h5")
    content = out.read_bytes()
    out.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match="toy.h5.*HDF5"):
        Store("train", path=str(out))
    with pytest.raises(UserError, match="no data at .*other.h5"):
        Store("train", path=str(tmp_path / "other.h5"))


def test_checksum_finds_a_flipped_bit(tmp_path):
    out = write_store(plan([record(0, size=(40, 40))]), tmp_path / "toy.h5")
    with h5py.File(out) as file:
        (block,) = file["blocks"].values()
        place = block["images"].id.get_chunk_info(0).byte_offset
    content = bytearray(out.read_bytes())
    content[place + 40] ^= 1
    out.write_bytes(content)
    with pytest.raises(UserError, match="'e0' is damaged"):
        Store("train", path=str(out))[0]


def test_unknown_split_lists_the_known_ones(tmp_path):
    out = write_store(plan([record(0)]), tmp_path / "toy.h5")
    with pytest.raises(UserError, match="split.*'dev'.*train"):
        Store("dev", path=str(out))


def test_workers_and_copies_open_their_own_file(tmp_path):
    records = [record(i, split="train") for i in range(12)]
    data = Store("train", path=str(write_store(plan(records), tmp_path / "toy.h5")))
    data[0]  # opens the file in this process
    assert torch.equal(pickle.loads(pickle.dumps(data))[3].raters, data[3].raters)
    stream = TrainingStream(data, batch_size=4, seed=0, augment="flip-rotate")
    loaders = [torch.utils.data.DataLoader(stream, batch_size=None, sampler=range(5), num_workers=n) for n in (0, 2)]
    for alone, shared in zip(*loaders, strict=True):
        assert alone.batch.ids == shared.batch.ids
        assert torch.equal(alone.batch.image, shared.batch.image)
        assert torch.equal(alone.batch.raters, shared.batch.raters)


def test_missing_h5py_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(UserError, match=r"h5py.*stochseg\[data\]"):
        open_hdf5(Path("x.h5"))


# ---------------------------------------------------------------------- volumes

VOLUMES = INFO.model_copy(update={"spatial_dims": 3})


def volume(i: int, size: tuple[int, int, int] = (3, 6, 5), **changes) -> Record:
    return record(i, size, spacing=(2.5, 0.5, 0.7) if i % 2 else None, **changes)


def volume_plan(records: list[Record]) -> Plan:
    return Plan(VOLUMES, PROVENANCE, plan(records).items, 4)


def test_stored_volumes_equal_their_sources(tmp_path, monkeypatch):
    """Also those of one slice and those in several chunks, which their size does not fill."""
    monkeypatch.setattr("stochseg.data.store.layout.VOLUME_CHUNK", (2, 4, 4))
    records = [volume(i, [(3, 6, 5), (1, 4, 4)][i % 2], count=1 + i % 4, split="train") for i in range(12)]
    out = write_store(volume_plan(records), tmp_path / "toy.h5")
    with h5py.File(out) as file:
        assert file["blocks/3x6x5x2-uint8/images"].chunks == (1, 2, 4, 4, 2)
        assert file["blocks/3x6x5x2-uint8/labels"].chunks == (1, 4, 2, 4, 4)
    data = Store("train", path=str(out))
    assert data.info.spatial_dims == 3
    for i, source in enumerate(records):
        image, labels = data.read(i)
        np.testing.assert_array_equal(image, source.image)
        np.testing.assert_array_equal(labels, source.raters)
        assert data.space(i) == source.image.shape[:-1]
        assert data[i].spacing == source.spacing
        assert data[i].image.shape == (2, *data.space(i))


def test_window_of_the_center_of_a_volume(tmp_path):
    records = [volume(1, (4, 7, 5))]
    out = write_store(volume_plan(records), tmp_path / "toy.h5")
    data = Store("train", path=str(out), center=5)
    assert data.space(0) == (4, 5, 5), "the center is of the plane"
    part = data.patch(0, ((1, 4), (0, 2), (3, 5)))
    assert torch.equal(part.raters, data[0].raters[:, 1:4, 0:2, 3:5])
    assert torch.equal(part.image, data[0].image[:, 1:4, 0:2, 3:5])
    assert (part.id, part.spacing) == ("e1", (2.5, 0.5, 0.7))
    with pytest.raises(UserError, match=r"window 3..6.*0..5"):
        data.patch(0, ((0, 1), (3, 6), (0, 5)))


def test_memory_of_a_volume_is_that_of_its_window(tmp_path, monkeypatch):
    """A volume beyond the limit can still be read by the patch."""
    monkeypatch.setattr("stochseg.data.store.layout.VOLUME_CHUNK", (2, 16, 16))
    out = write_store(volume_plan([volume(0, (40, 20, 20))]), tmp_path / "toy.h5")
    monkeypatch.setenv("STOCHSEG_MAX_FILE_MB", "0.1")
    data = Store("train", path=str(out))
    with pytest.raises(UserError, match="STOCHSEG_MAX_FILE_MB"):
        data[0]
    assert data.patch(0, ((5, 8), (0, 16), (4, 20))).image.shape == (2, 3, 16, 16)


def test_images_and_volumes_do_not_mix(tmp_path):
    with pytest.raises(UserError, match="e1: expected a volume"):
        write_store(volume_plan([volume(0), record(1)]), tmp_path / "toy.h5")
    with pytest.raises(UserError, match="e1: expected an image"):
        write_store(plan([record(0), volume(1)]), tmp_path / "toy.h5")
    with pytest.raises(UserError, match=r"e0: label maps of \(4, 6, 5\).*\(3, 6, 5\)"):
        write_store(volume_plan([volume(0, raters=np.zeros((1, 4, 6, 5), np.uint8))]), tmp_path / "toy.h5")
    assert list(tmp_path.iterdir()) == []
