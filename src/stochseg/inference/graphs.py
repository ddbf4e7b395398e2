"""ONNX graphs of single modules, made from one call of the module and run by onnxruntime."""

from __future__ import annotations

import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stochseg.errors import UserError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

TOLERANCE = 1e-3
"""Largest difference between a graph and its module, relative to the largest value: far above rounding errors, far
below the difference of a wrong graph."""


@dataclass(frozen=True)
class Call:
    """The arguments of one call of a module.

    Its tensors, whose first axis is the batch, are the inputs of a graph; all other arguments (such as None) are
    constants of the graph.
    """

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def tensors(self) -> list[Tensor]:
        return [x for x in self._values if isinstance(x, Tensor)]

    @property
    def _values(self) -> tuple[Any, ...]:
        return (*self.args, *self.kwargs.values())

    @property
    def form(self) -> tuple[Any, ...]:
        """Everything except the batch size and the values: two calls of one form can share a graph of fixed size."""
        parts = ((x.dtype, x.ndim, *x.shape[1:]) if isinstance(x, Tensor) else ("constant", x) for x in self._values)
        return (len(self.args), *self.kwargs, *parts)

    def with_tensors(self, tensors: Sequence[Tensor]) -> Call:
        """Return the same call with other tensors."""
        rest = iter(tensors)
        values = [next(rest) if isinstance(x, Tensor) else x for x in self._values]
        count = len(self.args)
        return Call(tuple(values[:count]), dict(zip(self.kwargs, values[count:], strict=True)))

    def with_larger_batch(self) -> Call:
        """Return the same call with a batch of at least 2: the exporter takes an axis of length 1 for a constant."""
        return self.with_tensors([torch.cat([x, x]) if len(x) == 1 else x for x in self.tensors])

    def names(self, module: nn.Module) -> list[str]:
        """Name each tensor by its parameter of `forward`; those of a `*name` are numbered."""
        found = []
        bound = inspect.signature(type(module).forward).bind(module, *self.args, **self.kwargs)
        for name, value in list(bound.arguments.items())[1:]:
            several = isinstance(value, tuple)
            parts = {f"{name}_{i}": x for i, x in enumerate(value)} if several else {name: value}
            found += [key for key, x in parts.items() if isinstance(x, Tensor)]
        return found

    def apply(self, module: nn.Module) -> tuple[Tensor, ...]:
        """Call the module; a single output becomes a tuple."""
        out = module(*self.args, **self.kwargs)
        return (out,) if isinstance(out, Tensor) else tuple(out)


class _TensorFunction(nn.Module):
    """A module as a function of the tensors of a call alone, which returns a tuple."""

    def __init__(self, module: nn.Module, call: Call):
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.call.with_tensors(tensors).apply(self.module)


def make_graph(module: nn.Module, call: Call, *, any_size: bool) -> bytes:
    """Translate a module to a serialized ONNX graph for any batch size.

    Args:
        module: The module.
        call: A call of the module; its tensors become the inputs.
        any_size: Leave height and width open as well. The exporter decides how far that works: compare the graph with
            the module before using it at another size.
    """
    batch, space = torch.export.Dim.DYNAMIC, torch.export.Dim.AUTO
    call = call.with_larger_batch()
    inputs = tuple(x.detach() for x in call.tensors)
    axes = tuple({0: batch, **({2: space, 3: space} if any_size and x.ndim == 4 else {})} for x in inputs)
    with torch.no_grad():
        outputs = len(call.apply(module))
    with _quiet(), torch.no_grad():
        program = torch.onnx.export(
            _TensorFunction(module, call).eval(),
            inputs,
            input_names=call.names(module),
            output_names=output_names(outputs),
            dynamic_shapes=(axes,),
            dynamo=True,
            verbose=False,
        )
    assert program is not None  # torch returns None only where the old exporter is chosen
    return bytes(program.model_proto.SerializeToString())


def output_names(count: int) -> list[str]:
    return [f"output_{i}" for i in range(count)]


def open_graph(graph: bytes) -> InferenceSession:
    """Open a graph on the CPU with as many threads as torch uses."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 4  # errors are raised as well
    # Threads that wait busily for the next call take the cores from torch, which works between the calls.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


def run_graph(session: InferenceSession, tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Run a graph on tensors, without copying inputs or outputs."""
    arrays = (x.detach().contiguous().numpy() for x in tensors)
    feed = {slot.name: array for slot, array in zip(session.get_inputs(), arrays, strict=True)}
    return tuple(torch.from_numpy(array) for array in session.run(None, feed))


class ModuleGraphs:
    """A module computed by ONNX graphs, which are made when they are first needed.

    A size that no graph has seen is first computed by the module as well; where the two differ, the size gets a graph
    of its own. The weights are those at that time.
    """

    def __init__(self, name: str, module: nn.Module):
        self.name, self.module = name, module
        self.sessions: list[InferenceSession] = []
        self.by_form: dict[tuple[Any, ...], tuple[InferenceSession, bool]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor | tuple[Tensor, ...]:
        if torch.is_grad_enabled():
            raise UserError("engine 'onnx' has no gradients: use it to sample, and train the model itself")
        call = Call(args, kwargs)
        if call.form not in self.by_form:
            expected = self.module(*args, **kwargs)
            single = isinstance(expected, Tensor)
            self.by_form[call.form] = self._find_session(call, (expected,) if single else expected), single
        session, single = self.by_form[call.form]
        out = run_graph(session, call.tensors)
        return out[0] if single else out

    def _find_session(self, call: Call, expected: Sequence[Tensor]) -> InferenceSession:
        """Find or make a graph that gives the expected outputs."""
        for session in self.sessions:
            if _agrees(session, call, expected):
                return session
        reason = "its outputs differ from those of the module"
        for any_size in (True, False):
            try:
                session = open_graph(make_graph(self.module, call, any_size=any_size))
            except Exception as error:  # the exporter raises errors of all kinds
                reason = (str(error).strip() or type(error).__name__).splitlines()[0]
                continue
            if _agrees(session, call, expected):
                self.sessions.append(session)
                return session
        raise UserError(f"engine 'onnx' cannot compute {self.name} ({reason}); use the engine compile or eager")


def _agrees(session: InferenceSession, call: Call, expected: Sequence[Tensor]) -> bool:
    try:
        got = run_graph(session, call.tensors)
    except Exception:  # a graph of another size or of other inputs
        return False
    return len(got) == len(expected) and all(
        a.shape == b.shape and bool((a - b).abs().max() <= TOLERANCE * b.abs().max().clamp(min=1))
        for a, b in zip(got, expected, strict=True)
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter, whose messages are for its developers."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
