"""The noisy natural gradient paper's settings on the UCI sets, and published figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

Figures = dict[str, tuple[float, float]]
"""`rmse` and `log_likelihood`, each with its standard error."""

# RMSE of BBB, PBP, PBP_MV and NNG-MVG, then their log-likelihoods; after each its error.
_ONE_LAYER = """
boston   2.517 0.022  3.014 0.180  3.137 0.155  2.296 0.029  -2.500 0.004  -2.574 0.089  -2.666 0.081  -2.336 0.005
concrete 5.770 0.066  5.667 0.093  5.397 0.130  5.173 0.070  -3.169 0.011  -3.161 0.019  -3.059 0.029  -3.073 0.014
energy   0.499 0.019  1.804 0.048  0.556 0.016  0.438 0.003  -1.552 0.006  -2.042 0.019  -1.151 0.016  -1.411 0.002
kin8nm   0.079 0.001  0.098 0.001  0.088 0.001  0.076 0.000   1.118 0.004   0.896 0.006   1.053 0.012   1.151 0.006
naval    0.000 0.000  0.006 0.000  0.002 0.000  0.000 0.000   6.431 0.082   3.731 0.006   4.935 0.051   7.182 0.057
power    4.224 0.007  4.124 0.035  4.030 0.036  4.085 0.006  -2.851 0.001  -2.837 0.009  -2.830 0.008  -2.818 0.002
protein  4.390 0.009  4.732 0.013  4.490 0.012  4.058 0.006  -2.900 0.002  -2.973 0.003  -2.917 0.003  -2.820 0.002
wine_red 0.639 0.002  0.635 0.008  0.641 0.006  0.634 0.001  -0.971 0.003  -0.968 0.014  -0.969 0.013  -0.961 0.001
yacht    0.983 0.055  1.015 0.054  0.676 0.054  0.827 0.017  -2.380 0.004  -1.634 0.016  -1.024 0.025  -2.274 0.003
"""  # noqa: E501
_TWO_LAYERS = """
boston   2.982 0.077  3.134 0.139  3.112 0.151  2.451 0.022  -2.803 0.010  -2.527 0.046  -2.539 0.076  -2.383 0.012
concrete 6.010 0.067  5.170 0.125  5.075 0.138  4.976 0.057  -3.216 0.008  -3.061 0.026  -3.043 0.031  -2.993 0.014
energy   0.596 0.014  0.791 0.046  0.448 0.013  0.462 0.011  -1.589 0.006  -1.724 0.012  -1.014 0.011  -1.452 0.003
kin8nm   0.069 0.000  0.072 0.000  0.069 0.003  0.068 0.001   1.265 0.004   1.219 0.003   1.259 0.008   1.273 0.001
naval    0.000 0.000  0.005 0.000  0.002 0.000  0.000 0.000   6.651 0.040   3.172 0.047   4.853 0.059   7.071 0.013
power    4.077 0.011  4.011 0.034  3.908 0.039  3.881 0.009  -2.815 0.002  -2.804 0.007  -2.781 0.008  -2.762 0.003
protein  3.866 0.010  4.553 0.020  3.939 0.019  3.713 0.014  -2.767 0.002  -2.933 0.005  -2.772 0.008  -2.713 0.004
wine_red 0.646 0.004  0.636 0.008  0.642 0.007  0.631 0.004  -0.988 0.005  -0.952 0.013  -0.972 0.009  -0.954 0.008
yacht    1.590 0.078  0.864 0.042  0.806 0.061  0.783 0.013  -2.681 0.019  -1.778 0.015  -1.642 0.021  -2.249 0.014
"""  # noqa: E501
# RMSE and log-likelihood of dropout, its rate and the noise chosen by grid search for each split.
_DROPOUT = """
boston 2.90 -2.40
concrete 4.82 -2.93
energy 0.54 -1.21
kin8nm 0.08 1.14
naval 0.00 4.45
power 4.01 -2.80
protein 4.27 -2.87
wine_red 0.62 -0.93
yacht 0.67 -1.25
"""
PAPER: Final = ("BBB", "PBP", "PBP_MV", "NNG-MVG")


def _table(text: str) -> dict[str, dict[str, Figures]]:
    found = {}
    for line in text.split("\n")[1:-1]:
        name, *cells = line.split()
        numbers = [float(cell) for cell in cells]
        pairs = list(zip(numbers[0::2], numbers[1::2], strict=True))
        halves = zip(PAPER, pairs[: len(PAPER)], pairs[len(PAPER) :], strict=True)
        found[name] = {who: {"rmse": a, "log_likelihood": b} for who, a, b in halves}
    return found


def _published() -> dict[bool, dict[str, dict[str, Figures]]]:
    one = _table(_ONE_LAYER)
    for line in _DROPOUT.split("\n")[1:-1]:
        name, rmse, likelihood = line.split()
        unknown = float("nan")
        figures = {"rmse": (float(rmse), unknown), "log_likelihood": (float(likelihood), unknown)}
        one[name]["dropout"] = figures
    return {False: one, True: _table(_TWO_LAYERS)}


PUBLISHED = _published()
"""By whether there are two hidden layers, set and method.

Zhang et al. (2018), Tables 1 and 4, on random splits of their own: Bayes by backprop,
probabilistic backpropagation, the same with matrix-variate Gaussians, and noisy K-FAC. Dropout, on
the standard splits and one hidden layer, is that of Gal & Ghahramani's repository.
"""


@dataclass(frozen=True)
class Task:
    """How the paper trained on a set: hidden units of a layer, batches and epochs."""

    hidden: int = 50
    batch: int = 100
    epochs: int = 1000


_SMALL = ("boston", "concrete", "energy", "wine_red", "yacht")
TASKS = {name: Task() for name in PUBLISHED[False]}
TASKS |= {name: Task(batch=10) for name in _SMALL}
TASKS["protein"] = Task(hidden=100, epochs=500)
"""By set; Zhang et al. (2018), appendix C.1."""
