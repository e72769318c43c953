"""`bayesrule serve`: a trained model over HTTP."""

from __future__ import annotations

import argparse
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bayesrule.app import serving
from bayesrule.app.commands import faults, options, ways
from bayesrule.app.saved import SavedModel, read_model

_SUMMARY = "answer requests for predictions over HTTP"
_DESCRIPTION = """
Starts a server that predicts. POST /predict takes rows as json, {"rows": [{"column": value, ...},
...]}, and answers with the columns of `bayesrule predict`; GET /health answers while the server is
up; /docs is a page to try both. A request that does not fit the columns of the training data is
refused with a sentence that says why. There are no passwords, so the server listens on this machine
alone, unless --host says otherwise.
"""
_EXAMPLES = """
bayesrule serve run/
bayesrule serve run/ --port 0 --draws 32          any free port, fewer weight draws (faster)
curl localhost:8000/predict -d '{"rows": [{"area": 120, "colour": "red"}]}'
"""


def add(commands: Any) -> None:
    """Adds the command, its help and its options."""
    parser = options.add_command(commands, "serve", _SUMMARY, _DESCRIPTION, _EXAMPLES)
    options.add_folder(parser)
    add_option = partial(options.add_option, parser)
    add_option("--host", "ADDRESS", "the network address to listen on", default="127.0.0.1")
    port = "the port to listen on; 0 takes any free one"
    add_option("--port", "N", port, read=options.whole(0, 65535), default=8000)
    options.add_level(parser)
    largest = "refuse larger requests, in megabytes"
    add_option("--most-mb", "N", largest, read=options.whole(1, 4096), default=8)
    ways.add(parser)
    options.add_unseen(parser)
    options.add_seed(parser)
    parser.set_defaults(run=run, interrupted="Nothing was served.")


def run(args: argparse.Namespace) -> int:
    """Serves until it is told to stop."""
    how = ways.how(args)
    model = read_model(Path(args.folder))
    ways.refuse_no_spread(model, how)
    model = SavedModel(replace(model.encoder, unseen=args.unseen), model.run)
    # A --how that does not fit the method is the caller's choice.
    with faults.of_the_call():
        model.run.predict(torch.zeros(1, len(model.encoder.feature_names)), how)
    service = serving.Service(model, how, args.seed, args.level, args.most_mb << 20)
    server = serving.server(serving.application(service))
    with serving.listening(args.host, args.port) as socket, serving.ended_by_signals():
        host = f"[{args.host}]" if ":" in args.host else args.host
        print(f"http://{host}:{socket.getsockname()[1]}/docs", flush=True)
        server.run(sockets=[socket])
    faults.say("The server has stopped.")
    return 0
