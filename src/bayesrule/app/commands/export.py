"""`bayesrule export`: a trained model as one file for other programs."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from bayesrule.app.commands import faults, options, text, ways
from bayesrule.app.saved import belongs_to_a_run, read_model

_SUMMARY = "write a trained model as one file, ONNX or torch.export"
_DESCRIPTION = """
Writes the predictions of a trained model as one graph, which runs without this library. Its input
is the encoded features `x` (n, d), in the order that the note `features` in the file lists. For a
number it returns the mean, the epistemic variance (what more data would reduce) and the aleatoric
variance (noise, which stays), in the target's own units; for classes probs, entropy and
mutual_information. The note `encoder` says how to make the features from the columns of a table.
"""
_EXAMPLES = """
bayesrule export run/ model.onnx
bayesrule export run/ model.onnx --draws 32
bayesrule export run/ model.pt2 --how mean
"""


def add(commands: Any) -> None:
    """Adds the command, its help and its options."""
    parser = options.add_command(commands, "export", _SUMMARY, _DESCRIPTION, _EXAMPLES)
    options.add_folder(parser)
    parser.add_argument("file", metavar="FILE", type=options.place, help="an .onnx or .pt2 file")
    ways.add(parser)
    options.add_seed(parser, "of the weight draws (default: 0)")
    options.add_json(parser)
    parser.set_defaults(run=run, interrupted="Nothing was written.")


def run(args: argparse.Namespace) -> int:
    """Writes the file and prints its inputs and outputs."""
    how, file = ways.how(args), Path(args.file)
    if belongs_to_a_run(file):
        raise faults.CallError(f"'{file}' is a file of a trained model. Name another.")
    model = read_model(Path(args.folder))
    ways.refuse_no_spread(model, how)
    if getattr(how or model.run.learner.predictive, "linearised", False):
        raise faults.CallError("A linearised prediction cannot be exported. Use --how draws.")
    # A --how that does not fit the method, and a file of another kind, are the caller's choice.
    with faults.of_the_call():
        exported = model.exported(how, seed=args.seed)
        exported.write(file, model.notes())
    features, outputs = model.encoder.feature_names, list(exported(exported.example))
    if args.json:
        print(text.as_json({"file": str(file), "features": features, "outputs": outputs}))
    else:
        print(f"{file}: {len(features)} encoded features in, {', '.join(outputs)} out")
    return 0
