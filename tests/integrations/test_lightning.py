"""Lightning's trainer with the callback against the loop that people write, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, TensorDataset

from bayesrule.optim import IVON, Adam, BayesianOptimizer

lightning = pytest.importorskip("lightning")

from bayesrule.integrations.lightning import BayesianCallback  # noqa: E402

N, BATCH, CLASSES = 24, 4, 3
pytestmark = [
    # What it says of machines with more cores, and of an empty folder.
    pytest.mark.filterwarnings("ignore:The 'train_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The 'val_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:The 'predict_dataloader' does not have many workers"),
    pytest.mark.filterwarnings("ignore:.*isinstance.treespec, LeafSpec.. is deprecated"),
]


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, 5, generator=generator)
    return TensorDataset(x, x[:, :CLASSES].argmax(1))


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES))


def ivon(model: nn.Module) -> BayesianOptimizer:
    return IVON(model.named_parameters(), num_data=N, lr=0.1, rate=0.1)


def adam(model: nn.Module) -> BayesianOptimizer:
    return Adam(model.named_parameters(), num_data=N, lr=0.01)


def falling(optimizer: torch.optim.Optimizer) -> LambdaLR:
    return LambdaLR(optimizer, lambda step: 1.0 / (1.0 + step))


class Module(lightning.LightningModule):  # type: ignore[misc]
    """What a person writes; nothing in it knows of draws."""

    def __init__(self, build: Any = ivon) -> None:
        super().__init__()
        self.net, self.build = network(), build
        self.checked = 0

    def training_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        return cross_entropy(self.net(batch[0]), batch[1])

    def validation_step(self, batch: tuple[Tensor, Tensor], number: int) -> None:
        optimizer: Any = self.optimizers(use_pl_optimizer=False)
        if not isinstance(optimizer, BayesianOptimizer):
            return
        mean = optimizer.posterior.mean  # refused where the weights are a draw
        assert torch.equal(mean["0.weight"], self.net[0].weight)
        self.checked += 1

    def predict_step(self, batch: tuple[Tensor, Tensor], number: int) -> Tensor:
        return self.net(batch[0])

    def configure_optimizers(self) -> Any:
        optimizer = self.build(self.net)
        schedule = {"scheduler": falling(optimizer), "interval": "step"}
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def trainer(folder: Path, **options: Any) -> tuple[Any, BayesianCallback]:
    callback = BayesianCallback()
    made = lightning.Trainer(
        default_root_dir=folder, accelerator="cpu", logger=False, callbacks=[callback],
        enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
        **{"max_epochs": 3, "gradient_clip_val": 0.05, "enable_checkpointing": False, **options},
    )  # fmt: skip
    return made, callback


def loader() -> DataLoader[Any]:
    return DataLoader(data(), BATCH)


def by_hand(optimizer: BayesianOptimizer, model: nn.Module, accumulate: int, epochs: int) -> None:
    schedule, batches = falling(optimizer), list(loader())
    for _ in range(epochs):
        for i in range(0, len(batches), accumulate):
            for x, y in batches[i : i + accumulate]:
                with optimizer.sampled_params(add=True):
                    (cross_entropy(model(x), y) / accumulate).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()


def assert_same(one: BayesianOptimizer, two: BayesianOptimizer) -> None:
    a, b = one.posterior, two.posterior
    torch.testing.assert_close(a.mean, b.mean, rtol=0.0, atol=0.0)
    torch.testing.assert_close(a.variance(), b.variance(), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("build", [ivon, adam])
@pytest.mark.parametrize("accumulate", [1, 2, 4])
def test_training_is_that_of_a_plain_loop(tmp_path: Path, build: Any, accumulate: int) -> None:
    module = Module(build)
    made, _ = trainer(tmp_path, accumulate_grad_batches=accumulate)
    made.fit(module, loader(), loader())
    other = network()
    expected = build(other)
    by_hand(expected, other, accumulate, 3)
    assert_same(made.optimizers[0], expected)
    assert module.checked > 0
    assert not torch.equal(module.net[0].weight, network()[0].weight)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_resuming_is_as_going_on(tmp_path: Path, accumulate: int) -> None:
    whole, _ = trainer(tmp_path, accumulate_grad_batches=accumulate)
    whole.fit(Module(), loader(), loader())
    half, _ = trainer(tmp_path, accumulate_grad_batches=accumulate, max_epochs=1)
    half.fit(Module(), loader(), loader())
    half.save_checkpoint(tmp_path / "half.ckpt")
    rest, _ = trainer(tmp_path, accumulate_grad_batches=accumulate)
    rest.fit(Module(), loader(), loader(), ckpt_path=tmp_path / "half.ckpt", weights_only=False)
    assert_same(whole.optimizers[0], rest.optimizers[0])


def test_without_the_callback_accumulation_is_refused(tmp_path: Path) -> None:
    made = lightning.Trainer(
        default_root_dir=tmp_path, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, max_epochs=1,
        accumulate_grad_batches=2,
    )  # fmt: skip
    with pytest.raises(RuntimeError, match=r"outside of sampled_params\(\)"):
        made.fit(Module(), loader(), loader())


def test_an_interrupted_training_is_at_the_mean(tmp_path: Path) -> None:
    module = Module()
    start = {name: value.detach().clone() for name, value in module.net.named_parameters()}
    made, _ = trainer(tmp_path)

    def interrupt(*of_module: Any) -> None:
        assert not torch.equal(module.net[0].weight, start["0.weight"])
        raise ValueError("stop")

    module.net.register_forward_pre_hook(interrupt)
    with pytest.raises(ValueError, match="stop"):
        made.fit(module, loader(), loader())
    torch.testing.assert_close(dict(module.net.named_parameters()), start, rtol=0.0, atol=0.0)


def test_predictions_are_those_of_draws(tmp_path: Path) -> None:
    module = Module()
    made, callback = trainer(tmp_path)
    with pytest.raises(RuntimeError, match="train first"):
        callback.predict(made, module, loader())
    made.fit(module, loader(), loader())
    optimizer, x = made.optimizers[0], data().tensors[0]
    optimizer.rewind()
    probs = []
    for _ in range(3):
        with optimizer.sampled_params(train=False), torch.no_grad():
            probs.append(module.net(x).softmax(-1))
    found = callback.predict(made, module, loader(), draws=3)
    torch.testing.assert_close(found.probs, torch.stack(probs).mean(0))
    assert torch.equal(found.probs, callback.predict(made, module, loader(), draws=3).probs)
    mean = module.net(x).detach().softmax(-1)
    torch.testing.assert_close(callback.predict(made, module, loader(), draws=0).probs, mean)


def test_what_it_cannot_do_is_refused(tmp_path: Path) -> None:
    made, _ = trainer(tmp_path)
    with pytest.raises(TypeError, match=r"the trainer has Adam; return IVON\(self"):
        made.fit(Module(lambda net: torch.optim.Adam(net.parameters())), loader(), loader())
    by_oneself = Module()
    by_oneself.automatic_optimization = False
    made, _ = trainer(tmp_path, gradient_clip_val=None)
    with pytest.raises(ValueError, match="BayesianCallback is for automatic optimisation"):
        made.fit(by_oneself, loader(), loader())
