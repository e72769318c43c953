"""Models of Hugging Face as they are: every method that can, and adapters at their own price."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from curvature.brute_force import at_mean, example_rows, problem_of
from torch import Tensor, nn
from torch.utils.data import DataLoader

import bayesrule as br
from bayesrule.curvature import Recording
from bayesrule.curvature.loose_rows import SlowRowsWarning
from bayesrule.methods import METHODS

transformers = pytest.importorskip("transformers")

NAMES = ["ivon", "vogn", "noisy_kfac", "mean_field", "laplace", "noisy_adam", "map", "tagi"]
CLASSES = 3


def bert() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    more = {"intermediate_size": 32, "max_position_embeddings": 16, "num_labels": CLASSES}
    config = transformers.BertConfig(vocab_size=30, **sizes, **more)
    model: nn.Module = transformers.BertForSequenceClassification(config).train()
    return model


def distilbert() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32}
    more = {"max_position_embeddings": 16, "num_labels": CLASSES}
    config = transformers.DistilBertConfig(vocab_size=30, **sizes, **more)
    model: nn.Module = transformers.DistilBertForSequenceClassification(config).train()
    return model


def gpt2() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 16, "num_labels": CLASSES}
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    config = transformers.GPT2Config(vocab_size=30, **sizes, **tokens)
    model: nn.Module = transformers.GPT2ForSequenceClassification(config).train()
    return model


def with_adapters(make: Callable[[], nn.Module], *targets: str) -> nn.Module:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=list(targets))
    with warnings.catch_warnings():
        # What one of these libraries says of the other.
        warnings.simplefilter("ignore")
        model: nn.Module = peft.get_peft_model(make(), config)
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "bert": bert,
    "distilbert": distilbert,
    "gpt2": gpt2,
    "bert with adapters": lambda: with_adapters(bert, "query", "value"),
    "gpt2 with adapters": lambda: with_adapters(gpt2, "c_attn"),
}


class ByHand(nn.Module):
    """One tensor (n, 2, places) in, one tensor out."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, both: Tensor) -> Tensor:
        ids, mask = both.unbind(1)
        found: Tensor = self.model(input_ids=ids, attention_mask=mask).logits
        return found


def texts(num: int = 8) -> tuple[dict[str, Tensor], Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, 30, (num, 6), generator=generator)
    lengths = torch.randint(2, 7, (num, 1), generator=generator)
    mask = (torch.arange(6) < lengths).long()
    return {"input_ids": ids * mask, "attention_mask": mask}, ids[:, 0] % CLASSES


X, Y = texts()
BOTH = torch.stack([X["input_ids"], X["attention_mask"]], 1)


def learned(model: nn.Module, name: str, x: Any, batch: Any) -> tuple[Any, Tensor]:
    learner = METHODS[name](model, br.CategoricalLikelihood(), num_data=len(Y))
    state = learner.init()
    for _ in range(2):
        state, info = learner.step(state, batch)
        assert info.loss.isfinite()
    state = learner.finish(state, [batch])
    return state, br.predict(learner, state, x).mean


@pytest.mark.filterwarnings("ignore::bayesrule.curvature.loose_rows.SlowRowsWarning")
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", MODELS)
def test_methods_learn_as_from_the_model_wrapped_by_hand(kind: str, name: str) -> None:
    model = MODELS[kind]()
    state, found = learned(model, name, X, {**X, "labels": Y})
    other, expected = learned(ByHand(MODELS[kind]()), name, BOTH, (BOTH, Y))
    means = {f"model.{key}": value for key, value in state.posterior.mean.items()}
    torch.testing.assert_close(means, other.posterior.mean, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
    # The belief is over what learns, and over nothing else.
    trainable = {key for key, value in model.named_parameters() if value.requires_grad}
    assert state.posterior.mean.keys() == trainable


@pytest.mark.parametrize("kind", ["bert", "distilbert", "bert with adapters"])
def test_rows_are_those_of_single_examples_by_one_pass(kind: str) -> None:
    problem = problem_of(MODELS[kind](), X)
    recording, vectors = Recording(problem, at_mean(problem)), torch.randn(1, len(Y), CLASSES)
    assert not recording.loose
    rows, _ = recording.backward(vectors, gradient=False)
    expected = example_rows(problem, vectors)
    torch.testing.assert_close(rows.per_example(), expected, rtol=1e-3, atol=1e-5)


def test_layers_of_another_kind_take_a_pass_for_each_example() -> None:
    problem = problem_of(gpt2(), X)
    recording, vectors = Recording(problem, at_mean(problem)), torch.randn(1, len(Y), CLASSES)
    rows, _ = recording.backward(vectors, gradient=False)
    with pytest.warns(SlowRowsWarning, match="Freeze them, or use ivon or mean_field"):
        found = rows.per_example()
    torch.testing.assert_close(found, example_rows(problem, vectors), rtol=1e-3, atol=1e-5)


def test_adapters_and_a_loader_in_a_few_lines() -> None:
    data = [{**{k: v[i] for k, v in X.items()}, "labels": Y[i]} for i in range(len(Y))]
    model = with_adapters(bert, "query", "value")
    learner = br.ivon(model, br.CategoricalLikelihood(), num_data=len(Y))
    run = br.fit(learner, DataLoader(data, 4, shuffle=True), epochs=2)  # type: ignore[arg-type]
    size = sum(value.numel() for value in run.state.posterior.mean.values())
    whole = sum(value.numel() for value in model.parameters())
    assert size < 0.1 * whole
    assert run.predict(X).probs.shape == (len(Y), CLASSES)
