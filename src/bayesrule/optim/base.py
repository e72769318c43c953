"""A torch optimiser that keeps a Gaussian posterior over the parameters."""

from __future__ import annotations

import dataclasses
import itertools
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import Optimizer, ParamsT

from bayesrule.curvature import Curvature
from bayesrule.expectations import Expectation, Look
from bayesrule.matrices import Diagonal, DiagonalMatrix
from bayesrule.optim.blocks import PREVIEW, TRAINING, Blocks, Open, norms, unfit
from bayesrule.optim.parts import Part, gradient_of, label_of, numbered, parts_of, set_grads
from bayesrule.posteriors import Gaussian, GaussianFamily, GaussianPrior
from bayesrule.rules import Memory, Natural
from bayesrule.tensors import vectors
from bayesrule.types import Derivatives, Params


class BayesianOptimizer(Optimizer):
    """A posterior over the parameters, updated by gradients that your own loop computes.

    Inside a `sampled_params()` block the weights are a draw. `step()` updates the posterior by the
    mean gradient of all blocks since the last step. To accumulate gradients of several batches, use
    a block for each with its batch-mean loss, not divided by the number of batches. Backward passes
    within one block add up, as usual in torch. Gradients computed before a block, at the mean, are
    refused; `zero_grad()` outside a block discards the blocks before it. Clipping and unscaling
    between a block and the step act on the curvature too. Methods that evaluate the loss at the
    mean need no block.

    - `num_data`: the number of examples of the whole data set.
    - `prior_precision`: of the prior N(0, I / prior_precision). Each group may have its own, and
      its own `lr`; the rule's learning rate is the initial `lr` of every group.
    - `temperature`: T in `E[loss] / T + KL`; below 1 the data count more.
    - `seed`: determines all draws, with the step. The processes of a data-parallel run draw the
      same weights, so that their averaged gradient belongs to one draw.

    Frozen parameters do not change. A parameter whose `.grad` is None has gradient zero, so only
    its prior acts. The posterior of a half-precision weight is kept in single precision. Save
    between steps: the gradients and curvature of blocks are not part of `state_dict()`.
    """

    _open: Open | None
    _preview: Blocks

    def __init__(
        self,
        params: ParamsT,
        *,
        num_data: int,
        prior_precision: float = 1.0,
        temperature: float = 1.0,
        seed: int = 0,
        posterior: GaussianFamily,
        expectation: Expectation,
        curvature: Curvature,
        rule: Natural,
    ) -> None:
        _check(posterior, expectation, curvature, rule)
        if not (num_data > 0 and temperature > 0 and math.isfinite(num_data / temperature)):
            raise ValueError(
                "num_data, the size of the data set, and temperature must be positive, got "
                f"num_data={num_data} and temperature={temperature}."
            )
        self.family, self.expectation = posterior, expectation
        self.curvature, self.rule = curvature, rule
        self.weight = num_data / temperature
        self._reset()
        first = {"lr": rule.learning_rate, "prior_precision": prior_precision}
        super().__init__(params, {**first, "seed": int(seed), "step": 0})

    @property
    def posterior(self) -> Gaussian:
        """The posterior over the trainable parameters, by name if they were given by name.

        Without names the keys are the positions "0", "1", ... over all groups.
        """
        self._outside("posterior")
        mean: Params = {}
        precision: Params = {}
        for part in self._parts():
            posterior, _ = self._belief(part)
            mean |= posterior.mean
            precision |= posterior.precision.diagonal()
        order = {name: label_of(self.param_groups, name) for name in sorted(mean, key=int)}
        matrix = DiagonalMatrix({label: precision[name] for name, label in order.items()})
        return Gaussian({label: mean[name] for name, label in order.items()}, matrix)

    @contextmanager
    def sampled_params(self, train: bool = True, add: bool = False) -> Iterator[None]:
        """Replaces the weights by a draw inside the block; afterwards they are the mean again.

        With `train=False` the draw is for predictions: its gradients do not count, and training's
        random stream does not advance. With `add=True` gradients of blocks are added instead of
        averaged, for losses that are already divided by the number of batches.
        """
        self.begin_draw(train, add)
        try:
            yield
        except BaseException:
            self.end_draw(keep=False)
            raise
        self.end_draw()

    def begin_draw(self, train: bool = True, add: bool = False) -> None:
        """Opens a block of `sampled_params`, for loops that cannot use `with`; see `end_draw`."""
        self._outside("sampled_params()")
        parts = self._parts()
        params = _all(parts)
        before = {name: p.grad for name, p in params.items()}
        if train and all(grad is None for grad in before.values()):
            # The module's own zero_grad() discards the blocks before it, as the optimiser's does.
            self._blocks.forget()
        if train and not self._blocks.count:
            self._refuse_outside(params)
        blocks = self._blocks if train else self._preview
        draws = [blocks.draw(part, self._belief(part)[0], self.expectation) for part in parts]
        self._open = Open(params, before, draws, train, add, self.expectation.random)
        self._open.enter()

    def end_draw(self, keep: bool = True) -> None:
        """Closes the block: the weights are the mean again; with `keep` its gradient counts."""
        if self._open is None:
            return
        block, self._open = self._open, None
        try:
            if keep and block.train:
                self._collect(block)
            elif not keep:
                set_grads(block.params, block.before)
        except BaseException:
            set_grads(block.params, block.before)
            raise
        finally:
            block.leave()

    def rewind(self) -> None:
        """Restarts the draws for predictions, so that they are the same each time."""
        self._preview = Blocks(PREVIEW)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates the posterior and sets the weights to its mean; returns the closure's result.

        A closure (zero_grad, loss, backward, return the loss) runs in a block of its own, once for
        each point of the expectation; with several points, the mean loss is returned. If a block is
        already open, the closure runs once, in that block, and has to end it (`end_draw`).
        """
        loss = None if closure is None else self._call(closure)
        self._outside("step()")
        parts = self._parts()
        self._check_gradients(_all(parts))
        derivatives = [self._derivatives(part) for part in parts]
        for part, derivative in zip(parts, derivatives, strict=True):
            posterior, memory = self._belief(part)
            rule = dataclasses.replace(self.rule, learning_rate=float(part.group["lr"]))
            prior = GaussianPrior(part.group["prior_precision"])
            new, memory = rule.step(posterior, derivative, prior, memory, part.step)
            part.keep(self.state, new.coordinates(), memory)
        for group in self.param_groups:
            group["step"] += 1
        self._reset()
        self._spend()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discards gradients: outside a block all of them, inside a block those of the block."""
        super().zero_grad(set_to_none)
        if self._open is None:
            self._blocks.forget()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds parameters; their posterior starts from their values, at step 0."""
        group = {**self.defaults, **param_group}
        for name in ("lr", "prior_precision"):
            if not isinstance(group[name], int | float | Tensor) or not 0 <= group[name] < math.inf:
                raise ValueError(
                    f"{name} takes a number that is not negative, got {group[name]!r}; for a "
                    "schedule of lr use torch.optim.lr_scheduler."
                )
        super().add_param_group(param_group)
        self._spend()
        for name, p in numbered(self.param_groups):
            if p.requires_grad and not p.isfinite().all():
                label = label_of(self.param_groups, name)
                raise ValueError(
                    f"Parameter {label!r} is not finite; a belief has to start from finite numbers."
                )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads what `state_dict()` returned, so that training continues as if uninterrupted."""
        self._outside("load_state_dict()")
        for group in state_dict["param_groups"]:
            if missing := sorted({"lr", "prior_precision", "seed", "step"} - set(group)):
                raise ValueError(
                    f"This is not the state of a {type(self).__name__}: its groups have no "
                    f"{', '.join(missing)}. Load what state_dict() of this class returned."
                )
        super().load_state_dict(state_dict)
        saved = itertools.chain.from_iterable(g["params"] for g in state_dict["param_groups"])
        for place, (_, p) in zip(saved, numbered(self.param_groups), strict=True):
            # torch rounds state to the dtype of the parameter; the posterior's is wider.
            for key, value in state_dict["state"].get(place, {}).items():
                self.state[p][key] = value.to(p.device) if isinstance(value, Tensor) else value
        self._spend()

    def __getstate__(self) -> dict[str, Any]:
        names = ("family", "expectation", "curvature", "rule", "weight")
        return {**super().__getstate__(), **{name: getattr(self, name) for name in names}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._reset()

    def _reset(self) -> None:
        self._open = None
        self._spent: dict[str, tuple[weakref.ref[Tensor], int]] = {}
        self._blocks: Blocks = Blocks(TRAINING)
        self._preview = Blocks(PREVIEW)

    def _spend(self) -> None:
        """Records that the present gradients do not belong to the next step."""
        grads = {name: p.grad for name, p in numbered(self.param_groups) if p.grad is not None}
        self._spent = {name: (weakref.ref(grad), grad._version) for name, grad in grads.items()}

    def _outside(self, what: str) -> None:
        if self._open is not None:
            raise RuntimeError(
                f"{what} was called inside a sampled_params() block, where the weights are a "
                "draw; leave the block first. (step(closure) opens the block for its closure.)"
            )

    def _parts(self) -> list[Part]:
        return parts_of(self.param_groups, self.state)

    def _belief(self, part: Part) -> tuple[Gaussian, Memory]:
        return part.belief(self.state, self.family, self.rule, self.weight)

    @torch.no_grad()
    def _collect(self, block: Open) -> None:
        """Joins the gradients of this block with those of the blocks before it."""
        params = block.params
        if all(p.grad is None for p in params.values()):
            set_grads(params, block.before)
            return
        gradient = self._gradient(params)
        curvature: Params = {}
        for draw in block.draws:
            if self.curvature.needs_draws:
                names = draw.posterior.mean
                curvature |= draw.point.price({k: gradient[k] for k in names}).diagonal()
        if self._blocks.count:
            earlier = gradient_of(params, block.before)
            set_grads(params, self._blocks.joined(earlier, gradient, curvature, block.add))
        else:
            self._blocks.start(curvature)
        self._blocks.norms = norms(self._gradient(params))

    def _gradient(self, params: Params) -> Params:
        for name, p in params.items():
            if p.grad is not None and p.grad.layout != torch.strided:
                raise TypeError(
                    f"Parameter {label_of(self.param_groups, name)!r} has a gradient of layout "
                    f"{p.grad.layout}; only dense ones are taken: build its layer sparse=False."
                )
        return gradient_of(params, {name: p.grad for name, p in params.items()})

    def _derivatives(self, part: Part) -> Derivatives:
        """The derivatives of the whole data set's loss, from those of the batch-mean loss."""
        gradient, curvature = self._gradient(part.params), None
        if self.curvature.needs_draws:
            curvature = DiagonalMatrix(self._blocks.shrunk(gradient)).times(self.weight)
        unknown, gradient = torch.tensor(math.nan), vectors.scale(gradient, self.weight)
        derivatives = Derivatives(unknown, gradient, curvature, self.weight)
        return self.curvature.complete(derivatives, Diagonal())

    def _check_gradients(self, params: Params) -> None:
        if self.expectation.random and self._blocks.count == 0:
            raise RuntimeError(
                "step() found no gradient at a draw: run the model and loss.backward() inside "
                "`with optimizer.sampled_params():` first."
            )
        if all(p.grad is None for p in params.values()):
            raise RuntimeError("step() found no gradient: call loss.backward() first.")
        if self._blocks.count:
            self._blocks.check(params)
        for name in unfit(params):
            raise ValueError(
                f"The gradient of parameter {label_of(self.param_groups, name)!r} is not finite, "
                "so step() would spoil the belief. Look for NaN or infinite numbers in the batch "
                "and the loss; with a GradScaler call scaler.step(optimizer), which skips it."
            )

    def _refuse_outside(self, params: Params) -> None:
        """Refuses gradients that were computed since the last step outside of any block."""
        for name, p in params.items():
            spent, version = self._spent.get(name, (lambda: None, 0))
            if p.grad is None or (spent() is p.grad and p.grad._version == version):
                continue
            if p.grad.any():
                raise RuntimeError(
                    f"Parameter {label_of(self.param_groups, name)!r} has a gradient from outside "
                    "of sampled_params(), at other weights than a draw. Run every forward and "
                    "backward pass of a step in a block of its own (to accumulate gradients, a "
                    "block for each batch), or call zero_grad() before the block."
                )

    def _call(self, closure: Callable[[], Any]) -> Any:
        if self._open is not None:
            with torch.enable_grad():
                return closure()
        losses = []
        for _ in range(self.expectation.num):
            with self.sampled_params(), torch.enable_grad():
                losses.append(closure())
        return losses[0] if len(losses) == 1 else sum(losses) / len(losses)


def _all(parts: list[Part]) -> Params:
    return {name: p for part in parts for name, p in part.params.items()}


def _check(
    family: GaussianFamily, expectation: Expectation, curvature: Curvature, rule: Natural
) -> None:
    """Refuses parts that do not fit an optimiser; the error says what to use instead."""
    if curvature.needs_rows or curvature.look is not Look.WEIGHTS or not curvature.from_gradient:
        raise TypeError(
            f"An optimiser sees only .grad, which is not enough for {curvature!r}; use Price(), "
            "SquaredGradient() or NoCurvature(), or a Learner, which sees single examples."
        )
    # `step` sets the fields of this rule, so no other rule works.
    if not isinstance(rule, Natural):
        raise TypeError(f"rule takes a Natural(...), got {rule!r}.")
    rule.check(family, expectation, curvature)
    if not family.structure.elementwise:
        raise TypeError(
            f"An optimiser keeps one precision for each weight, got {family.structure!r}; use "
            "GaussianFamily(Diagonal()), or a Learner for other structures."
        )
