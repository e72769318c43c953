"""The predictions of a posterior as one module, for torch.export and ONNX."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import BaseTorchFunctionMode

from bayesrule.expectations import Expectation, Look
from bayesrule.learner import Learner
from bayesrule.likelihoods import Likelihood
from bayesrule.moments import Activations, Propagation
from bayesrule.predicting.model_files import WRITERS, quiet
from bayesrule.predicting.outputs import Outputs
from bayesrule.predicting.predict import How, States, as_inputs, as_states, independent_variances
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import seeds
from bayesrule.tensors.inputs import Inputs, arguments, mapped, num_examples
from bayesrule.tensors.network import Network
from bayesrule.tensors.unfit import check_outputs, wide
from bayesrule.types import Params, State

# With fewer examples torch takes their number for a constant.
_EXAMPLES = 2


class Buffers(nn.Module):
    """Tensors by name, as buffers that are named as in the module they came from."""

    def __init__(self, tensors: Params) -> None:
        super().__init__()
        self._names = list(tensors)
        for name, value in tensors.items():
            *path, key = name.split(".")
            at: nn.Module = self
            for part in path:
                if part not in at._modules:
                    at.add_module(part, nn.Module())
                at = at.get_submodule(part)
            at.register_buffer(key, value.detach().clone())

    def tensors(self) -> Params:
        """The tensors by name."""
        return {name: self.get_buffer(name) for name in self._names}


class _AtPoints(nn.Module):
    """The outputs at K points of a posterior, whose weights are stacked."""

    def __init__(self, network: Network, buffers: Params, points: list[Params]) -> None:
        super().__init__()
        self.network, self.num = network, len(points)
        self.fixed = Buffers(buffers)
        self.weights = Buffers({k: torch.stack([p[k] for p in points]) for k in points[0]})
        self.together = True

    def forward(self, x: Inputs) -> Outputs:
        buffers, weights = self.fixed.tensors(), self.weights.tensors()

        def at(params: Params) -> Tensor:
            # Under any mode torch avoids its fused layers, which cannot be exported.
            with BaseTorchFunctionMode():
                return wide(self.network(params, dict(buffers), x, training=False))

        if self.together:
            return Outputs(torch.vmap(at)(weights))
        draws = ({name: value[k] for name, value in weights.items()} for k in range(self.num))
        return Outputs(torch.stack([at(params) for params in draws]))


class _Propagated(nn.Module):
    """Means and variances of the outputs, carried through the module in closed form."""

    def __init__(
        self, network: Network, buffers: Params, moments: tuple[Params, Params], how: Activations
    ) -> None:
        super().__init__()
        self.network, self.activations = network, how
        self.fixed = Buffers(buffers)
        self.mean, self.variance = map(Buffers, moments)

    def forward(self, x: Inputs) -> Outputs:
        tensors = self.mean.tensors(), self.variance.tensors(), self.fixed.tensors()
        propagation = Propagation(self.network, self.activations, record=False)
        outputs = propagation.run(*tensors, x, training=False)
        return Outputs(outputs.centre, outputs.variance)


class _Member(nn.Module):
    """The predictions of one state: the network's outputs and the likelihood's learned state."""

    def __init__(self, outputs: nn.Module, likelihood: Likelihood, state: Params) -> None:
        super().__init__()
        self.outputs, self.likelihood, self.learned = outputs, likelihood, Buffers(state)

    def forward(self, x: Inputs) -> Prediction:
        return self.outputs(x).prediction(self.likelihood, self.learned.tensors())


class Exported(nn.Module):
    """The predictions of a posterior as one module, whose buffers are the weights.

    It is called like the trained module, with any number of examples, and returns a dict of
    tensors: `mean`, `epistemic` and `aleatoric` (n, *), as in a `Prediction`; for classes and
    yes-or-no answers `probs` (n, C), `entropy` and `mutual_information` (n,). Calibration is
    applied.

    The prediction is the equal mixture of those of its `members`; most runs have one. `example` are
    some inputs.
    """

    def __init__(
        self, members: Iterable[nn.Module], likelihood: Likelihood, example: Inputs
    ) -> None:
        super().__init__()
        self.members, self.likelihood = nn.ModuleList(members), likelihood
        self.example, self._units = example, (0.0, 1.0)
        self.eval()

    def rescaled(self, shift: float, scale: float) -> Exported:
        """The model for targets that were standardised: it predicts `shift + scale · y`."""
        model = Exported(self.members, self.likelihood, self.example)
        model._units = (shift, scale)
        return model

    def forward(self, *args: Any, **named: Any) -> dict[str, Tensor]:
        """The predictions."""
        x: Any = named or (args[0] if isinstance(self.example, Tensor) else args)
        prediction = Prediction.pooled([member(x) for member in self.members])
        if self._units != (0.0, 1.0):
            prediction = prediction.rescaled(*self._units)
        return figures(prediction)

    def extra_repr(self) -> str:
        return f"likelihood={self.likelihood!r}"

    def program(self) -> torch.export.ExportedProgram:
        """The graph as torch.export keeps it, which runs without this library."""
        from torch._dynamo.exc import UserError  # takes as long as the rest of the library

        with quiet(), torch.no_grad():
            try:
                return self._traced()
            except UserError:
                # Some layers can be mapped over weights only for a fixed number of examples.
                together = [m for m in self.modules() if isinstance(m, _AtPoints) and m.together]
                if not together:
                    raise
                try:
                    for module in together:
                        module.together = False
                    return self._traced()
                finally:
                    for module in together:
                        module.together = True

    def _traced(self) -> torch.export.ExportedProgram:
        args, named = arguments(self.example)
        sizes: Any = {"args": tuple(map(_any_number, args))}
        module: nn.Module = self
        if named:
            sizes, module = {k: _any_number(x) for k, x in named.items()}, _ByName(self, named)
        program = torch.export.export(
            module, tuple(args), dict(named), dynamic_shapes=sizes, strict=False
        )
        return program.run_decompositions({})

    def write(self, path: str | os.PathLike[str], notes: Mapping[str, str] | None = None) -> Path:
        """Writes the graph: `.onnx` for any runtime of ONNX, `.pt2` for `torch.export.load`.

        `notes` are texts that the file carries along.
        """
        file = Path(path)
        if file.suffix not in WRITERS:
            raise ValueError(f"An exported model is an .onnx or a .pt2 file, got '{file}'.")
        WRITERS[file.suffix](self.program(), file, dict(notes or {}))
        return file


class _ByName(nn.Module):
    """A module with named arguments in its signature, which torch needs to give them shapes."""

    def __init__(self, model: nn.Module, names: Iterable[str]) -> None:
        super().__init__()
        self.model = model

        def forward(**named: Tensor) -> Any:
            return model(**named)

        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters = [inspect.Parameter(name, kind) for name in names]
        forward.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        self.forward = forward


def _any_number(x: Any) -> Any:
    """Marks an input, or a nest of inputs, as having any number of examples."""
    return mapped(x, lambda _: {0: torch.export.Dim.DYNAMIC})


def figures(prediction: Prediction) -> dict[str, Tensor]:
    """What an exported model returns of a prediction."""
    many_targets = prediction.mean[0].numel() > 1 and not prediction.components.class_numbers
    if prediction.classification and not many_targets:
        return {
            "probs": prediction.probs,
            "entropy": prediction.entropy,
            "mutual_information": prediction.mutual_information,
        }
    return {name: getattr(prediction, name) for name in ("mean", "epistemic", "aleatoric")}


@torch.no_grad()
def exported(
    learner: Learner, state: States, example: Any, how: How | None = None, *, seed: int = 0
) -> Exported:
    """The predictions of `predict(learner, state, x, how, seed=seed)` as one module.

    `example` are some inputs, of which only the form matters. `how` is `Draws(num)`, `AtMean()` or
    `Moments()`; None takes the learner's default. Draws are made here, once, and run side by side.

    >>> from bayesrule import Draws, GaussianLikelihood, vogn
    >>> learner = vogn(nn.Linear(2, 1), GaussianLikelihood(noise=1.0), num_data=10)
    >>> module = exported(learner, learner.init(), torch.zeros(3, 2), Draws(8))
    >>> module(torch.zeros(5, 2))["mean"].shape
    torch.Size([5, 1])
    """
    chosen: Any = how or learner.predictive
    states = as_states(state)
    x = _at_least_two(as_inputs(example, states[0]))
    members = [_member(learner, member, x, chosen, seed) for member in states]
    made = Exported(members, learner.likelihood, x)
    # What likelihoods keep for later must not be made while a graph is traced.
    args, named = arguments(x)
    made(*args, **named)
    return made


def _member(learner: Learner, state: State, x: Inputs, chosen: Any, seed: int) -> _Member:
    """The predictions from one state."""
    state.check()
    if getattr(chosen, "look", None) is Look.MOMENTS:
        moments = state.posterior.mean, independent_variances(state)
        activations = chosen.as_learned(learner.expectation).carried
        core: nn.Module = _Propagated(learner.network, state.buffers, moments, activations)
    else:
        core = _AtPoints(learner.network, state.buffers, _points(chosen, state, seed))
        core.together = _runs_together(core, x)
    return _Member(core, learner.likelihood, state.likelihood)


def _points(how: Any, state: State, seed: int) -> list[Params]:
    """The weights at each point of an expectation, those that `predict` would take."""
    if not isinstance(how, Expectation) or how.look is not Look.WEIGHTS:
        raise TypeError(
            f"A posterior is exported at draws of its weights, how=Draws(32), at its mean, how="
            f"AtMean(), or by how=Moments(), got {how!r}."
        )
    generator = seeds.generator(state.posterior.device, seed, 0)
    return [point.plain for point in how.points(state.posterior, generator, tracked=False)]


def _runs_together(core: _AtPoints, x: Inputs) -> bool:
    """Whether the module can be mapped over its weights; raises for outputs of a wrong kind."""
    core.together = False
    looped = core(x).values
    for outputs in looped:
        check_outputs(outputs, num_examples(x))
    core.together = True
    try:
        # torch warns of an operation that it cannot map, and would itself call in a loop.
        with warnings.catch_warnings(action="error"):
            return looped.shape == core(x).values.shape
    except (RuntimeError, UserWarning):
        return False


def _at_least_two(x: Inputs) -> Inputs:
    """At least two examples, so that torch does not take their number for a constant."""
    if num_examples(x) >= _EXAMPLES:
        return x
    return mapped(x, lambda part: torch.cat([part] * _EXAMPLES))
