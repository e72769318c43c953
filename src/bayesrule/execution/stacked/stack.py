"""Trains many nets of one architecture at once, each with its own weights and data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bayesrule.curvature.first_look import first_look
from bayesrule.execution.stacked.obstacles import layered, obstacle, ragged_obstacle
from bayesrule.execution.stacked.problem import StackedProblem
from bayesrule.execution.stacked.ragged import examples_with_targets, filled_up, first_examples
from bayesrule.execution.stacked.states import initialised, seeds_of, single, together
from bayesrule.learner import Learner
from bayesrule.moments import GaussianTensor
from bayesrule.predicting.predict import predict
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import seeds
from bayesrule.tensors.chain import Chain
from bayesrule.tensors.inputs import Inputs, parts
from bayesrule.tensors.network import copies, forked_randomness
from bayesrule.tensors.randomness import Generators
from bayesrule.tensors.step_randomness import DRAWS, MODULE, TARGETS, Streams
from bayesrule.tensors.unfit import with_gradients
from bayesrule.types import Info, State


class Stacked:
    """`num` nets of one learner, stepped together for little more than the cost of one.

    A stacked state is a State whose tensors, and seeds, have the nets along their first axis. Each
    net has its own data and gets the random numbers that it would get alone, with two exceptions of
    the same distribution but other values: what the module itself draws (dropout), and weights
    drawn in eigenbases (`noisy_ekfac`, and `noisy_kfac` with `inverse_every` above 1), because
    eigenvectors of equal eigenvalues are not unique. A row whose targets are all NaN is padding and
    teaches nothing; on a GPU, where searching for such rows would be slow, give `sizes` to `step`
    instead. `num_data` may differ from net to net.

    Nets of linear layers and activations run by batched products, with all weight draws of a step
    at once; others by `torch.vmap`. `obstacle(learner)` of `execution.stacked.obstacles` says why a
    learner's nets cannot be stepped together.

    >>> from torch import nn
    >>> from bayesrule import GaussianLikelihood, vogn
    >>> learner = vogn(nn.Linear(3, 1), GaussianLikelihood(noise=0.1), num_data=100)
    >>> stack = Stacked(learner, 20)
    >>> state = stack.init(range(20))
    >>> state, info = stack.step(state, (torch.zeros(20, 10, 3), torch.zeros(20, 10, 1)))
    >>> info.loss.shape, len(stack.predict(state, torch.zeros(20, 4, 3)))
    (torch.Size([20]), 20)
    """

    def __init__(
        self,
        learner: Learner,
        num: int,
        *,
        num_data: Sequence[float] | None = None,
        temperatures: Sequence[float] | None = None,
    ) -> None:
        if not isinstance(learner, Learner):
            raise TypeError(f"A stack is made of a Learner, got {type(learner).__name__}.")
        problem = obstacle(learner)
        if problem is not None:
            raise TypeError(
                f"The nets of this learner cannot be stepped together because of {problem}. "
                "fit_many trains such nets one by one; joblib does on many cores "
                "(docs/clusters.md)."
            )
        if num < 1:
            raise ValueError(f"A stack has at least one net, got {num}.")
        self.learner, self.num = learner, int(num)
        self.num_data = self._each(num_data, "num_data", learner.num_data)
        if temperatures is None:
            temperatures = [learner.temperature_for(number) for number in self.num_data]
        self.temperatures = self._each(temperatures, "temperature", learner.temperature)
        self._chain = Chain.of(learner.network)
        self._placed: dict[str, Tensor] = {}

    def _each(self, values: Sequence[float] | None, name: str, default: float) -> list[float]:
        """One number for each net; `default` is the learner's."""
        each = [default] * self.num if values is None else list(values)
        if len(each) != self.num or not min(each) > 0:
            raise ValueError(f"{self.num} nets need {self.num} positive {name}, got {each}.")
        problem = ragged_obstacle(self.learner)
        if len(set(each)) > 1 and problem is not None:
            raise ValueError(f"All nets need the same {name}, since {problem}; got {each}.")
        if not self.learner.curvature.whole_data and each[0] != default:
            raise ValueError(f"The learner has {name}={default}, got {each[0]}.")
        return each

    @property
    def weights(self) -> list[float]:
        """`num_data / temperature` of each net."""
        pairs = zip(self.num_data, self.temperatures, strict=True)
        return [num_data / temperature for num_data, temperature in pairs]

    def init(self, seeds: int | Sequence[int] = 0) -> State:
        """The first state: initialises each net as its module does, under the net's seed.

        A single seed gives the nets consecutive seeds, starting from it.
        """
        numbers = list(range(seeds, seeds + self.num) if isinstance(seeds, int) else seeds)
        if len(numbers) != self.num:
            raise ValueError(f"There are {self.num} nets but {len(numbers)} seeds.")
        states = []
        for seed, weight in zip(numbers, self.weights, strict=True):
            network = initialised(self.learner.model, seed)
            states.append(self.learner.first_state(network, weight, seed))
        return self.stack(states)

    def stack(self, states: Sequence[State]) -> State:
        """One state from those of single nets after the same number of steps."""
        if len(states) != self.num or len({state.step for state in states}) != 1:
            steps = sorted({state.step for state in states})
            raise ValueError(
                f"A stack of {self.num} takes {self.num} states of one step, got {len(states)} of "
                f"the steps {steps}."
            )
        return together(states)

    def unstack(self, state: State) -> list[State]:
        """Ordinary states, one for each net, for `br.predict` and `learner.step`."""
        return [single(state, which) for which in range(self.num)]

    def predict(self, state: State, x: Any, **options: Any) -> list[Prediction]:
        """Each net's prediction for its inputs x (num, n, *); `options` are those of `br.predict`.

        If all nets have the same inputs, give `x.expand(num, *x.shape)`.
        """
        if len(x) != self.num:
            raise ValueError(f"{self.num} nets take inputs ({self.num}, n, ...), got {len(x)}.")
        pairs = zip(self.unstack(state), x, strict=True)
        return [predict(self.learner, *pair, **options) for pair in pairs]

    @with_gradients
    def step(
        self,
        state: State,
        batch: tuple[Inputs, Tensor],
        *,
        sizes: Sequence[int] | None = None,
        donate: bool = False,
    ) -> tuple[State, Info]:
        """The next state from x (num, n, *) and y (num, n, *); `info.loss` has one loss per net.

        `sizes` says how many of the n examples are each net's own; the rest is padding with any
        contents. With `donate` the caller gives up the old state, whose memory is reused.
        """
        state = self.begun(state, batch, sizes)
        problem = self.problem(state, batch, sizes=sizes)
        new, info = self.learner.advance(state, problem, donate=donate)
        again = partial(self.problem, batch=batch, sizes=sizes)
        return new, self.info(info.loss, new, again)

    def info(
        self, loss: Tensor, state: State, again: Any, is_current: Callable[[], bool] | None = None
    ) -> Info:
        """As `Learner.info`, with the divergence and the temperature of each net."""
        temperature = self._number("temperature", self.temperatures, state.posterior.any_tensor)
        after = partial(self.learner.loss_after, again)
        return Info.of(loss, state, self.kl, after, temperature, is_current)

    def begun(self, state: State, batch: Any, sizes: Sequence[int] | None = None) -> State:
        """As `Learner.begun`, for each net by its own examples."""
        if state.step > 0 or not self.learner.family.looks_first:
            return state
        looks = first_look(self.problem(state, batch, sizes=sizes), state.posterior)
        nets = zip(self.unstack(state), looks, self.weights, strict=True)
        return self.stack([self.learner.begun_at(*net) for net in nets])

    def problem(
        self,
        state: State,
        batch: tuple[Inputs, Tensor],
        *,
        sizes: Sequence[int] | None = None,
        streams: Streams | None = None,
    ) -> StackedProblem:
        """The batches of all nets, with the weights and random streams of this step."""
        (x, y), learner, chain = batch, self.learner, self._chain
        self.size(x, y)
        y = learner.likelihood.weighed(y)
        present = self._present(y, sizes)
        if present is not None:
            x, y = filled_up(x, present), filled_up(y, present)
        like = next(iter(state.posterior.mean.values()))
        chain = chain if chain is not None and chain.takes(x) else None
        if chain is None and layered(learner):
            shape = tuple(x.shape) if isinstance(x, Tensor) else "several inputs"
            raise ValueError(
                "Nets whose covariance has two factors for each layer are stepped together with "
                f"inputs (num, n, features), got {shape}; others are trained one by one."
            )
        targets, draws, module = streams or self._streams(state, like.device, present, chain)
        return StackedProblem(
            learner.network,
            learner.likelihood,
            state.likelihood,
            dict(state.buffers) if streams else copies(state.buffers),
            x,
            y,
            targets,
            draws,
            weight=self._number("weight", self.weights, like),
            count=y.shape[1] if present is None else present.sum(1).to(like.dtype),
            num_points=learner.expectation.num,
            temperature=self._number("temperature", self.temperatures, like),
            module_randomness=module,
            present=present,
            chain=chain,
        )

    def _number(self, name: str, each: list[float], like: Tensor) -> float | Tensor:
        """One number if it is the same for all nets, else one for each net, (num,)."""
        if len(set(each)) == 1:
            return each[0]
        if name not in self._placed or self._placed[name].device != like.device:
            self._placed[name] = like.new_tensor(each)
        return self._placed[name]

    def _present(self, y: Tensor, sizes: Sequence[int] | None) -> Tensor | None:
        """A mask (num, n) of each net's own examples; None if there is no padding."""
        if not self.learner.curvature.whole_data:
            if sizes is not None and set(sizes) != {y.shape[1]}:
                raise ValueError("Batches of tagi are filled up with NaN targets, not by sizes.")
            return None
        present = examples_with_targets(y) if sizes is None else first_examples(sizes, *y.shape[:2])
        if present is None:
            return None
        if problem := ragged_obstacle(self.learner):
            raise ValueError(f"Batches that differ in size cannot be stacked, since {problem}.")
        return present.to(y.device)

    def _streams(
        self, state: State, device: torch.device, present: Tensor | None, chain: Chain | None
    ) -> Streams:
        """Generators of targets and weights: those that each net would have alone."""

        def keys(stream: int) -> list[int]:
            return [seeds.key(seed, state.step, stream) for seed in seeds_of(state)]

        targets = Generators(device, partial(keys, TARGETS), present)
        draws = Generators(device, partial(keys, DRAWS))
        if chain is not None:
            return targets, draws, nullcontext  # A chain draws nothing itself.
        key = seeds.key(seeds_of(state)[0], state.step, MODULE)
        return targets, draws, partial(forked_randomness, device, key)

    def kl(self, state: State) -> Tensor:
        """`KL(q ‖ prior)` of each net, (num,)."""
        return torch.stack([self.learner.divergence(net) for net in self.unstack(state)])

    def size(self, x: Inputs, y: Tensor) -> int:
        """The number of examples of each net; checks that all parts are (num, n, ...)."""
        for part in (*parts(x), y):
            if part is not y and isinstance(part, GaussianTensor):
                raise TypeError("Stacked nets take plain inputs; uncertain ones go one by one.")
            if part.ndim < 2 or part.shape[0] != self.num or part.shape[1] != y.shape[1]:
                raise ValueError(
                    f"{self.num} nets take inputs and targets ({self.num}, n, ...), each net its "
                    f"own, got {tuple(part.shape)} beside targets {tuple(y.shape)}."
                )
        if y.shape[1] == 0:
            raise ValueError("The batch is empty.")
        return y.shape[1]
