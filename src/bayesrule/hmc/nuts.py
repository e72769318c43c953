"""The No-U-Turn sampler of nutpie on the log density of an unmodified module."""

from __future__ import annotations

import ctypes
import math
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bayesrule.hmc.density import Floats, LogDensity, as_inputs, value_and_gradient
from bayesrule.hmc.mixing import ess, rhat
from bayesrule.likelihoods import Likelihood
from bayesrule.predicting.prediction import Prediction
from bayesrule.tensors import seeds
from bayesrule.training.progress import Progress
from bayesrule.types import Params


@dataclass(frozen=True, eq=False, repr=False)
class Samples:
    """Draws of several chains, one chain after the other: S = chains · draws, in float64.

    - `draws`: the weights, `{name: (S, *shape)}` as `model.named_parameters()` names them.
    - `precision`: the learned noise precision, (S, *) with one for each output; else None.
    - `log_density`: (S,), with all constants; a learned precision is integrated out.
    - `rhat`, `ess`: rank-normalised split R-hat and bulk effective sample size of each weight, by
      name, of the `"log density"`, of the `"outputs"` at the training inputs (n, *), and of the
      `"noise precision"`. Hidden units can change places, so weights may mix badly although the
      outputs mix well: look at the outputs first.
    - `divergences`: draws after warm-up whose trajectory diverged; there should be none.
    - `cut_off`: draws after warm-up whose trajectory reached the maximum length.
    - `acceptance`: the mean acceptance probability after warm-up, near `target_acceptance`.
    - `gradients`: the number of gradients computed; `seconds`: the time of the whole call.
    - `density`: the `LogDensity` that was sampled.
    """

    draws: Params
    precision: Tensor | None
    log_density: Tensor
    rhat: Params
    ess: Params
    chains: int
    divergences: int
    cut_off: int
    acceptance: float
    gradients: int
    seconds: float
    density: LogDensity

    def __len__(self) -> int:
        return len(self.log_density)

    def __repr__(self) -> str:
        return f"Samples({self.summary()})"

    def predict(self, x: Any, *, num: int | None = None, batch_size: int = 4096) -> Prediction:
        """The prediction for new inputs `x` (n, *), a tensor or an array.

        A mixture over all draws or, to save memory, over `num` evenly spaced ones.
        """
        num = len(self) if num is None else num
        if not 1 <= num <= len(self):
            raise ValueError(f"num takes from 1 to all {len(self)} draws, got {num}.")
        # Evenly spaced from half a step in, so that all chains have the same share.
        chosen = ((torch.arange(num) + 0.5) * (len(self) / num)).long()
        draws = {name: value[chosen] for name, value in self.draws.items()}
        outputs = self.density.outputs_at(draws, as_inputs(x), batch_size)
        noise: Params = {}
        if self.precision is not None:
            # Gamma(1, 1 / precision): its mean is the drawn precision, for all examples.
            drawn = self.precision[chosen].unsqueeze(1)
            noise = {"a": torch.ones_like(drawn), "b": 1.0 / drawn}
        return Prediction.mixture(self.density.likelihood.distribution(outputs, noise))

    def summary(self) -> str:
        """One line: the number of draws, how well they mixed, and the time."""
        weights = [float(self.rhat[name].max()) for name in self.draws]
        return (
            f"{self.chains} × {len(self) // self.chains} draws in {self.seconds:.0f} s; "
            f"R-hat of outputs {float(self.rhat['outputs'].max()):.3f}, of the log density "
            f"{float(self.rhat['log density']):.3f}, of weights {max(weights):.3f}; effective "
            f"draws of outputs {float(self.ess['outputs'].min()):.0f}, of the log density "
            f"{float(self.ess['log density']):.0f}; {self.divergences} divergences"
        )


