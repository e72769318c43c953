"""Hugging Face's `Trainer` with the callback against the loop that people write, bit for bit."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.lr_scheduler import LambdaLR

from bayesrule.optim import IVON, Adam, BayesianOptimizer
from integrations import two_ranks

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

from bayesrule.integrations.hugging_face import BayesianCallback  # noqa: E402

N, BATCH, CLASSES = 24, 4, 3
pytestmark = [
    # Torch says this of Hugging Face's loader where there is no GPU.
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true"),
]


class Reviews(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(2, 30, (N, 6), generator=generator)
        self.seen: list[int] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        self.seen.append(i)
        ids = self.ids[i]
        return {"input_ids": ids, "attention_mask": torch.ones(6), "labels": ids[0] % CLASSES}

    def batch(self, rows: list[int]) -> dict[str, Tensor]:
        return torch.utils.data.default_collate([self[i] for i in rows])


def network() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=16,
        num_labels=CLASSES,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    model: nn.Module = transformers.BertForSequenceClassification(config)
    return model


def ivon(model: nn.Module) -> BayesianOptimizer:
    return IVON(model.named_parameters(), num_data=N, lr=0.1, rate=0.1)


def adam(model: nn.Module) -> BayesianOptimizer:
    return Adam(model.named_parameters(), num_data=N, lr=0.01)


def trainer(
    folder: Path, model: nn.Module, optimizer: Any, data: Reviews, *more: Any, **options: Any
) -> tuple[Any, BayesianCallback]:
    callback = BayesianCallback()
    options = {"num_train_epochs": 2, "max_grad_norm": 0.05, **options}
    arguments = transformers.TrainingArguments(
        str(folder),
        per_device_train_batch_size=BATCH,
        report_to=[],
        use_cpu=True,
        save_strategy=options.pop("save_strategy", "no"),
        disable_tqdm=True,
        logging_strategy="no",
        **options,
    )
    made = transformers.Trainer(
        model, arguments, train_dataset=data, eval_dataset=Reviews(),
        optimizers=(optimizer, None), callbacks=[callback, *more],
    )  # fmt: skip
    return made, callback


def by_hand(
    model: nn.Module, optimizer: BayesianOptimizer, data: Reviews, seen: list[int], **options: Any
) -> None:
    """The same batches, each in its block; the mean gradient is clipped, the rate falls to 0."""
    model.train()
    each, total = options["accumulate"] * BATCH, 0
    steps = sum(-(-N // each) for _ in range(2))
    falling = LambdaLR(optimizer, lambda step: 1.0 - step / steps)
    while total < len(seen):
        rows = seen[total : min(total + each, (total // N + 1) * N)]
        for i in range(0, len(rows), BATCH):
            batch = data.batch(rows[i : i + BATCH])
            with optimizer.sampled_params(add=True):
                # As the trainer has it: sums over a batch, divided by all examples of the step.
                model(**batch, num_items_in_batch=torch.tensor(len(rows))).loss.backward()
        clip_grad_norm_(model.parameters(), options["clip"])
        optimizer.step()
        falling.step()
        optimizer.zero_grad()
        total += len(rows)


def assert_same(a: BayesianOptimizer, b: BayesianOptimizer, **tolerance: float) -> None:
    exact = tolerance or {"rtol": 0.0, "atol": 0.0}
    one, two = a.posterior, b.posterior
    torch.testing.assert_close(one.mean, two.mean, **exact)
    torch.testing.assert_close(one.variance(), two.variance(), **exact)


@pytest.mark.parametrize("build", [ivon, adam])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_training_is_that_of_a_plain_loop(tmp_path: Path, build: Any, accumulate: int) -> None:
    model, data = network(), Reviews()
    optimizer = build(model)
    made, _ = trainer(tmp_path, model, optimizer, data, gradient_accumulation_steps=accumulate)
    made.train()
    seen, other = list(data.seen), network()
    expected = build(other)
    by_hand(other, expected, data, seen, accumulate=accumulate, clip=0.05)
    assert_same(optimizer, expected)
    # It has learned at all, and by clipped steps.
    assert not torch.equal(optimizer.param_groups[0]["params"][0], next(network().parameters()))


def test_autocast_is_that_of_a_plain_loop(tmp_path: Path) -> None:
    model, data = network(), Reviews()
    optimizer = ivon(model)
    made, _ = trainer(
        tmp_path, model, optimizer, data, gradient_accumulation_steps=2, bf16=True
    )  # fmt: skip
    made.train()
    other = network()
    expected = ivon(other)
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=False):
        by_hand(other, expected, data, list(data.seen), accumulate=2, clip=0.05)
    assert_same(optimizer, expected)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_resuming_is_as_going_on(tmp_path: Path, accumulate: int) -> None:
    options = {"gradient_accumulation_steps": accumulate, "save_steps": 2, "save_strategy": "steps"}
    model, whole = network(), Reviews()
    optimizer = ivon(model)
    made, _ = trainer(tmp_path, model, optimizer, whole, **options)
    made.train()
    other = network()
    again = ivon(other)
    resumed, _ = trainer(tmp_path / "again", other, again, Reviews(), **options)
    # In the middle of an epoch where every batch is a step.
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert_same(optimizer, again)


class Watching(transformers.TrainerCallback):  # type: ignore[misc]
    """Whether the weights are the mean wherever somebody may look at them."""

    def __init__(self, optimizer: BayesianOptimizer, model: nn.Module) -> None:
        self.optimizer, self.model, self.evaluated = optimizer, model, 0
        self.before: dict[str, Tensor] = {}

    def on_evaluate(self, *of_trainer: Any, **others: Any) -> None:
        mean = self.optimizer.posterior.mean
        for name, value in self.model.named_parameters():
            torch.testing.assert_close(value.detach(), mean[name], rtol=0.0, atol=0.0)
        self.evaluated += 1

    def on_pre_optimizer_step(self, *of_trainer: Any, **others: Any) -> None:
        # The draw has ended with its backward pass, so this is the gradient that was clipped.
        grads = [p.grad for p in self.model.parameters() if p.grad is not None]
        assert torch.stack([g.norm() for g in grads]).norm() <= 0.05 * (1.0 + 1e-5)
        assert self.optimizer.posterior is not None


def test_evaluations_in_training_are_at_the_mean(tmp_path: Path) -> None:
    model, data = network(), Reviews()
    optimizer = ivon(model)
    watching = Watching(optimizer, model)
    made, _ = trainer(
        tmp_path, model, optimizer, data, watching,
        gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=1,
    )  # fmt: skip
    made.train()
    assert watching.evaluated == 6


class Stopping(transformers.TrainerCallback):  # type: ignore[misc]
    def on_substep_end(self, args: Any, state: Any, control: Any, **others: Any) -> None:
        control.should_training_stop = True


def test_a_training_that_stops_between_batches_ends_at_the_mean(tmp_path: Path) -> None:
    model, data = network(), Reviews()
    optimizer = ivon(model)
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    made, _ = trainer(tmp_path, model, optimizer, data, Stopping(), gradient_accumulation_steps=2)
    made.train()
    torch.testing.assert_close(dict(model.named_parameters()), start, rtol=0.0, atol=0.0)


def test_an_interrupted_training_can_be_released(tmp_path: Path) -> None:
    model, data = network(), Reviews()
    optimizer = ivon(model)
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    made, callback = trainer(tmp_path, model, optimizer, data)

    def interrupt(*of_module: Any) -> None:
        raise KeyboardInterrupt

    handle = model.register_forward_pre_hook(interrupt)
    with pytest.raises(KeyboardInterrupt):
        made.train()
    handle.remove()
    assert not torch.equal(model.classifier.weight, start["classifier.weight"])
    callback.release()
    torch.testing.assert_close(dict(model.named_parameters()), start, rtol=0.0, atol=0.0)
    made.train()


def test_the_trainer_may_make_the_optimiser(tmp_path: Path) -> None:
    model = network()
    arguments = transformers.TrainingArguments(
        str(tmp_path), use_cpu=True, report_to=[], disable_tqdm=True, max_steps=2,
        save_strategy="no", per_device_train_batch_size=BATCH,
    )  # fmt: skip
    callback = BayesianCallback()
    made = transformers.Trainer(
        model, arguments, train_dataset=Reviews(), callbacks=[callback],
        optimizer_cls_and_kwargs=(IVON, {"num_data": N, "lr": 0.1}),
    )  # fmt: skip
    made.train()
    assert made.optimizer.optimizer.param_groups[0]["step"] == 2


def test_predictions_are_those_of_draws(tmp_path: Path) -> None:
    model, data = network(), Reviews()
    optimizer = ivon(model)
    made, callback = trainer(tmp_path, model, optimizer, data)
    with pytest.raises(RuntimeError, match="train first"):
        callback.predict(made, data)
    made.train()
    batch = data.batch(list(range(N)))
    batch.pop("labels")
    optimizer.rewind()
    probs = []
    for _ in range(3):
        with optimizer.sampled_params(train=False), torch.no_grad():
            probs.append(model.eval()(**batch).logits.softmax(-1))
    found = callback.predict(made, data, draws=3)
    torch.testing.assert_close(found.probs, torch.stack(probs).mean(0), rtol=1e-5, atol=1e-6)
    assert found.num_components == 3
    # They are the same each time, and at the mean there is one.
    assert torch.equal(found.probs, callback.predict(made, data, draws=3).probs)
    mean = torch.as_tensor(made.predict(data).predictions).softmax(-1)
    torch.testing.assert_close(callback.predict(made, data, draws=0).probs, mean)
    with pytest.raises(ValueError, match="draws is a whole number from 0"):
        callback.predict(made, data, draws=-1)


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path, network(), None, Reviews())
    with pytest.raises(TypeError, match=r"the trainer has AdamW; give Trainer optimizers="):
        made.train()
    model = network()
    reentrant = {"use_reentrant": True}
    made, _ = trainer(
        tmp_path, model, ivon(model), Reviews(),
        activation_checkpointing=True, activation_checkpointing_kwargs=reentrant,
    )  # fmt: skip
    with pytest.raises(ValueError, match="Reentrant checkpointing"):
        made.train()


def test_gradient_checkpointing_changes_nothing(tmp_path: Path) -> None:
    found = []
    for options in ({}, {"activation_checkpointing": True}):
        model = network()
        optimizer = ivon(model)
        made, _ = trainer(tmp_path, model, optimizer, Reviews(), **options)
        made.train()
        found.append(optimizer)
    assert_same(*found, rtol=1e-5, atol=1e-7)


def test_two_processes_learn_as_one_from_all_examples(tmp_path: Path) -> None:
    """Gradients are averaged over processes before the draw ends, and its curvature is of that."""
    ranks = multiprocessing.get_context("spawn")
    children = [ranks.Process(target=two_ranks.work, args=(r, tmp_path)) for r in range(2)]
    for child in children:
        child.start()
    model = two_ranks.network()
    optimizer = two_ranks.ivon(model)
    for _ in range(two_ranks.STEPS):
        with optimizer.sampled_params():
            two_ranks.loss(model, slice(None)).backward()
        optimizer.step()
        optimizer.zero_grad()
    for rank, child in enumerate(children):
        child.join(90.0)
        child.kill()
        assert child.exitcode == 0
        found, belief = torch.load(tmp_path / f"{rank}.pt"), optimizer.posterior
        expected = {"mean": belief.mean, "variance": belief.variance()}
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gradient_accumulation_steps": 2}, "on 2 processes averages the last batch of a step"),
        ({"deepspeed": "settings.json"}, "DeepSpeed and FSDP keep weights in pieces"),
        ({"fsdp": "full_shard"}, "DeepSpeed and FSDP keep weights in pieces"),
    ],
)
def test_ways_to_spread_that_would_be_wrong_are_refused(options: Any, said: str) -> None:
    model = two_ranks.network()
    with pytest.raises(ValueError, match=said):
        BayesianCallback().on_train_begin(
            two_ranks.arguments(**options), None, None, optimizer=two_ranks.ivon(model)
        )
