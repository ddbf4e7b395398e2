"""Small LIDC-IDRI series, readings and databases that tests write, and independent references of their import."""

import sqlite3

import numpy as np
import pydicom
import pytest

from stochseg.data import plan_import
from stochseg.errors import UserError

UID, OTHER = "1.2.826.7.1", "1.2.826.7.2"
PATIENT = "LIDC-IDRI-0001"
SIZE, SPACING, STEP, FOOT = (160, 150), (0.5, 0.75), 2.0, -100.0
SLOPE, INTERCEPT = 2.0, -1024.0


def sop(number, uid=UID):
    return f"{uid}.{number + 1}"


def raw_pixels(number, size=SIZE):
    """Pixels that differ in every row, column and slice, and include all Hounsfield units of the window and more."""
    rows, columns = np.indices(size)
    return ((rows * 37 + columns * 11 + number * 101) % 1200).astype(np.int16)


def write_slice(file, number, *, patient=PATIENT, uid=UID, size=SIZE, drop=(), **changes):
    data = pydicom.dataset.Dataset()
    data.PatientID, data.Modality, data.SeriesInstanceUID = patient, "CT", uid
    data.SOPClassUID, data.SOPInstanceUID = pydicom.uid.CTImageStorage, sop(number, uid)
    data.ImagePositionPatient, data.PixelSpacing = [0, 0, FOOT + number * STEP], list(SPACING)
    data.SliceThickness, (data.Rows, data.Columns) = STEP, size
    data.RescaleSlope, data.RescaleIntercept = SLOPE, INTERCEPT
    data.SamplesPerPixel, data.PhotometricInterpretation, data.PixelRepresentation = 1, "MONOCHROME2", 1
    data.BitsAllocated, data.BitsStored, data.HighBit = 16, 16, 15
    data.PixelData = raw_pixels(number, size).tobytes()
    for key, value in changes.items():
        setattr(data, key, value)
    for key in drop:
        delattr(data, key)
    data.file_meta = pydicom.dataset.FileMetaDataset()
    data.file_meta.TransferSyntaxUID = pydicom.uid.ExplicitVRLittleEndian
    file.parent.mkdir(parents=True, exist_ok=True)
    data.save_as(file, enforce_file_format=True)


def write_series(root, *, count=7, patient=PATIENT, uid=UID, **options):
    """Write a series; files are numbered from the head down, as scanners do, positions from the foot."""
    folder = root / patient / "study" / uid
    for number in range(count):
        write_slice(folder / f"1-{count - number:03d}.dcm", number, patient=patient, uid=uid, **options)
    return folder


def disc(row, column, radius):
    """A connected chain of pixels (x, y) around a disc, as readers draw one."""
    angles = np.linspace(0, 2 * np.pi, 200)
    chain = np.rint([column + radius * np.cos(angles), row + radius * np.sin(angles)]).astype(int).T.tolist()
    return [tuple(p) for i, p in enumerate(chain) if i == 0 or p != chain[i - 1]]


def roi(number, points, *, inclusion="TRUE", z=None, uid=None):
    edges = "".join(f"<edgeMap><xCoord>{x}</xCoord><yCoord>{y}</yCoord></edgeMap>" for x, y in points)
    position = FOOT + number * STEP if z is None else z
    return (
        f"<roi><imageZposition>{position}</imageZposition><imageSOP_UID>{uid or sop(number)}</imageSOP_UID>"
        f"<inclusion>{inclusion}</inclusion>{edges}</roi>"
    )


def nodule(*rois):
    return f"<unblindedReadNodule><noduleID>n</noduleID><characteristics/>{''.join(rois)}</unblindedReadNodule>"


NON_NODULE = (
    "<nonNodule><nonNoduleID>x</nonNoduleID><imageZposition>-98.0</imageZposition><imageSOP_UID>1</imageSOP_UID>"
    "<locus><xCoord>5</xCoord><yCoord>5</yCoord></locus></nonNodule>"
)


def reading(*readers, uid=UID, namespace=' xmlns="http://www.nih.gov"'):
    """An XML file; each reader is a list of nodules."""
    sessions = "".join(f"<readingSession>{''.join(nodules)}{NON_NODULE}</readingSession>" for nodules in readers)
    header = f"<ResponseHeader><Version>1</Version><SeriesInstanceUid>{uid}</SeriesInstanceUid></ResponseHeader>"
    return f'<?xml version="1.0"?><LidcReadMessage{namespace}>{header}{sessions}</LidcReadMessage>'


