"""Models on the Hugging Face Hub (extra `hub`), reached only when the user names one as `hf:OWNER/NAME[@REVISION]`.

A repository holds the folder that `save` writes, and a card. Of a repository only these files are downloaded, their
checksums must agree, and nothing in them is code. Names in configs and other files never reach the hub.
"""

from __future__ import annotations

import inspect
import logging
import os
import re
import tempfile
from pathlib import Path
from types import ModuleType

import yaml

from stochseg._version import __version__
from stochseg.errors import UserError
from stochseg.extras import require
from stochseg.files import MANIFEST
from stochseg.models.base import StochasticSegmenter
from stochseg.models.calibration import CALIBRATION
from stochseg.models.io import CONFIG, SHIPPED, WEIGHTS, find_model, load, save

log = logging.getLogger(__name__)
SCHEME = "hf:"
FILES = (CONFIG, WEIGHTS, MANIFEST)
"""What every repository has. With a calibration, if there is one, these are all files that are downloaded."""
CARD = "README.md"
_OFFLINE = "no complete copy is in its cache: connect once, or copy the folder of the model here and pass its path"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
_REPOSITORY = re.compile(rf"{_PART}/{_PART}")
_NAME = re.compile(rf"(?P<repository>{_PART}/{_PART})(@(?P<revision>[A-Za-z0-9][A-Za-z0-9._/-]*))?")


def is_hub_name(name: object) -> bool:
    """Whether a user means a model on the hub.

    >>> is_hub_name("hf:someone/lung"), is_hub_name("runs/lung")
    (True, False)
    """
    return isinstance(name, (str, os.PathLike)) and _spelled(name).startswith(SCHEME)


def local_copy(name: str | os.PathLike[str]) -> Path:
    """Return the folder of a model that the user named: as it is, or downloaded if it is on the hub.

    Args:
        name: a path, the name of a bundled model, or `hf:OWNER/NAME[@REVISION]`.

    Raises:
        UserError: if the model on the hub does not exist, has other files, or cannot be reached and is not cached.

    >>> local_copy("lidc").name
    'lidc'
    """
    return fetch(_spelled(name)) if is_hub_name(name) else Path(name)


def fetch(name: str) -> Path:
    """Download a model of the hub, or find it in the cache of the hub's client.

    Args:
        name: `hf:OWNER/NAME[@REVISION]`; the revision is a branch, a tag or a commit.

    Returns:
        The folder with its files.
    """
    found = _NAME.fullmatch(name.removeprefix(SCHEME))
    if found is None:
        raise UserError(f"expected hf:OWNER/NAME or hf:OWNER/NAME@REVISION, got {name!r}")
    hub = require("huggingface_hub", "hub", name)
    errors = require("huggingface_hub.errors", "hub", name)
    try:
        folder = hub.snapshot_download(
            found["repository"],
            revision=found["revision"],
            allow_patterns=[*FILES, CALIBRATION],
            library_name="stochseg",
            library_version=__version__,
        )
    except _refusals(errors) as error:
        raise UserError(f"{name}: {_explain(error, errors, _OFFLINE)}") from error
    missing = [file for file in FILES if not (Path(folder) / file).is_file()]
    if missing:
        raise UserError(
            f"{name}: expected the files of a saved model, {', '.join(missing)} missing; stochseg.push uploads models "
            "for the hub"
        )
    log.info("%s is in %s", name, folder)
    return Path(folder)


