"""The named methods: each is one choice of parts, as in Table 1 of Khan & Rue (2023).

Every method takes `(model, likelihood, *, num_data, ...)` and has a record: its parts, its source,
what it needs, and how it trains by default.
"""

from __future__ import annotations

from difflib import get_close_matches

from bayesrule.methods._record import (
    COMMON,
    RECORDS,
    TEMPERED,
    Course,
    Method,
    Need,
    Parts,
    Rate,
    Record,
    method,
    option_names,
    unknown_option,
)
from bayesrule.methods.binary import bayesbinn, ste
from bayesrule.methods.closed_form import tagi
from bayesrule.methods.laplace import laplace
from bayesrule.methods.mixtures import dropout, mixture
from bayesrule.methods.natural import ivon, newton, ogn, ridge, vogn
from bayesrule.methods.noisy import (
    noisy_adam,
    noisy_ekfac,
    noisy_full,
    noisy_kfac,
    noisy_tridiagonal,
)
from bayesrule.methods.points import adam, map, rmsprop, sgd
from bayesrule.methods.variational import k_tied, mean_field, smooth, variational_laplace

METHODS: dict[str, Method] = {
    function.__name__: function
    for function in (
        *(sgd, rmsprop, adam, map, newton, ridge, ogn, vogn, ivon, laplace, tagi),
        *(mean_field, k_tied, variational_laplace),
        *(noisy_adam, noisy_kfac, noisy_ekfac, noisy_tridiagonal, noisy_full),
        *(mixture, dropout, ste, bayesbinn),
    )
}
"""Every named method, in the order of the table."""


def find(name: str) -> Method:
    """The method of this name; case does not matter, and hyphens count as underscores.

    >>> find("VOGN").__name__
    'vogn'
    """
    key = name.strip().lower().replace("-", "_")
    if key not in METHODS:
        near = get_close_matches(key, METHODS, n=1, cutoff=0.4)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"Unknown method {name!r}.{hint} Methods: {', '.join(METHODS)}.")
    return METHODS[key]


def record(name: str) -> Record:
    """The record of the method of this name.

    >>> record("vogn").source
    'Khan & Rue (2023), sec. 4.4, eqs 45 and 46'
    """
    return RECORDS[find(name).__name__]


__all__ = [
    *METHODS,
    "COMMON",
    "METHODS",
    "TEMPERED",
    "Course",
    "Method",
    "Need",
    "Parts",
    "Rate",
    "Record",
    "find",
    "method",
    "option_names",
    "record",
    "smooth",
    "unknown_option",
]
