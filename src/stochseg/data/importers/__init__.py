"""Importers of public data sets, one file each; importing a module registers it."""

from stochseg.data.importers import camvid, cityscapes, lidc, lidc_dicom  # noqa: F401
from stochseg.data.importers.plans import IMPORTERS, plan_import

__all__ = ["IMPORTERS", "plan_import"]
