"""A module as a function of its parameters, and randomness that leaves no trace."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from bayesrule.tensors.network import Network, forked_randomness, num_examples, take

CPU = torch.device("cpu")


class _Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def test_other_parameters_give_the_outputs_of_a_module_that_has_them() -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    network, x = Network(model), torch.randn(4, 3)
    got = network(dict(other.named_parameters()), {}, x, training=True)
    torch.testing.assert_close(got, other(x))


def test_a_tied_parameter_is_one_parameter_and_is_replaced_everywhere() -> None:
    network, other, x = Network(_Tied()), _Tied(), torch.randn(4, 3)
    assert list(network.params()) == ["first.weight", "first.bias", "second.bias"]
    got = network(Network(other).params(), {}, x, training=True)
    torch.testing.assert_close(got, other(x))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_recurrent_layers_see_the_given_parameters(kind: Callable[..., nn.Module]) -> None:
    model, other = kind(3, 4, batch_first=True), kind(3, 4, batch_first=True)
    x = torch.randn(2, 5, 3)
    got = Network(model)(Network(other).params(), {}, x, training=False)
    torch.testing.assert_close(got[0], other(x)[0])


def test_parameters_and_buffers_are_copies() -> None:
    model = nn.BatchNorm1d(3)
    network = Network(model)
    network.params()["weight"].zero_()
    network.buffers()["running_var"].zero_()
    assert torch.equal(model.weight, torch.ones(3))
    assert torch.equal(model.running_var, torch.ones(3))  # type: ignore[arg-type]


def test_frozen_parameters_travel_with_the_buffers() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    model[0].weight.requires_grad_(False)
    network = Network(model)
    assert list(network.params()) == ["0.bias", "1.weight", "1.bias"]
    assert "0.weight" in network.buffers()
    assert "1.running_mean" in network.buffers()


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_set_for_the_call_and_restored(training: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5), nn.BatchNorm1d(3))
    model.train()
    model[2].eval()
    network = Network(model)
    seen: list[bool] = []
    model[1].register_forward_hook(lambda module, *_: seen.append(module.training))
    network(network.params(), network.buffers(), torch.randn(4, 3), training=training)
    assert seen == [training]
    assert [m.training for m in model.modules()] == [True, True, True, False]


def test_the_mode_is_restored_after_an_error() -> None:
    model = nn.Linear(3, 2)
    network = Network(model)
    with pytest.raises(RuntimeError):
        network(network.params(), {}, torch.randn(4, 5), training=False)
    assert model.training


def test_training_moves_the_given_buffers_and_not_the_module() -> None:
    model = nn.BatchNorm1d(3)
    network, x = Network(model), torch.randn(8, 3) + 2.0
    buffers = network.buffers()
    network(network.params(), buffers, x, training=True)
    torch.testing.assert_close(buffers["running_mean"], 0.1 * x.mean(0))
    assert torch.equal(model.running_mean, torch.zeros(3))  # type: ignore[arg-type]


def test_inputs_may_be_a_tuple() -> None:
    pair = torch.arange(6).reshape(3, 2), torch.arange(3)
    assert num_examples(pair) == 3
    first, second = take(pair, slice(1, 3))
    assert torch.equal(first, torch.tensor([[2, 3], [4, 5]]))
    assert torch.equal(second, torch.tensor([1, 2]))
    assert torch.equal(take(pair[1], torch.tensor([2, 0])), torch.tensor([2, 0]))  # type: ignore[arg-type]


def test_what_is_not_a_module_is_refused() -> None:
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got function"):
        Network(lambda x: x)  # type: ignore[arg-type]


def test_a_module_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="no trainable parameters, so there is nothing to learn"):
        Network(nn.Linear(2, 2).requires_grad_(False))


def test_forked_randomness_is_seeded_and_leaves_no_trace() -> None:
    before = torch.get_rng_state()
    draws = []
    for seed in (1, 1, 2):
        with forked_randomness(CPU, seed):
            draws.append(torch.rand(3))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert torch.equal(torch.get_rng_state(), before)


def test_forked_randomness_is_restored_after_an_error() -> None:
    before = torch.get_rng_state()
    with pytest.raises(KeyError), forked_randomness(CPU, 1):
        raise KeyError
    assert torch.equal(torch.get_rng_state(), before)


class _Counting(nn.Module):
    """Replaces its buffer instead of changing it, as many hand-written modules do."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + len(x)
        return self.scale * x


def test_a_buffer_that_the_module_replaces_is_found_in_the_state() -> None:
    module = _Counting()
    network = Network(module)
    buffers = network.buffers()
    for expected in (3.0, 6.0):
        network(network.params(), buffers, torch.zeros(3, 1), training=True)
        assert float(buffers["seen"]) == expected
    assert float(module.seen) == 0.0


def test_the_module_has_its_tensors_back_after_an_error() -> None:
    module = nn.Linear(2, 1)
    network = Network(module)
    before = dict(module.named_parameters())
    with pytest.raises(RuntimeError):
        network(
            {k: v + 1 for k, v in network.params().items()}, {}, torch.zeros(1, 3), training=True
        )
    assert all(before[name] is value for name, value in module.named_parameters())


def test_a_batch_norm_that_was_frozen_stays_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.BatchNorm1d(3))
    model[1].eval()
    network = Network(model)
    buffers = network.buffers()
    network(network.params(), buffers, torch.randn(8, 3), training=True)
    assert int(buffers["1.num_batches_tracked"]) == 0
    assert int(buffers["2.num_batches_tracked"]) == 1


def test_a_module_in_evaluation_mode_is_trained_in_training_mode() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).eval()
    network = Network(model)
    buffers = network.buffers()
    network(network.params(), buffers, torch.randn(8, 3), training=True)
    assert int(buffers["1.num_batches_tracked"]) == 1
    assert not model.training


@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_layers_that_change_their_weights_are_refused_by_name(
    kind: Callable[..., nn.Module],
) -> None:
    model = nn.Sequential(kind(5, 2, max_norm=1.0))
    with pytest.raises(ValueError, match=r"Layer '0' .*max_norm=1\.0"):
        Network(model)