def push(
    model: StochasticSegmenter | str | Path,
    name: str,
    *,
    private: bool = False,
    license: str | None = None,
    half: bool = False,
) -> str:
    """Upload a model to the Hugging Face Hub: weights, config, checksums, and a card if there is none yet.

    Needs the extra `hub` and a token of the hub (`hf auth login`, or the variable HF_TOKEN).

    Args:
        model: a model, or a run, a saved or a bundled model by path or name.
        name: OWNER/NAME of the repository, which is created if it does not exist.
        private: create the repository as private.
        license: of the weights, as the hub spells it ("mit"); it is stated in the card.
        half: upload weights as float16, half the size.

    Returns:
        The address of the upload.

    Raises:
        UserError: if the name is not one of a repository, or the hub refuses or cannot be reached.
    """
    repository = name.removeprefix(SCHEME)
    if not _REPOSITORY.fullmatch(repository):
        raise UserError(f"push: expected the name of a repository such as OWNER/NAME, got {name!r}")
    hub = require("huggingface_hub", "hub", "push")
    errors = require("huggingface_hub.errors", "hub", "push")
    source = None if isinstance(model, StochasticSegmenter) else find_model(Path(model))
    loaded = model if isinstance(model, StochasticSegmenter) else load(model)
    api = hub.HfApi(library_name="stochseg", library_version=__version__)
    with tempfile.TemporaryDirectory() as scratch:
        folder = save(loaded, Path(scratch) / "model", half=half)
        try:
            api.create_repo(repository, private=private, exist_ok=True)
            if not api.file_exists(repository, CARD):  # its owner may have edited it
                (folder / CARD).write_text(write_card(loaded, repository, license, source), encoding="utf-8")
            done = api.upload_folder(
                repo_id=repository, folder_path=folder, commit_message=f"{loaded.name}, stochseg {__version__}"
            )
        except _refusals(errors) as error:
            raise UserError(f"push to {repository}: {_explain(error, errors, 'connect and push again')}") from error
    return str(done.commit_url)


def write_card(
    model: StochasticSegmenter, repository: str, license: str | None = None, source: Path | None = None
) -> str:
    """The card of a model: tags for the hub, facts, and how to use it.

    Args:
        model: the model.
        repository: OWNER/NAME.
        license: of the weights; None: left out.
        source: folder from which it was loaded; the card of a bundled model is taken over.
    """
    info = model.info
    medium = "volumes" if info.spatial_dims == 3 else "images"
    tags = ["stochastic-segmentation", "uncertainty", "multi-rater", model.name.partition(":")[0]]
    head = {"library_name": "stochseg", "pipeline_tag": "image-segmentation", "tags": tags}
    if license is not None:
        head["license"] = license
    own = SHIPPED / f"{source.name}.md" if source is not None and source.parent == SHIPPED else None
    if own is not None and own.is_file():
        body = own.read_text(encoding="utf-8").strip()
    else:
        about = inspect.cleandoc(type(model).__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        classes = ", ".join(info.names)
        parameters = sum(each.numel() for each in model.parameters())
        body = (
            f"# {repository.partition('/')[2]}\n\nSamples plausible label maps of {medium}. {about}\n\n"
            f"| | |\n|---|---|\n| Model | `{model.name}`, {parameters:,} parameters |\n| Classes | {classes} |\n"
            f"| Image channels | {info.image_channels} |\n| Data | {info.name} |"
        )
    use = (
        "## Use\n\n```python\nimport stochseg  # pip install 'stochseg[hub]'\n\n"
        f'samples = stochseg.load("hf:{repository}").sample(image, n=16)\nstochseg.hypotheses(samples)\n```'
    )
    return f"---\n{yaml.safe_dump(head, sort_keys=False)}---\n\n{body}\n\n{use}\n"


def _spelled(name: str | os.PathLike[str]) -> str:
    return name if isinstance(name, str) else Path(name).as_posix()  # Windows turns the slash of a path


def _refusals(errors: ModuleType) -> tuple[type[Exception], ...]:
    """What the hub's client raises: refusals of the server, a network that is away, names it does not accept."""
    return (errors.HfHubHTTPError, errors.HTTPError, errors.EntryNotFoundError, OSError, ValueError)


def _explain(error: Exception, errors: ModuleType, offline: str) -> str:
    """Say what the hub refused and what to do; offline: if it cannot be reached."""
    first = next(iter(str(error).strip().splitlines()), type(error).__name__)
    if isinstance(error, errors.RevisionNotFoundError):
        return "the repository has no such revision"
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(error, errors.RepositoryNotFoundError) or status in (401, 403):
        return (
            "no such repository, or no access to it; check the name, and log in with `hf auth login` or the variable "
            f"HF_TOKEN if it is private ({first})"
        )
    if isinstance(error, errors.LocalEntryNotFoundError) or status is None:
        return f"the hub cannot be reached ({first}); {offline}"
    return f"the hub refuses: {first}"
