"""Importers of public data sets, one file each; importing a module registers it."""

from stochseg.data.importers import camvid, cityscapes, lidc, lidc_dicom, nnunet  # noqa: F401
