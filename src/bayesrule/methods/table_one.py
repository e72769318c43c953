"""Table 1 of Khan & Rue (2023): every algorithm that follows from the rule, and its name here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableRow:
    """One algorithm of the table.

    - `belief`, `approximations`: the paper's own words for both.
    - `where`: its section and equation.
    - `names`: what it is called in the library, `bayesrule.` left out: methods, functions, or
      classes of the graphical models.
    - `page`: its page of the docs; `proof`: a test that compares it with an exact answer.
    """

    group: str
    algorithm: str
    belief: str
    approximations: str
    where: str
    names: tuple[str, ...]
    page: str
    proof: str


_OPTIMISATION, _DEEP = "optimisation", "deep learning"
_INFERENCE = "approximate Bayesian inference"
_DELTA, _BATCHES = "delta method", "delta method, stochastic approximation"
_METHODS, _NATURAL = "docs/methods.md", "docs/natural-gradient.md"
_BEYOND, _GRAPHS = "docs/beyond-gaussian.md", "docs/graphical.md"
_RULE, _TRUTH = "tests/rules/test_natural.py", "tests/graphical/test_{}.py"

TABLE_ONE: tuple[TableRow, ...] = (
    TableRow(
        _OPTIMISATION, "Gradient descent", "Gaussian (fixed covariance)", _DELTA,
        "sec. 1.3.1, eq. 7", ("sgd",), _METHODS, _RULE,
    ),
    TableRow(
        _OPTIMISATION, "Newton's method", "Gaussian", _DELTA,
        "sec. 1.3.2, eq. 12", ("newton",), _METHODS, _RULE,
    ),
    TableRow(
        _OPTIMISATION, "Multimodal optimisation", "mixture of Gaussians", _DELTA,
        "sec. 3.2, eqs 29 and 30", ("find_minima", "mixture"), _BEYOND,
        "tests/explore/test_minima.py",
    ),
    TableRow(
        _DEEP, "SGD", "Gaussian (fixed covariance)", _BATCHES,
        "sec. 4.1, eq. 35", ("sgd",), _METHODS, _RULE,
    ),
    TableRow(
        _DEEP, "RMSprop, Adam", "Gaussian (diagonal covariance)",
        f"{_BATCHES}, Hessian approximation, square root, slow scales",
        "sec. 4.2, eq. 38", ("rmsprop", "adam"), _METHODS, _RULE,
    ),
    TableRow(
        _DEEP, "Dropout", "mixture of Gaussians", f"{_BATCHES}, responsibility approximation",
        "sec. 4.3, eqs 42 and 43", ("dropout",), _BEYOND, "tests/posteriors/test_spike_slab.py",
    ),
    TableRow(
        _DEEP, "Straight-through estimator", "Bernoulli", _BATCHES,
        "sec. 4.5, eq. 48", ("ste",), _BEYOND, "tests/methods/test_binary.py",
    ),
    TableRow(
        _DEEP, "Online Gauss-Newton (OGN)", "Gaussian (diagonal covariance)",
        "Gauss-Newton in Adam, no square root",
        "sec. 4.4, eqs 44 and 45", ("ogn",), _NATURAL, _RULE,
    ),
    TableRow(
        _DEEP, "Variational OGN", "Gaussian (diagonal covariance)", "OGN without the delta method",
        "sec. 4.4, eq. 46", ("vogn",), _NATURAL, _RULE,
    ),
    TableRow(
        _DEEP, "BayesBiNN", "Bernoulli", "STE without the delta method",
        "sec. 4.5, eq. 52", ("bayesbinn",), _BEYOND, "tests/posteriors/test_bernoulli.py",
    ),
    TableRow(
        _INFERENCE, "Conjugate Bayes", "exponential family", "ρ = 1",
        "sec. 5.1, eqs 5 and 6",
        ("ridge", "graphical.LinearRegression", "graphical.GP", "graphical.Kalman"),
        _GRAPHS, _TRUTH.format("linear"),
    ),
    TableRow(
        _INFERENCE, "Laplace's method", "Gaussian", _DELTA,
        "sec. 4.4, eqs 12 and 44", ("laplace",), _NATURAL, "tests/methods/test_laplace.py",
    ),
    TableRow(
        _INFERENCE, "Expectation-Maximisation", "exponential family and Gaussian",
        "delta method for the parameters",
        "sec. 5.2, eqs 55 and 56",
        (
            *("graphical.GaussianMixture", "graphical.HMM"),
            *("graphical.FactorAnalysis", "graphical.PPCA"),
        ),
        _GRAPHS, _TRUTH.format("mixture"),
    ),
    TableRow(
        _INFERENCE, "Stochastic variational inference (SVI)", "exponential family (mean-field)",
        "stochastic approximation, local ρ = 1",
        "sec. 5.3, eq. 3 node by node", ("graphical.LDA", "graphical.GaussianMixture"), _GRAPHS,
        _TRUTH.format("lda"),
    ),
    TableRow(
        _INFERENCE, "Variational message passing (VMP)", "exponential family (mean-field)",
        "ρ = 1 for all nodes",
        "sec. 5.3, eq. 3 node by node",
        ("graphical.GaussianMixture", "graphical.HMM", "graphical.LDA"),
        _GRAPHS, _TRUTH.format("mixture"),
    ),
    TableRow(
        _INFERENCE, "Non-conjugate VMP", "exponential family (mean-field)", "ρ = 1 for all nodes",
        "sec. 5.3, eq. 3 node by node", ("graphical.LogisticRegression",), _GRAPHS,
        _TRUTH.format("logistic"),
    ),
    TableRow(
        _INFERENCE, "Non-conjugate variational inference", "mixture of exponential families",
        "none",
        "sec. 5.4, eqs 58 to 60", ("graphical.GP", "graphical.LogisticRegression"), _GRAPHS,
        _TRUTH.format("gp"),
    ),
)  # fmt: skip
"""The rows in the paper's order."""
