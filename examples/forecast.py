"""Forecasts with intervals, and a gap filled in: an unmodified LSTM that learns step by step.

    BAYESRULE_DATA=FOLDER PYTHONPATH=. python examples/forecast.py [FILE.svg]

Left: airline passengers. The last two years are forecast month by month; each forecast is the next
one's uncertain input. Right: weekly CO2 with missing weeks and four half-years hidden on purpose,
which the smoother fills in from both sides. Bands hold 90 %. Trend and scale come from the training
part alone. The baseline repeats the last season, with the spread that it had in training.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributions import Normal

import bayesrule as br
from bayesrule.app.report.axes import Axis, limits
from bayesrule.app.report.svg import Plot
from bayesrule.sequences import Online, SeriesState, SeriesStep, rts_smoother
from benchmarks.data import timeseries

STYLE = """
svg { font: 13px system-ui, sans-serif; } text { fill: #444; }
.title { font-weight: 600; fill: #111; } .grid { stroke: #e6e6e6; fill: none; }
.notch, .base { stroke: #999; fill: none; } .tick.y { text-anchor: end; }
.tick.x { text-anchor: middle; } .axis-label.x { text-anchor: end; }
.band { fill: #2a78b5; opacity: .22; } .mean { fill: none; stroke: #14507d; stroke-width: 1.8; }
.data { fill: #222; stroke: none; } .hidden { fill: none; stroke: #c4472b; stroke-width: 1.3; }
"""
WIDTH, HEIGHT = 540.0, 330.0


class Forecaster(nn.Module):
    """An LSTM that sees the last value and the season, and a linear head."""

    def __init__(self, inputs: int, hidden: int = 20) -> None:
        super().__init__()
        self.body = nn.LSTM(inputs, hidden, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        out, state = self.body(x, state)
        return self.head(out[:, -1]), state


@dataclass(frozen=True)
class Problem:
    """A detrended series in units of its training part; `held` marks what is not trained on."""

    times: np.ndarray
    raw: np.ndarray
    trend: np.ndarray
    scale: float
    season: float
    held: np.ndarray
    log: bool

    @property
    def z(self) -> Tensor:
        values = np.log(self.raw) if self.log else self.raw
        return torch.tensor((values - self.trend) / self.scale, dtype=torch.float32)

    def units(self, z: np.ndarray) -> np.ndarray:
        """Back in the units of the data."""
        values = self.trend + self.scale * z
        return np.exp(values) if self.log else values

    def inputs(self, t: int) -> Tensor:
        """The last value (NaN: whatever is known of it) and four harmonics of the season."""
        angle = 2.0 * math.pi * t / self.season
        waves = [f(k * angle) for k in (1, 2, 3, 4) for f in (math.sin, math.cos)]
        return torch.tensor([[[math.nan if t else 0.0, *waves]]])


def problem(
    name: str, season: float, held: list[int], degree: int, *, log: bool, num: int
) -> Problem:
    """One of the two series; trend and scale are fitted to what is not held out."""
    series = timeseries(name)
    raw, times = series.values[:num, 0], series.times[:num]
    hidden = np.isin(np.arange(num), held)
    values, at = np.log(raw) if log else raw, np.arange(num)
    use = ~hidden & ~np.isnan(raw)
    trend = np.polyval(np.polyfit(at[use], values[use], degree), at)
    return Problem(times, raw, trend, float((values - trend)[use].std()), season, hidden, log)


def passes(
    p: Problem, until: int, noises: Sequence[float]
) -> tuple[Online, SeriesState, list[SeriesStep]]:
    """One pass over the series for each noise; each starts from the last one's smoothed state."""
    torch.manual_seed(0)
    model, target = Forecaster(9), p.z.masked_fill(torch.tensor(p.held), math.nan)
    place: SeriesState | None = None
    first, steps = None, list[SeriesStep]()
    for noise in noises:
        online = Online(br.tagi(model, br.GaussianLikelihood(noise=noise), num_data=until))
        place = online.init() if place is None else online.restart(place, first)
        steps = []
        for t in range(until):
            place, step = online.step(place, (p.inputs(t), target[t].view(1, 1)))
            steps.append(step)
        first = rts_smoother(online, steps[:24]).first
    assert place is not None
    return online, place, steps


def seasonal(p: Problem) -> tuple[np.ndarray, np.ndarray]:
    """The value one season ago, repeated where held out, and its standard deviation.

    The spread grows with the number of seasons since the last one seen.
    """
    z, lag = p.z.numpy().copy(), round(p.season)
    observed = np.where(p.held, np.nan, z)
    spread = float(np.nanstd(observed[lag:] - observed[:-lag]))
    last, age = observed.copy(), np.zeros(len(z))
    for t in range(lag, len(z)):
        if np.isnan(last[t]):
            last[t], age[t] = last[t - lag], age[t - lag] + 1
    return last, spread * np.sqrt(np.maximum(age, 1))


def score(p: Problem, mean: np.ndarray, std: np.ndarray) -> str:
    """Error in the data's units, log-likelihood in those of training, coverage of 90 %."""
    use = p.held & ~np.isnan(p.raw) & ~np.isnan(mean)
    error = np.sqrt(np.mean((p.units(mean) - p.raw)[use] ** 2))
    z = p.z[use].double()
    predicted = Normal(torch.tensor(mean[use]).double(), torch.tensor(std[use]).double())
    inside = np.mean(np.abs(mean - p.z.numpy())[use] <= 1.645 * std[use])
    return f"{error:8.2f} {float(predicted.log_prob(z).mean()):8.2f} {inside:8.0%}"


def moments(predictions: list[br.predicting.Prediction], start: int, num: int) -> list[np.ndarray]:
    """Means and standard deviations of a sequence of predictions, NaN before their start."""
    rows = [[float(p.mean), float(p.std)] for p in predictions]
    return list(np.vstack([np.full((start, 2), np.nan), rows])[:num].T)


def panel(p: Problem, title: str, mean: np.ndarray, std: np.ndarray, start: int) -> str:
    """The data, what was held out, and its prediction."""
    years = p.times.astype("datetime64[D]").astype(float) / 365.25 + 1970.0
    low, high = p.units(mean - 1.645 * std), p.units(mean + 1.645 * std)
    shown = slice(start, None)
    span = np.concatenate([p.raw[shown], low[shown], high[shown]])
    every = list(np.arange(math.ceil(years[start]), years[-1] + 0.1, 2.0))
    x = Axis("", years[start], years[-1] + 0.3, at=every, names=[f"{year:.0f}" for year in every])
    plot = Plot(x, Axis("", *limits(span)), title, width=WIDTH, height=HEIGHT)
    plot.top = 26.0
    plot.band(years[shown], low[shown], high[shown])
    plot.line(years[shown], p.units(mean)[shown], kind="mean")
    plot.points(years[shown], np.where(p.held, np.nan, p.raw)[shown], kind="data", radius=1.6)
    plot.points(years[shown], np.where(p.held, p.raw, np.nan)[shown], kind="hidden", radius=2.2)
    return f'{plot.render()}<text class="title" x="40" y="16">{title}</text>'


def passengers(epochs: int = 5) -> tuple[str, str]:
    """Two years ahead, a month at a time."""
    p = problem("airline_passengers", 12, list(range(120, 144)), 1, log=True, num=144)
    noises = [0.2 * 1.3**k for k in reversed(range(epochs))]
    online, place, _ = passes(p, 120, noises)
    ahead = online.forecast(place, [p.inputs(t) for t in range(120, 144)])
    mean, std = moments(ahead, 120, 144)
    table = f"{score(p, mean, std)}\n  last season    {score(p, *seasonal(p))}"
    return panel(p, "airline passengers, thousands", mean, std, 60), table


def carbon(noises: tuple[float, ...] = (0.3, 0.2), num: int = 620) -> tuple[str, str]:
    """Four hidden half-years, filled in by the smoother."""
    hidden = [start + k for start in range(150, num, 110)[:4] for k in range(26)]
    p = problem("mauna_loa_co2_weekly", 365.25 / 7, hidden, 2, log=False, num=num)
    online, _, steps = passes(p, num, noises)
    mean, std = moments(rts_smoother(online, steps).predictions, 0, num)
    table = f"{score(p, mean, std)}\n  last season    {score(p, *seasonal(p))}"
    return panel(p, "CO2 at Mauna Loa, ppm", mean, std, 100), table


def picture(epochs: int = 5, noises: tuple[float, ...] = (0.3, 0.2)) -> tuple[str, str]:
    """The drawing and the table of errors."""
    (left, first), (right, second) = passengers(epochs), carbon(noises)
    parts = [
        f'<svg x="{k * WIDTH}" width="{WIDTH}" height="{HEIGHT}">{drawn}</svg>'
        for k, drawn in enumerate((left, right))
    ]
    size = f'width="{2 * WIDTH}" height="{HEIGHT}" viewBox="0 0 {2 * WIDTH} {HEIGHT}"'
    drawing = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{STYLE}</style>'
        f'<rect width="100%" height="100%" fill="white"/>{"".join(parts)}</svg>\n'
    )
    head = f"{'':16}{'RMSE':>8} {'log-lik.':>8} {'in 90 %':>8}"
    rows = f"passengers\n  LSTM, tagi     {first}\nCO2, hidden weeks\n  LSTM, tagi     {second}"
    return drawing, f"{head}\n{rows}"


if __name__ == "__main__":
    from _script import draw

    def drawing() -> str:
        drawn, table = picture()
        print(table)
        return drawn

    draw(drawing, __doc__)
