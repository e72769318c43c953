"""Table 1 of Khan & Rue (2023): every algorithm derived from the rule, and its name here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TableRow:
    """One algorithm of the table.

    - `belief`, `approximations`: the paper's own words for both.
    - `where`: the paper's section and equation.
    - `names`: its names in the library, without `bayesrule.`: methods, functions, or classes of the
      graphical models.
    - `page`: its section of the docs; `proof`: the pytest id of a test that compares it with an
      exact answer.
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
_PARTS, _NATURAL = "docs/methods.md#parts", "docs/natural-gradient.md#which-one-to-take"
_BEYOND, _GRAPHS = "docs/beyond-gaussian.md#", "docs/graphical.md#"
_RULES, _DIAGONAL = "tests/rules/test_", "tests/rules/test_diagonal_optimum.py::test_"
_DESCENT = f"{_RULES}natural.py::test_newton_and_gradient_descent_end_where_scipy_does"
_TORCH = f"{_RULES}reference_optimisers.py::test_plain_optimisers_equal_those_of_torch"
_TRUTH = "tests/graphical/test_{}.py::test_{}"

TABLE_ONE: tuple[TableRow, ...] = (
    TableRow(
        _OPTIMISATION, "Gradient descent", "Gaussian (fixed covariance)", _DELTA,
        "sec. 1.3.1, eq. 7", ("sgd",), _PARTS, _DESCENT,
    ),
    TableRow(
        _OPTIMISATION, "Newton's method", "Gaussian", _DELTA,
        "sec. 1.3.2, eq. 12", ("newton",), _PARTS, _DESCENT,
    ),
    TableRow(
        _OPTIMISATION, "Multimodal optimisation", "mixture of Gaussians", _DELTA,
        "sec. 3.2, eqs 29 and 30", ("find_minima", "mixture"),
        f"{_BEYOND}several-minima-in-one-run",
        "tests/explore/test_minima.py::test_the_star_is_found_arm_by_arm",
    ),
    TableRow(
        _DEEP, "SGD", "Gaussian (fixed covariance)", _BATCHES,
        "sec. 4.1, eq. 35", ("sgd",), _PARTS, _TORCH,
    ),
    TableRow(
        _DEEP, "RMSprop, Adam", "Gaussian (diagonal covariance)",
        f"{_BATCHES}, Hessian approximation, square root, slow scales",
        "sec. 4.2, eq. 38", ("rmsprop", "adam"), _PARTS, _TORCH,
    ),
    TableRow(
        _DEEP, "Dropout", "mixture of Gaussians", f"{_BATCHES}, responsibility approximation",
        "sec. 4.3, eqs 42 and 43", ("dropout",), f"{_BEYOND}dropout",
        "tests/posteriors/test_spike_slab.py::test_newton_steps_find_the_optimum",
    ),
    TableRow(
        _DEEP, "Straight-through estimator", "Bernoulli", _BATCHES,
        "sec. 4.5, eq. 48", ("ste",), f"{_BEYOND}binary-weights",
        "tests/methods/test_binary.py::test_straight_through_steps_are_those_of_a_loop",
    ),
    TableRow(
        _DEEP, "Online Gauss-Newton (OGN)", "Gaussian (diagonal covariance)",
        "Gauss-Newton in Adam, no square root",
        "sec. 4.4, eqs 44 and 45", ("ogn",), _NATURAL,
        f"{_DIAGONAL}without_draws_the_fixed_point_is_reached_exactly",
    ),
    TableRow(
        _DEEP, "Variational OGN", "Gaussian (diagonal covariance)", "OGN without the delta method",
        "sec. 4.4, eq. 46", ("vogn",), _NATURAL,
        f"{_DIAGONAL}named_methods_end_at_their_fixed_points",
    ),
    TableRow(
        _DEEP, "BayesBiNN", "Bernoulli", "STE without the delta method",
        "sec. 4.5, eq. 52", ("bayesbinn",), f"{_BEYOND}binary-weights",
        "tests/posteriors/test_bernoulli.py::test_a_step_is_that_of_the_paper",
    ),
    TableRow(
        _INFERENCE, "Conjugate Bayes", "exponential family", "ρ = 1",
        "sec. 5.1, eqs 5 and 6",
        ("ridge", "graphical.LinearRegression", "graphical.GP", "graphical.Kalman"),
        f"{_GRAPHS}lines",
        f"{_RULES}natural.py::test_one_step_from_anywhere_is_the_exact_posterior",
    ),
    TableRow(
        _INFERENCE, "Laplace's method", "Gaussian", _DELTA,
        "sec. 4.4, eqs 12 and 44", ("laplace",), _NATURAL,
        "tests/methods/test_laplace.py::test_the_final_precision_is_the_ggn_at_the_mean",
    ),
    TableRow(
        _INFERENCE, "Expectation-Maximisation", "exponential family and Gaussian",
        "delta method for the parameters",
        "sec. 5.2, eqs 55 and 56",
        (
            *("graphical.GaussianMixture", "graphical.HMM"),
            *("graphical.FactorAnalysis", "graphical.PPCA"),
        ),
        f"{_GRAPHS}clusters",
        _TRUTH.format("mixture", "em_is_that_of_scikit_learn_pass_by_pass"),
    ),
    TableRow(
        _INFERENCE, "Stochastic variational inference (SVI)", "exponential family (mean-field)",
        "stochastic approximation, local ρ = 1",
        "sec. 5.3, eq. 3 node by node", ("graphical.LDA", "graphical.GaussianMixture"),
        f"{_GRAPHS}topics",
        _TRUTH.format("lda", "whole_batches_at_full_rate_are_variational_bayes"),
    ),
    TableRow(
        _INFERENCE, "Variational message passing (VMP)", "exponential family (mean-field)",
        "ρ = 1 for all nodes",
        "sec. 5.3, eq. 3 node by node",
        ("graphical.GaussianMixture", "graphical.HMM", "graphical.LDA"),
        f"{_GRAPHS}clusters",
        _TRUTH.format("mixture", "variational_bayes_is_that_of_scikit_learn_pass_by_pass"),
    ),
    TableRow(
        _INFERENCE, "Non-conjugate VMP", "exponential family (mean-field)", "ρ = 1 for all nodes",
        "sec. 5.3, eq. 3 node by node", ("graphical.LogisticRegression",),
        f"{_GRAPHS}lines",
        _TRUTH.format("logistic", "the_belief_is_the_gaussian_of_the_largest_bound"),
    ),
    TableRow(
        _INFERENCE, "Non-conjugate variational inference", "mixture of exponential families",
        "none",
        "sec. 5.4, eqs 58 to 60", ("graphical.GP", "graphical.LogisticRegression"),
        f"{_GRAPHS}functions",
        _TRUTH.format("gp", "one_step_of_conjugate_computation_is_exact_for_gaussian_targets"),
    ),
)  # fmt: skip
"""The rows in the paper's order."""
