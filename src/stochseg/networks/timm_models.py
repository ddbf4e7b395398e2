"""Names and options of timm's models: those that build a network, and none that reach a hub, a folder or a file."""

from __future__ import annotations

import re
from typing import Any, Literal

from stochseg.errors import UserError

TimmOption = Literal[
    "img_size",
    "patch_size",
    "window_size",
    "strict_img_size",
    "dynamic_img_size",
    "dynamic_img_pad",
    "output_stride",
    "embed_dim",
    "depth",
    "depths",
    "num_heads",
    "mlp_ratio",
    "drop_rate",
    "drop_path_rate",
    "drop_block_rate",
    "attn_drop_rate",
    "proj_drop_rate",
    "pos_drop_rate",
    "patch_drop_rate",
]
"""Keywords of timm's networks that a config may set. Others, such as checkpoint_path, make timm read files."""

_NAME = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)?")
"""NAME or NAME.WEIGHTS: without the colon and the slash of "hf-hub:owner/name" and "local-dir:path"."""


def check_timm_name(timm: Any, name: str) -> None:
    """Raise a UserError unless timm itself contains the model."""
    if not _NAME.fullmatch(name) or not timm.models.is_model(name.partition(".")[0]):
        raise UserError(f"timm has no model {name!r}; see timm.list_models(). Hubs and folders are not read")
