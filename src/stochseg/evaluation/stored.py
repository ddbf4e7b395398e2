"""Evaluation in parts: processes write the scores of some images each, and one adds them up as if it had made them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from stochseg._version import __version__
from stochseg.data import SegmentationData
from stochseg.errors import UserError
from stochseg.evaluation.data_scores import ImageSums
from stochseg.evaluation.evaluator import CaseReader, plan_scoring, rated_by, stop_at_lost
from stochseg.evaluation.image_scores import Case, ImageResult, Modes, Scoring
from stochseg.locks import locked
from stochseg.metrics import CalibrationBins
from stochseg.models import StochasticSegmenter
from stochseg.models.sampling import SamplingOptions
from stochseg.parts import Part
from stochseg.types import Example, Samples
from stochseg.workers import Act, Lost, R, Runner, T, run_here

PARTS = "parts"
"""Folder in that of the evaluation, with the scores of its parts."""


@dataclass(frozen=True)
class StoredScores:
    """The scores of images in a folder: one file per part and way of scoring, with one line per image.

    Every line has a checksum, so that a damaged or incomplete one is not used, and the checksum of its image.

    folder: of the files; model: checksum of the model that scores.
    """

    folder: Path
    model: str

    def write(
        self,
        model: StochasticSegmenter,
        data: SegmentationData,
        part: Part,
        ways: Sequence[SamplingOptions],
        *,
        limit: int | None = None,
        keep: int = 4,
        progress: Callable[[int, int], None] = lambda done, total: None,
        runner: Runner[StochasticSegmenter] | None = None,
    ) -> int:
        """Score the images of a part, except those that have scores here.

        Args:
            model: the model.
            data: images with raters.
            part: of the images.
            ways: options of sampling, one after the other.
            limit: maximum number of images of all parts, evenly spaced; default: all.
            keep: number of examples whose samples are kept, as in `evaluate`.
            progress: called with (images done, images in total).
            runner: as in `evaluate`.

        Returns:
            The number of images of the part.

        Raises:
            UserError: as `evaluate`; another process scores this part, or others divide the images differently.
        """
        runner = runner or partial(run_here, lambda: model)
        with locked(self.folder, part.lock, rivals=part.rivals):
            for i, options in enumerate(ways):
                of_way = rated_by(data, model, options)
                scoring, every = plan_scoring(model, of_way, options, limit)
                chosen, digest = part.select(every), self._digest(scoring)
                file = self.folder / f"{digest}-part-{part.index}-of-{part.count}.jsonl"
                known = self._read(digest)
                reader = CaseReader(of_way, [j for j in chosen if j not in known], keep, with_samples=False)
                before = i * len(chosen) + len(chosen) - len(reader.chosen)
                with file.open("ab") as out:
                    out.write(b"\n" if out.tell() else b"")  # a line may have been cut short
                    cases: dict[int, Case] = {}
                    for done, result in enumerate(runner(scoring, _noted(reader, cases), stop_at_lost), start=1):
                        self._keep(digest, result)
                        out.write(_line(result, cases.pop(result.index)))
                        out.flush()
                        progress(before + done + reader.void, len(ways) * len(chosen))
        return len(chosen)

    def runner(self, runner: Runner[StochasticSegmenter]) -> Runner[StochasticSegmenter]:
        """Return a runner for `evaluate` that takes scores from here, and lets another one score the other images."""

        def run(
            act: Act[StochasticSegmenter, T, R], chunks: Iterable[Sequence[T]], lost: Lost[T, R]
        ) -> Generator[R, None, None]:
            digest = self._digest(cast(Scoring, act))
            known, found = self._read(digest), list[ImageResult]()
            if not any(self.folder.glob(f"{digest}-*.jsonl")) and any(self.folder.glob("*.jsonl")):
                raise UserError(
                    f"{self.folder}: its parts were scored with another model, version or other options; repeat the "
                    "options of the parts, or choose another --out"
                )

            def missing() -> Iterator[Sequence[T]]:
                for chunk in chunks:
                    (case,) = cast(Sequence[Case], chunk)
                    result = self._result(digest, known[case.index], case) if case.index in known else None
                    if result is None:
                        yield chunk
                    else:
                        found.append(result)

            for result in runner(act, missing(), lost):
                yield from cast(list[R], found)
                found.clear()
                yield result
            yield from cast(list[R], found)

        return run

    def _digest(self, scoring: Scoring) -> str:
        """Name a way of scoring by everything that its scores depend on, except image and machine."""
        facts = {**asdict(scoring), "info": scoring.info.model_dump(), "options": scoring.options.model_dump()}
        versions = {"stochseg": __version__, "torch": torch.__version__}
        text = json.dumps({**facts, **versions, "model": self.model}, default=str, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def _read(self, digest: str) -> dict[int, dict[str, Any]]:
        """Read the sound lines of all parts by the index of their image."""
        found = {}
        for file in sorted(self.folder.glob(f"{digest}-*.jsonl")):
            for line in file.read_bytes().splitlines():
                checksum, _, text = line.partition(b" ")
                if checksum.decode(errors="replace") == hashlib.sha256(text).hexdigest():
                    record = json.loads(text)
                    found[record["index"]] = record
        return found

    def _samples(self, digest: str, index: int) -> Path:
        return self.folder / f"{digest}-samples-{index}.npz"

    def _keep(self, digest: str, result: ImageResult) -> None:
        if result.kept is not None:
            result.kept[1].save(self._samples(digest, result.index))

    def _result(self, digest: str, record: Mapping[str, Any], case: Case) -> ImageResult | None:
        """Make the result of a case from its record; None if its samples are needed and cannot be read."""
        if record["sha256"] != _hash(case.example):
            raise UserError(
                f"{self.folder}: image {case.example.id!r} has changed since its part was scored; choose another --out"
            )
        kept = None
        if case.keep:
            try:
                kept = case.example, Samples.load(self._samples(digest, case.index))
            except UserError:
                return None
        sums, modes = record["sums"], record["modes"]
        return ImageResult(
            case.index,
            record["row"],
            ImageSums(
                _tensor(sums["confusion"]),
                CalibrationBins(**_tensors(sums["bins"])),
                CalibrationBins(**_tensors(sums["foreground"])),
                _tensor(sums["brier"]),
                _tensors(sums["fused"]),
            ),
            None if modes is None else Modes(tuple(modes["names"]), *_tensors(modes["maps"]).values()),
            kept,
            record["place"],
        )


def _noted(reader: CaseReader, cases: dict[int, Case]) -> Iterator[list[Case]]:
    """The chunks of a reader, whose cases are noted until their results are known."""
    for chunk in reader:
        cases |= {case.index: case for case in chunk}
        yield chunk


def _line(result: ImageResult, case: Case) -> bytes:
    """A result without its samples, which are those of the model and need not be kept."""
    sums, modes = result.sums, result.modes
    record = {
        "index": result.index,
        "sha256": _hash(case.example),
        "row": result.row,
        "sums": {
            "confusion": _values(sums.confusion),
            **{key: {k: _values(v) for k, v in vars(getattr(sums, key)).items()} for key in ("bins", "foreground")},
            "brier": _values(sums.brier),
            "fused": {key: _values(value) for key, value in sums.fused.items()},
        },
        "modes": None
        if modes is None
        else {
            "names": modes.names,
            "maps": {"probabilities": _values(modes.probabilities), "frequency": _values(modes.frequency)},
        },
        "place": result.place,
    }
    text = json.dumps(record).encode()
    return hashlib.sha256(text).hexdigest().encode() + b" " + text + b"\n"


def _hash(example: Example) -> str:
    digest = hashlib.sha256(example.id.encode(errors="surrogateescape"))
    digest.update(example.image.numpy().tobytes() + example.raters.numpy().tobytes())
    return digest.hexdigest()


def _values(tensor: Tensor) -> tuple[str, Any]:
    """Type and numbers of a tensor; Python writes floats so that reading them gives the same ones."""
    return str(tensor.dtype).removeprefix("torch."), tensor.tolist()


def _tensor(stored: Sequence[Any]) -> Tensor:
    name, values = stored
    return torch.tensor(values, dtype=getattr(torch, name))


def _tensors(stored: Mapping[str, Sequence[Any]]) -> dict[str, Tensor]:
    return {key: _tensor(values) for key, values in stored.items()}
