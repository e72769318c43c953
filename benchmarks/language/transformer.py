"""Methods on a small transformer: from scratch, and as adapters on a body that has learned.

AdamW and `ivon` learn in Hugging Face's `Trainer`, the other methods by `fit`; Laplace
approximations are made of the classifier that AdamW has learned. All have the same first weights,
batches of the same size, as many epochs, and dropout.
"""

from __future__ import annotations

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
from bayesrule.types import State
from benchmarks.defaults.rows import Row, Rows
from benchmarks.defaults.variants import VARIANTS
from benchmarks.language.reviews import Parts, Plan, Texts, adapted, classifier, parts

SCRATCH, ADAPTERS = "scratch", "adapters"
LAPLACE = ("laplace", "laplace-kronecker")
METHODS = {
    SCRATCH: ("adamw", "map", "ivon", *LAPLACE, "mean_field", "vogn", "noisy_kfac"),
    ADAPTERS: ("adamw", "ivon", *LAPLACE, "noisy_kfac"),
}
"""What learns in each stage."""
RATES = {SCRATCH: 1e-3, ADAPTERS: 1e-3}
"""AdamW's learning rates."""
IVON_EPOCHS = 2
IVON_OPTIONS: dict[str, dict[str, Any]] = {
    SCRATCH: {"lr": 0.1, "initial_curvature": 1.0},
    ADAPTERS: {"lr": 0.1, "initial_curvature": 1.0},
}
"""The last epochs of `ivon`, after those of AdamW."""
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
    """A row for each stage, method and seed; tokens may lie in a folder."""
    items = [
        {"stage": stage, "method": method, "seed": seed}
        for seed in range(seeds)
        for stage in stages
        for method in METHODS[stage]
        if methods is None or method in methods
    ]
    return Rows("transformer", asdict(plan), items, partial(row, plan=plan, folder=folder))


def row(stage: str, method: str, seed: int, plan: Plan, folder: str | None = None) -> Row:
    """Trains one classifier and scores it; seconds of Laplace approximations include AdamW's."""
    torch.set_num_threads(1)
    texts = parts(plan, folder)
    train = texts.train if stage == SCRATCH else texts.train.rows(0, plan.few)
    start = made(stage, seed, plan, texts)
    learn: Callable[[Texts, Plan], tuple[Predict, float]]
    if method == "adamw" or method in LAPLACE:
        model, before = adamw(stage, seed, plan, texts)
        what = _certain if method == "adamw" else partial(_approximated, method)
        learn = partial(what, model, before)
    else:
        learn = partial(_drawn if method == "ivon" else _fitted, method, start, stage, seed)
    begun = time.perf_counter()
    predict, before = learn(train, plan)
    seconds = time.perf_counter() - begun + before
    found = scores(predict(texts.test), texts.test.y)
    learned = sum(value.numel() for value in start.parameters() if value.requires_grad)
    kept = {name: found[name] for name in SCORES}
    return {**kept, "seconds": seconds, "weights": learned}


def made(stage: str, seed: int, plan: Plan, texts: Parts) -> nn.Module:
    """The classifier of a stage before it learns."""
    if stage == SCRATCH:
        return classifier(plan, seed)
    return adapted(plan, body(seed, plan, texts), seed)


@lru_cache(maxsize=1)
def body(seed: int, plan: Plan, texts: Parts) -> dict[str, Tensor]:
    """The body of a classifier that has learned the reviews which are for it, by AdamW."""
    model: Any = classifier(plan, seed)
    trainer(model, texts.body, plan, seed, RATES[SCRATCH]).train()
    state: dict[str, Tensor] = model.distilbert.state_dict()
    return state


@lru_cache(maxsize=1)
def adamw(stage: str, seed: int, plan: Plan, texts: Parts) -> tuple[nn.Module, float]:
    """A classifier that AdamW has learned, and its seconds."""
    model = made(stage, seed, plan, texts)
    train = texts.train if stage == SCRATCH else texts.train.rows(0, plan.few)
    begun = time.perf_counter()
    trainer(model, train, plan, seed, RATES[stage]).train()
    return model.eval(), time.perf_counter() - begun


def trainer(
    model: nn.Module, texts: Texts, plan: Plan, seed: int, rate: float = 0.0, **more: Any
) -> Any:
    """Hugging Face's trainer: gradients are clipped at norm 1, the rate falls to zero."""
    from transformers import Trainer, TrainingArguments

    settings = TrainingArguments(
        tempfile.gettempdir(),
        per_device_train_batch_size=plan.batch_size,
        per_device_eval_batch_size=_AT_A_TIME,
        num_train_epochs=plan.epochs,
        learning_rate=rate,
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


def _drawn(
    method: str, model: nn.Module, stage: str, seed: int, texts: Texts, plan: Plan
) -> tuple[Predict, float]:
    """IVON in Hugging Face's trainer, after AdamW in the same."""
    from bayesrule.integrations.hugging_face import BayesianCallback

    first = replace(plan, epochs=plan.epochs - IVON_EPOCHS)
    trainer(model, texts, first, seed, RATES[stage]).train()
    named, size = model.named_parameters(), len(texts)
    optimizer = IVON(named, num_data=size, seed=seed, **IVON_OPTIONS[stage])
    callback, last = BayesianCallback(), replace(plan, epochs=IVON_EPOCHS)
    made = trainer(model, texts, last, seed, optimizers=(optimizer, None), callbacks=[callback])
    made.train()
    return lambda test: callback.predict(made, test, draws=plan.draws), 0.0


def _fitted(
    method: str, model: nn.Module, stage: str, seed: int, texts: Texts, plan: Plan
) -> tuple[Predict, float]:
    """A method at its defaults by `fit`."""
    learner = VARIANTS[method].learner(model, CategoricalLikelihood(), len(texts))
    train = partial(br.fit, epochs=plan.epochs, batch_size=plan.batch_size, progress=False)
    run = train(learner, (texts.x, texts.y), seed=seed)
    return partial(_by_parts, run.learner, run.state), 0.0


def _approximated(
    method: str, model: nn.Module, before: float, texts: Texts, plan: Plan
) -> tuple[Predict, float]:
    """A Laplace approximation of what AdamW has learned."""
    learner = VARIANTS[method].learner(model, CategoricalLikelihood(), len(texts))
    state = learner.finish(learner.init(), DataLoader(texts, plan.batch_size))
    return partial(_by_parts, learner, state), before


def _certain(model: nn.Module, before: float, texts: Texts, plan: Plan) -> tuple[Predict, float]:
    """One set of weights."""

    def predict(test: Texts) -> Prediction:
        logits = torch.as_tensor(trainer(model, texts, plan, 0).predict(test).predictions)
        return Prediction.mixture(CategoricalLikelihood().distribution(logits, {})[None])

    return predict, before


def _by_parts(learner: Learner, state: State, test: Texts) -> Prediction:
    return br.predict(learner, state, test.x, batch_size=_AT_A_TIME)