def write_xml(root, content, name="tcia-lidc-xml/157/158.xml"):
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def one_nodule(points, *, number=3):
    return nodule(roi(number, points))


def four(points):
    return [[one_nodule(points)]] * 4


def plan_of(root, kind="lidc-dicom"):
    return plan_import(kind, root)


def records(root, kind="lidc-dicom"):
    return {item.id: item.read() for item in plan_of(root, kind).items}


def on_segment(x, y, a, b):
    turn = (b[0] - a[0]) * (y - a[1]) - (b[1] - a[1]) * (x - a[0])
    return turn == 0 and min(a[0], b[0]) <= x <= max(a[0], b[0]) and min(a[1], b[1]) <= y <= max(a[1], b[1])


def inside(x, y, points):
    """Whether a pixel is on no edge and has an odd number of edges to its right."""
    odd = False
    for i, a in enumerate(points):
        b = points[(i + 1) % len(points)]
        if on_segment(x, y, a, b):
            return False
        if (a[1] > y) != (b[1] > y) and x < a[0] + (y - a[1]) * (b[0] - a[0]) / (b[1] - a[1]):
            odd = not odd
    return odd


def reference(points, size=SIZE):
    mask = np.zeros(size, dtype=np.uint8)
    xs, ys = zip(*points, strict=True)
    for y in range(min(ys), max(ys) + 1):
        for x in range(min(xs), max(xs) + 1):
            mask[y, x] = inside(x, y, points)
    return mask


def reference_crop(image, row, column):
    out = np.zeros((128, 128), dtype=image.dtype)
    for i in range(128):
        for j in range(128):
            y, x = row - 64 + i, column - 64 + j
            if 0 <= y < image.shape[0] and 0 <= x < image.shape[1]:
                out[i, j] = image[y, x]
    return out


def reference_window(number, size=SIZE):
    hounsfield = np.clip(raw_pixels(number, size) * SLOPE + INTERCEPT, -1000, 400)
    return np.rint((hounsfield + 1000) * 255 / 1400).astype(np.uint8)


SCHEMA = """
CREATE TABLE scans (id INTEGER NOT NULL PRIMARY KEY, study_instance_uid VARCHAR, series_instance_uid VARCHAR,
    patient_id VARCHAR, slice_thickness FLOAT, pixel_spacing FLOAT, contrast_used BOOLEAN, is_from_initial BOOLEAN,
    sorted_dicom_file_names VARCHAR);
CREATE TABLE annotations (id INTEGER NOT NULL PRIMARY KEY, scan_id INTEGER, _nodule_id VARCHAR, subtlety INTEGER,
    "internalStructure" INTEGER, calcification INTEGER, sphericity INTEGER, margin INTEGER, lobulation INTEGER,
    spiculation INTEGER, texture INTEGER, malignancy INTEGER);
CREATE TABLE contours (id INTEGER NOT NULL PRIMARY KEY, annotation_id INTEGER, inclusion BOOLEAN,
    image_z_position FLOAT, dicom_file_name VARCHAR, coords VARCHAR);
"""


def write_database(file, annotations, uid=UID):
    """Write a database of annotations, each a list of (slice number, inclusion, points)."""
    connection = sqlite3.connect(file)
    connection.executescript(SCHEMA)
    connection.execute("INSERT INTO scans (id, series_instance_uid, patient_id) VALUES (1, ?, ?)", (uid, PATIENT))
    for i, contours in enumerate(annotations):
        connection.execute("INSERT INTO annotations (id, scan_id) VALUES (?, 1)", (i,))
        for number, inclusion, points in contours:
            row = (i, inclusion, FOOT + number * STEP, "9.dcm", "\n".join(f"{x},{y}" for x, y in points))
            connection.execute(
                "INSERT INTO contours (annotation_id, inclusion, image_z_position, dicom_file_name, coords) "
                "VALUES (?, ?, ?, ?, ?)",
                row,
            )
    connection.commit()
    connection.close()


def error_of(root, content=None):
    write_xml(root, reading(*four(disc(60, 60, 6))) if content is None else content)
    with pytest.raises(UserError) as caught:
        records(root)
    return str(caught.value)
