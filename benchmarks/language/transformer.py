"""Methods on a small transformer: from scratch, and as adapters on a pretrained body.

AdamW and `ivon` learn in Hugging Face's `Trainer`, the other methods by `fit`. Laplace
approximations start from the classifier that AdamW has learned. The methods in `GOING_ON` train for
the last epochs, after AdamW; `adamw-early` is their starting point. All have the same first
weights, batch size, total number of epochs, and dropout.
"""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import bayesrule as br
from bayesrule.learner import Learner
from bayesrule.likelihoods import CategoricalLikelihood
from bayesrule.optim import IVON
from bayesrule.predicting import Prediction
from bayesrule.predicting.evaluate import scores
from bayesrule.schedules import falling
from bayesrule.types import State
from benchmarks.defaults.rows import Row, Rows
from benchmarks.defaults.variants import VARIANTS, Variant
from benchmarks.language.reviews import Parts, Plan, Texts, adapted, classifier, parts

SCRATCH, ADAPTERS = "scratch", "adapters"
LAPLACE = ("laplace", "laplace-kronecker")
EARLY = "adamw-early"
GOING_ON = ("ivon", "mean_field", "vogn", "noisy_kfac")
METHODS = {
    SCRATCH: ("adamw", *LAPLACE, "map", EARLY, *GOING_ON),
    ADAPTERS: ("adamw", *LAPLACE, EARLY, "ivon", "noisy_kfac"),
}
"""The methods of each stage."""
RATE = 1e-3
"""AdamW's learning rate, and that of the methods whose steps are Adam's."""
LAST_EPOCHS = 2
"""The learning rates of the methods that continue after AdamW."""
IVON_OPTIONS: dict[str, Any] = {"lr": 0.1, "initial_curvature": 1.0}
FIT_OPTIONS = {name: {"learning_rate": falling(RATE)} for name in ("map", "mean_field")}
"""Options that are not the defaults."""
SCORES = ("nll", "ece", "accuracy", "auroc")
_AT_A_TIME = 500
Predict = Callable[[Texts], Prediction]


def comparison(
    stages: Sequence[str],
    methods: Sequence[str] | None,
    plan: Plan,
    *,
    seeds: int = 1,
    folder: str | None = None,
) -> Rows:
    """A row for each stage, method and seed; tokens may come from a folder."""
    items = [
        {"stage": stage, "method": method, "seed": seed}
        for seed in range(seeds)
        for stage in stages
        for method in METHODS[stage]
        if methods is None or method in methods
    ]
    return Rows("transformer", asdict(plan), items, partial(row, plan=plan, folder=folder))


def row(stage: str, method: str, seed: int, plan: Plan, folder: str | None = None) -> Row:
    """Trains one classifier and scores it; seconds include those of AdamW before it."""
    torch.set_num_threads(1)
    texts = parts(plan, folder)
    before = _before(method, plan)
    start, seconds = adamw(stage, seed, plan, texts, before)
    model, begun = copy.deepcopy(start), time.perf_counter()
    rest = replace(plan, epochs=plan.epochs - before)
    predict = _HOW.get(method, _fitted)(method, model, _few(stage, texts, plan), rest, seed)
    seconds += time.perf_counter() - begun
    found = scores(predict(texts.test), texts.test.y)
    learned = sum(value.numel() for value in start.parameters() if value.requires_grad)
    return {**{name: found[name] for name in SCORES}, "seconds": seconds, "weights": learned}


def _before(method: str, plan: Plan) -> int:
    """How many epochs AdamW has learned before a method begins."""
    if method == "map":
        return 0
    early = max(0, plan.epochs - LAST_EPOCHS)
    return early if method in (EARLY, *GOING_ON) else plan.epochs


def _few(stage: str, texts: Parts, plan: Plan) -> Texts:
    return texts.train if stage == SCRATCH else texts.train.rows(0, plan.few)


def _made(stage: str, seed: int, plan: Plan, texts: Parts) -> nn.Module:
    """The untrained classifier of a stage."""
    if stage == SCRATCH:
        return classifier(plan, seed)
    return adapted(plan, body(seed, plan, texts), seed)


