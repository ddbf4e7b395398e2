"""The memory that one file may ask for, checked before it is allocated: headers and archives can ask for anything."""

from __future__ import annotations

import os

from stochseg.errors import UserError

VARIABLE = "STOCHSEG_MAX_FILE_MB"
"""Environment variable with the limit in megabytes."""
DEFAULT_MB = 1000.0
MAX_SAMPLES = 100_000
"""Samples per image."""
MAX_EVALUATIONS = 100_000
"""Network evaluations per sample, and time steps of a diffusion."""
MAX_CLASSES = 65_535
"""Classes of a data set: label maps are stored in at most 16 bits."""
MAX_SIDE = 2**16
"""Pixels per side of an image, where a user states them."""
MAX_SEED = 2**63 - 1
MAX_WORKERS = 1024


def max_file_bytes() -> int:
    """Bytes that reading one file may take: an image, an example of a store, a document, the network of a config.

    Raises:
        UserError: if the environment variable is not a positive number.

    >>> max_file_bytes()
    1000000000
    """
    text = os.environ.get(VARIABLE) or str(DEFAULT_MB)
    try:
        limit = float(text) * 10**6
    except ValueError:
        limit = 0.0
    if not 0 < limit < 10**18:
        raise UserError(f"{VARIABLE}: expected a number of megabytes such as 4000, got {text!r}")
    return int(limit)


def check_memory(needed: int, where: str) -> None:
    """Raise a UserError if reading a file needs more memory than the limit.

    Args:
        needed: bytes, estimated from its header.
        where: the file, for the error.

    >>> check_memory(3 * 10**9, "scan.nii")
    Traceback (most recent call last):
    stochseg.errors.UserError: scan.nii needs 3,000 MB of memory, more than the limit of 1,000 MB per file; if you \
trust the file, raise the limit with the environment variable STOCHSEG_MAX_FILE_MB=3000
    """
    limit = max_file_bytes()
    if needed > limit:
        megabytes = -(-int(needed) // 10**6)
        remedy = f"raise the limit with the environment variable {VARIABLE}={megabytes}"
        raise UserError(
            f"{where} needs {megabytes:,} MB of memory, more than the limit of {limit // 10**6:,} MB per file; "
            f"if you trust the file, {remedy}"
        )
