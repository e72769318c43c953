"""Thompson draws: functions drawn from a belief, fixed for an episode or for one step."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Generator, Tensor, nn

from bayesrule.expectations import Expectation, Look
from bayesrule.explore.information import gaussian_outputs, refuse_mean_only
from bayesrule.learner import Learner
from bayesrule.posteriors import Posterior
from bayesrule.predicting.predict import How, believed_outputs
from bayesrule.tensors import seeds
from bayesrule.types import Params, State


class DrawnFunction:
    """A function drawn from the belief, to act by for an episode; for every posterior.

    It is the network at weights that were drawn once, so every call evaluates the same function. A
    call is one forward pass of a copy of the module, in evaluation mode, without gradients. One
    seed and state always give the same function; `redraw` draws other weights, from this or a later
    state, into the same copy. Thompson (1933); for whole episodes Osband et al. (2013).

    >>> from bayesrule import GaussianLikelihood, vogn
    >>> learner = vogn(nn.Linear(2, 3), GaussianLikelihood(noise=0.1), num_data=10)
    >>> act = draw_function(learner, learner.init(), seed=1)
    >>> x = torch.ones(1, 2)
    >>> torch.equal(act(x), act(x)), act(x).shape
    (True, torch.Size([1, 3]))
    """

    def __init__(self, learner: Learner, state: State, *, seed: int = 0) -> None:
        self._module: nn.Module = copy.deepcopy(learner.model).requires_grad_(False).eval()
        if not getattr(learner.predictive, "sees_spread", True):
            raise ValueError(
                "This learner predicts with the mean of its weights, so all draws would be one "
                "function. Use a method with a belief, such as vogn, laplace or tagi."
            )
        self._how = learner.predictive
        named = dict(self._module.named_parameters()) | dict(self._module.named_buffers())
        self._tensors: dict[str, Tensor] = named
        self.redraw(state, seed=seed)

    @torch.no_grad()
    def redraw(self, state: State, *, seed: int) -> None:
        """Draws the weights of the next episode."""
        state.check()
        generator = seeds.generator(state.posterior.device, seed, state.step)
        drawn = self._drawn(state.posterior, generator)
        for name, value in {**state.buffers, **drawn}.items():
            self._tensors[name].copy_(value)

    def _drawn(self, posterior: Posterior, generator: Generator) -> Params:
        """Weights as the learner's predictions draw them, such as masked means for dropout."""
        how = self._how
        # Linearised predictions and propagated moments have no draws; the belief has.
        if isinstance(how, Expectation) and how.look is Look.WEIGHTS:
            return next(iter(how.points(posterior, generator, tracked=False))).params
        return posterior.sample(generator)

    @torch.inference_mode()
    def __call__(self, *x: Tensor) -> Any:
        """The outputs (n, *) for inputs (n, *), tensors on the network's device."""
        return self._module(*x)


draw_function = DrawnFunction


@torch.no_grad()
def draw_marginals(
    learner: Learner, state: State, x: Any, how: How | None = None, *, seed: int = 0
) -> Tensor:
    """One draw of the outputs (n, *) at each input, independent of the other inputs.

    It suits decisions that are taken one step at a time. Gaussian outputs are drawn in closed form;
    outputs known at K weight draws are taken from a random one of them. `how` as in `br.predict`.
    """
    refuse_mean_only(how or learner.predictive, "how=Draws(32)")
    outputs = believed_outputs(learner, state, x, how, seed=seed).seen(state.likelihood)
    if outputs.variance is not None:
        return gaussian_outputs(outputs, 1, seed, state.step)[0]
    values = outputs.values
    generator = seeds.generator(values.device, seed, state.step)
    num, n = values.shape[:2]
    chosen = torch.randint(num, (n,), generator=generator, device=values.device)
    return values[chosen, torch.arange(n, device=values.device)]