@lru_cache(maxsize=1)
def body(seed: int, plan: Plan, texts: Parts) -> dict[str, Tensor]:
    """The body of a classifier that AdamW has pretrained on its reviews."""
    model: Any = classifier(plan, seed)
    trainer(model, texts.body, plan, seed).train()
    state: dict[str, Tensor] = model.distilbert.state_dict()
    return state


@lru_cache(maxsize=2)
def adamw(stage: str, seed: int, plan: Plan, texts: Parts, epochs: int) -> tuple[nn.Module, float]:
    """A classifier after some epochs of AdamW, and the seconds."""
    model, begun = _made(stage, seed, plan, texts), time.perf_counter()
    if epochs:
        trainer(model, _few(stage, texts, plan), replace(plan, epochs=epochs), seed).train()
    return model, time.perf_counter() - begun


def trainer(model: nn.Module, texts: Texts, plan: Plan, seed: int, **more: Any) -> Any:
    """Hugging Face's trainer: gradients are clipped at norm 1, the rate falls to zero."""
    from transformers import Trainer, TrainingArguments

    settings = TrainingArguments(
        tempfile.gettempdir(),
        per_device_train_batch_size=plan.batch_size,
        per_device_eval_batch_size=_AT_A_TIME,
        num_train_epochs=plan.epochs,
        learning_rate=RATE,
        weight_decay=0.01,
        seed=seed,
        use_cpu=True,
        dataloader_pin_memory=False,
        disable_tqdm=True,
        logging_strategy="no",
        save_strategy="no",
        report_to=[],
    )
    return Trainer(model, settings, train_dataset=texts, **more)


def _certain(_: str, model: nn.Module, texts: Texts, plan: Plan, seed: int) -> Predict:
    """The result of AdamW: a single set of weights."""

    def predict(test: Texts) -> Prediction:
        logits = torch.as_tensor(trainer(model, texts, plan, seed).predict(test).predictions)
        return Prediction.mixture(CategoricalLikelihood().distribution(logits, {})[None])

    return predict


def _drawn(_: str, model: nn.Module, texts: Texts, plan: Plan, seed: int) -> Predict:
    """IVON in Hugging Face's trainer."""
    from bayesrule.integrations.hugging_face import BayesianCallback

    named, callback = model.named_parameters(), BayesianCallback()
    optimizer = IVON(named, num_data=len(texts), seed=seed, **IVON_OPTIONS)
    made = trainer(model, texts, plan, seed, optimizers=(optimizer, None), callbacks=[callback])
    made.train()
    return lambda test: callback.predict(made, test, draws=plan.draws)


def _fitted(method: str, model: nn.Module, texts: Texts, plan: Plan, seed: int) -> Predict:
    """A method by `fit`, without a warm start, because the model has learned already."""
    learner = _learner(method, model, texts)
    train = partial(br.fit, epochs=plan.epochs, batch_size=plan.batch_size, progress=False)
    run = train(learner, (texts.x, texts.y), seed=seed, warm_start=False)
    return partial(_by_parts, learner, run.state)


def _approximated(method: str, model: nn.Module, texts: Texts, plan: Plan, seed: int) -> Predict:
    """A Laplace approximation of the result of AdamW."""
    learner = _learner(method, model, texts)
    state = learner.finish(learner.init(), DataLoader(texts, plan.batch_size))
    return partial(_by_parts, learner, state)


def _learner(method: str, model: nn.Module, texts: Texts) -> Learner:
    chosen = VARIANTS[method]
    options = {**chosen.options(), **FIT_OPTIONS.get(method, {})}
    return Variant(chosen.method, lambda: options).learner(
        model, CategoricalLikelihood(), len(texts)
    )


def _by_parts(learner: Learner, state: State, test: Texts) -> Prediction:
    return br.predict(learner, state, test.x, batch_size=_AT_A_TIME)


_HOW = {"adamw": _certain, EARLY: _certain, "ivon": _drawn, **dict.fromkeys(LAPLACE, _approximated)}
"""How the methods that do not use `fit` learn."""