def hmc(
    model: nn.Module,
    likelihood: Likelihood,
    data: tuple[Any, Any],
    *,
    draws: int = 1000,
    warmup: int = 1000,
    chains: int = 4,
    prior_precision: float = 1.0,
    temperature: float = 1.0,
    target_acceptance: float = 0.95,
    seed: int = 0,
    progress: bool | None = None,
    compile: bool = True,
) -> Samples:
    """Draws from the exact posterior of a small network, as a reference for everything else.

    The density is that of the other methods, `Σ log p(y | f) / T + log N(θ; 0, I / δ)`, over all
    of `data = (x, y)`, in float64 on the CPU and with the module in evaluation mode; see
    `LogDensity`. It is sampled by the No-U-Turn sampler of nutpie (`pip install 'bayesrule[hmc]'`),
    each chain from its own draw of the prior (of one no wider than N(0, I)).

    - `draws`, `warmup`: the draws to keep and those to discard before them, for each of the
      `chains`, which run one after another.
    - `target_acceptance`: the share of proposals to accept, below 1. A larger share means shorter
      steps: draws take longer and diverge less. A warning counts the divergences.
    - `progress`: True, False, or None for a bar on a terminal only.
    - `compile`: compiles the gradient, which takes seconds once and a C++ compiler; it is then five
      to ten times as fast. Compiled and plain gradients differ by rounding, so the same seed gives
      different draws.

    >>> from bayesrule import GaussianLikelihood
    >>> x = torch.linspace(-1, 1, 10).unsqueeze(1)
    >>> short = {"draws": 100, "warmup": 100, "chains": 2, "compile": False}
    >>> samples = hmc(nn.Linear(1, 1), GaussianLikelihood(noise=0.5), (x, 2 * x), **short)
    >>> samples.draws["weight"].shape, samples.predict(x).mean.shape, samples.divergences
    (torch.Size([200, 1, 1]), torch.Size([10, 1]), 0)
    """
    start = time.perf_counter()
    _check(draws, warmup, chains, seed, prior_precision, temperature)
    if not 0.0 < target_acceptance < 1.0:
        raise ValueError(
            f"target_acceptance lies strictly between 0 and 1, got {target_acceptance}."
        )
    nutpie = _nutpie()
    density = LogDensity(
        model, likelihood, data, prior_precision=prior_precision, temperature=temperature
    )
    counted = _CountedDensity(value_and_gradient(density, compile=compile))
    sizes = {"draws": draws, "tune": warmup, "chains": chains, "seed": int(seed)}
    options = {**sizes, "target_accept": float(target_acceptance)}
    with Progress(chains * (warmup + draws), 0, "hmc", progress) as bar:
        trace = _run(nutpie, _model(nutpie, density, counted, bar), options)
    samples = _samples(density, trace, seed, counted.num, start)
    if samples.divergences:
        warnings.warn(
            f"{samples.divergences} of {len(samples)} draws come from trajectories that diverged, "
            "so parts of the posterior may be missing. Aim at a higher target_acceptance than "
            f"{target_acceptance:g}.",
            stacklevel=2,
        )
    return samples


class _CountedDensity:
    """Counts the calls of the density; the sampler calls it from its own thread."""

    def __init__(self, function: Callable[[Floats], tuple[float, Floats]]) -> None:
        self.function, self.num = function, 0
        self._thread = threading.local()

    def __call__(self, theta: Floats) -> tuple[float, Floats]:
        if not hasattr(self._thread, "claimed"):
            # Python drops its state of a foreign thread after each call and rebuilds it at the
            # next, which takes longer than the gradient of a small network. One claim of the GIL
            # that is never released keeps it; this leaks a few kilobytes for each call of hmc.
            ctypes.pythonapi.PyGILState_Ensure()
            self._thread.claimed = True
        self.num += 1
        return self.function(theta)


def _model(nutpie: Any, density: LogDensity, function: _CountedDensity, bar: Progress) -> Any:
    spread = max(density.prior_precision, 1.0) ** -0.5

    def first(seed: int) -> Floats:
        return spread * np.random.default_rng(seed).standard_normal(density.num)

    def expand(*_: int) -> Callable[[Floats], dict[str, Floats]]:
        def record(theta: Floats) -> dict[str, Floats]:
            bar.advance()
            return {"theta": theta}

        return record

    recorded = [np.dtype("float64")], [(density.num,)], ["theta"]
    build = nutpie.compiled_pyfunc.from_pyfunc
    return build(density.num, lambda: function, expand, *recorded, make_initial_point_fn=first)


