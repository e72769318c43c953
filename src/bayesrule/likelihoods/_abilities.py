"""What a likelihood may be unable to do, and the error messages that say so."""

from __future__ import annotations

from collections.abc import Iterable

_CLOSED_FORM = "has no closed form for Gaussian outputs, which"

SENTENCES: dict[str, tuple[str, str]] = {
    "condition": (
        f"{_CLOSED_FORM} tagi (Innovations, Conditioning) needs to learn from targets",
        "Learn with weight draws instead, as vogn and mean_field do.",
    ),
    "expected_log_prob": (
        "does not know E[log p(y | f)] of Gaussian outputs, which ExpectedLoss() needs",
        "Learn with weight draws instead: Draws(1) and Price().",
    ),
    "marginal": (
        f"{_CLOSED_FORM} Moments() and Online need to predict",
        "Predict with Draws(num) instead.",
    ),
    "fisher_vectors": (
        "does not know the Fisher information of its outputs, which GGN() needs",
        "Use Fisher(), which draws targets, or SquaredGradient() instead.",
    ),
    "sample": (
        "cannot draw targets, which Fisher() and the samples of a prediction need",
        "Use GGN() instead, which draws none.",
    ),
    "cdf": (
        "has no cumulative distribution function (its targets have no order, or it is not "
        "written), which quantiles and intervals need",
        "Use probs and entropy for classes, sample(num) for numbers.",
    ),
    "rescaled": (
        "has targets that cannot be shifted and scaled. Only real-valued predictions can be "
        "rescaled",
        "Leave other targets in their own units.",
    ),
}
"""By method name: what is missing and who needs it, then the way out."""


def sentence(name: str, ability: str, others: Iterable[str] = ()) -> str:
    """Says that `name` lacks an ability, which `others` have it, and the way out."""
    missing, way_out = SENTENCES[ability]
    have = ", ".join(others)
    return " ".join([f"{name} {missing}.", *([f"These have it: {have}."] if have else []), way_out])


def gives(part: type, contract: type, ability: str) -> bool:
    """Whether a class overrides the contract's method, which only refuses."""
    if ability not in SENTENCES:
        raise ValueError(
            f"{ability!r} is not an ability that may be lacking; these are: {', '.join(SENTENCES)}."
        )
    default = getattr(contract, ability, None)
    return default is not None and getattr(part, ability) is not default
