"""How to predict with uncertain weights: by draws, at their mean, or in closed form."""

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
    """Adds --how and --draws."""
    parser.add_argument(
        "--how",
        choices=("draws", *_CLOSED_FORMS),
        help="the trained weights are uncertain: average over random draws of them (draws), use "
        "their mean (mean), linearise the network about it (linearised), or carry means and "
        "variances through the layers in closed form (moments); default: depends on the method",
    )
    many = "how many draws of the weights to average over, for --how draws (default: 100)"
    options.add_option(parser, "--draws", "N", many, read=options.whole())


def how(args: argparse.Namespace) -> How | None:
    """The prediction that the options ask for; None for the method's own default."""
    if args.draws is not None and args.how not in (None, "draws"):
        raise faults.CallError(f"--draws does not go with --how {args.how}: leave one of them out.")
    if args.how == "draws" or args.draws is not None:
        return Draws(args.draws or 100)
    return _CLOSED_FORMS.get(args.how)


def refuse_no_spread(model: SavedModel, how: How | None) -> None:
    """Refuses draws from a posterior that is flat in some weight, as that of adam may be."""
    variances = model.run.state.posterior.variance() if getattr(how, "random", False) else {}
    if not all(bool(variance.isfinite().all()) for variance in variances.values()):
        raise faults.CallError(
            "There is nothing to draw from: this model does not say how uncertain some of its "
            "weights are. Use --how mean."
        )
