"""How a trained model is asked: by draws of its weights, at its mean, in closed form."""

from __future__ import annotations

import argparse

from bayesrule.app.commands import faults, options
from bayesrule.app.saved import SavedModel
from bayesrule.expectations import AtMean, Draws, Moments
from bayesrule.predicting.predict import How, Linearised

_CLOSED_FORMS: dict[str, How] = {
    "mean": AtMean(), "linearised": Linearised(), "moments": Moments()
}  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how."""
    parser.add_argument(
        "--how",
        choices=("draws", *_CLOSED_FORMS),
        help="average over weight draws, use the mean weights, linearise the network, or carry "
        "means and variances through it in closed form; default: depends on the method",
    )
    many = "how many weight draws, for --how draws (default: 100)"
    options.add_option(parser, "--draws", "N", many, read=options.whole())


def how(args: argparse.Namespace) -> How | None:
    """What the options say; None for the method's own way."""
    if args.draws is not None and args.how not in (None, "draws"):
        raise faults.CallError(f"--draws does not go with --how {args.how}.")
    if args.how == "draws" or args.draws is not None:
        return Draws(args.draws or 100)
    return _CLOSED_FORMS.get(args.how)


def refuse_no_spread(model: SavedModel, how: How | None) -> None:
    """Refuses draws from a belief that is flat in some weight, as that of adam may be."""
    variances = model.run.state.posterior.variance() if getattr(how, "random", False) else {}
    if not all(bool(variance.isfinite().all()) for variance in variances.values()):
        raise faults.CallError(
            "There is nothing to draw from: the belief of this model says nothing about some of "
            "the weights. Use --how mean."
        )