def _run(nutpie: Any, model: Any, options: dict[str, Any]) -> Params:
    """The draws `theta` (chains, draws, P) and nutpie's statistics of them (chains, draws)."""
    with warnings.catch_warnings():
        # nutpie warns about few draws and chains.
        warnings.simplefilter("ignore")
        # One core: chains in parallel would only wait for each other in Python.
        sampler = nutpie.sample(
            model, **options, cores=1, progress_bar=False, save_warmup=False, blocking=False
        )
        try:
            trace = sampler.wait()
        except BaseException:
            # Without this the sampler would continue in the background.
            sampler.cancel()
            raise
    stats = ("logp", "diverging", "maxdepth_reached", "mean_tree_accept")
    values = {"theta": trace.posterior["theta"], **{k: trace.sample_stats[k] for k in stats}}
    return {name: torch.from_numpy(np.array(value.values)) for name, value in values.items()}


def _samples(
    density: LogDensity, trace: Params, seed: int, gradients: int, start: float
) -> Samples:
    draws = density.named(trace["theta"].flatten(0, 1))
    outputs = density.outputs_at(draws, density.x)
    monitored: Params = {"log density": trace["logp"].flatten(), "outputs": outputs}
    precision = _precision(density, outputs, seed) if density.learned else None
    if precision is not None:
        monitored["noise precision"] = precision
    sizes = trace["logp"].shape
    by_chain = {k: v.unflatten(0, sizes) for k, v in {**draws, **monitored}.items()}
    return Samples(
        draws=draws,
        precision=precision,
        log_density=monitored["log density"],
        rhat={name: rhat(value) for name, value in by_chain.items()},
        ess={name: ess(value) for name, value in by_chain.items()},
        chains=sizes[0],
        divergences=int(trace["diverging"].sum()),
        cut_off=int(trace["maxdepth_reached"].sum()),
        acceptance=float(trace["mean_tree_accept"].mean()),
        gradients=gradients,
        seconds=time.perf_counter() - start,
        density=density,
    )


def _precision(density: LogDensity, outputs: Tensor, seed: int) -> Tensor:
    """A draw of the noise precision, Gamma(a, b), for each draw of the weights."""
    rng = np.random.default_rng(seeds.key(seed, 0, 1))
    beliefs = [density.conjugate(f) for f in outputs]
    a, b = (torch.stack([belief[name] for belief in beliefs]).numpy() for name in ("a", "b"))
    shape = a.reshape(len(a), *[1] * (b.ndim - 1))
    return torch.from_numpy(np.asarray(rng.standard_gamma(shape, size=b.shape) / b))


def _nutpie() -> Any:
    try:
        with warnings.catch_warnings():
            # Dependencies of nutpie warn when they are imported.
            warnings.simplefilter("ignore")
            import nutpie
            import nutpie.compiled_pyfunc
    except ImportError as problem:
        raise ImportError("hmc needs nutpie: pip install 'bayesrule[hmc]'.") from problem
    return nutpie


def _check(
    draws: int, warmup: int, chains: int, seed: int, prior_precision: float, temperature: float
) -> None:
    # With fewer, the sampler cannot adapt its step and scales, or mixing cannot be measured.
    counts = {"draws": draws, "warmup": warmup, "chains": chains, "seed": seed}
    for (name, value), fewest in zip(counts.items(), (4, 10, 1, 0), strict=True):
        if isinstance(value, bool) or not isinstance(value, Integral) or value < fewest:
            raise ValueError(f"{name} is a whole number from {fewest} up, got {value!r}.")
    for name, number in {"prior_precision": prior_precision, "temperature": temperature}.items():
        if not (number > 0 and math.isfinite(number)):
            raise ValueError(f"{name} must be positive and finite, got {number}.")
