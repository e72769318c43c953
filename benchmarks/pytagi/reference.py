"""Writes what pytagi 0.2.1 computes in small cases to a file that tests compare with.

Run it in an environment of its own, on the CPU:

    python -m venv pytagi && pytagi/bin/pip install pytagi==0.2.1 numpy
    pytagi/bin/python benchmarks/pytagi/reference.py tests/moments/data/pytagi.npz

The wheel is linked with Open MPI (`libmpi.so.40`, `libmpi_cxx.so.40`) and `libnccl.so.2` and does
not import without them; nothing of theirs is called here.

Keys are `case/name`, all arrays are float32. A case of a net holds `input`, `target`, `sigma_v`,
`output.mean`, `output.variance` and `before.P.mean`, `before.P.variance`, `after.P.mean`,
`after.P.variance`, where P names a parameter of the `torch.nn.Sequential` of the same layers
(with a `Flatten` between images and vectors) in torch's layout. `after` is one step later.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytagi  # type: ignore[import-not-found]
from pytagi import nn

Array = np.ndarray
Arrays = dict[str, Array]
SEED = 7


@dataclass(frozen=True)
class Layer:
    """A pytagi layer (none for what only torch needs) and its parameters' shapes in torch."""

    make: Callable[[], nn.BaseLayer] | None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    centre: float = 0.0


FLATTEN = Layer(None)
RELU = Layer(nn.ReLU)
MAX_POOL = Layer(lambda: nn.MaxPool2d(2, 2))


def linear(inputs: int, outputs: int) -> Layer:
    """A dense layer."""
    shapes = {"weight": (outputs, inputs), "bias": (outputs,)}
    return Layer(lambda: nn.Linear(inputs, outputs), shapes)


def convolution(inputs: int, outputs: int, width: int, padding: int = 0) -> Layer:
    """A 3x3 convolution of stride 1 on square images."""
    shapes = {"weight": (outputs, inputs, 3, 3), "bias": (outputs,)}
    image = {"in_width": width, "in_height": width}
    return Layer(lambda: nn.Conv2d(inputs, outputs, 3, padding=padding, **image), shapes)


def batch_norm(channels: int) -> Layer:
    """Batch norm with torch's epsilon, 1e-5."""
    shapes = {"weight": (channels,), "bias": (channels,)}
    return Layer(lambda: nn.BatchNorm2d(channels), shapes, centre=1.0)


def layer_norm(*shape: int) -> Layer:
    """Layer norm, epsilon 1e-4; on images it has one scale and shift a channel, unlike torch's."""
    shapes = {"weight": shape[:1], "bias": shape[:1]}
    return Layer(lambda: nn.LayerNorm(list(shape)), shapes, centre=1.0)


class Net:
    """A pytagi net of these layers whose parameters carry torch's names and layout."""

    def __init__(self, *layers: Layer) -> None:
        made = [(i, layer) for i, layer in enumerate(layers) if layer.make is not None]
        self.model = nn.Sequential(*[layer.make() for _, layer in made if layer.make is not None])
        self.model.set_threads(1)
        # pytagi names a layer by its class and its place, which does not count Flatten.
        self.places = [(own, i, layer.shapes) for own, (i, layer) in enumerate(made)]
        self.centres = {i: layer.centre for i, layer in made}

    def draw(self, x: Array, rng: np.random.Generator, gain: float) -> None:
        """Means around He's scale √(1/fan_in) and variances around (gain · scale)²."""
        # The first pass makes convolutions and recurrent states, over what was loaded before it;
        # in evaluation mode it leaves batch norm's running statistics at 0 and 1, as torch's are.
        self.model.eval()
        self.forward(x)
        self.model.train()
        state = {}
        for key, index, shapes in self._entries():
            scale = 1 / np.sqrt(np.prod(shapes["weight"][1:], dtype=int))
            entry = []
            for name in ("weight", "bias"):
                centre = self.centres[index] if name == "weight" else 0.0
                spread = 0.3 if len(shapes["weight"]) == 1 else scale
                entry.append(centre + spread * rng.normal(size=shapes[name]).ravel())
                jitter = rng.uniform(0.5, 1.5, shapes[name]).ravel()
                entry.append((gain * scale) ** 2 * jitter)
            state[key] = tuple(values.astype(np.float32) for values in entry)
        self.model.load_state_dict(state)

    def _entries(self) -> list[tuple[str, int, Mapping[str, tuple[int, ...]]]]:
        """pytagi's key, torch's index and the shapes, for each layer with parameters."""
        keys = {int(key.split(".")[1]): key for key in self.model.state_dict()}
        return [(keys[own], i, shapes) for own, i, shapes in self.places if shapes]

    def parameters(self, when: str) -> Arrays:
        """`{when}.{index}.weight.mean` and so on, in torch's layout."""
        state, out = self.model.state_dict(), {}
        for key, index, shapes in self._entries():
            names = ["weight.mean", "weight.variance", "bias.mean", "bias.variance"]
            for name, values in zip(names, state[key], strict=True):
                shape = shapes[name.split(".")[0]]
                out[f"{when}.{index}.{name}"] = np.array(values, np.float32).reshape(shape)
        return out

    def forward(self, x: Array, variance: Array | None = None) -> tuple[Array, Array]:
        """Mean and variance of the outputs, each (batch, outputs)."""
        flat = None if variance is None else variance.astype(np.float32).ravel()
        mean, var = self.model(x.astype(np.float32).ravel(), flat)
        return mean.reshape(len(x), -1).copy(), var.reshape(len(x), -1).copy()

    def jacobian(self, shape: tuple[int, ...]) -> Array:
        """The last layer's cov(a, z) / var(z)."""
        return np.array(self.model.output_z_buffer.jcb)[: np.prod(shape)].reshape(shape)

    def update(self, how: str, *observation: Array) -> None:
        """One step: the output's innovations, the backward pass, the parameters."""
        update = getattr(nn.OutputUpdater(self.model.device), how)
        flat = [values.ravel() for values in observation]
        update(self.model.output_z_buffer, *flat, self.model.input_delta_z_buffer)
        self.model.backward()
        self.model.step()


def regression(
    net: Net, x: Array, y: Array, sigma_v: float, rng: np.random.Generator, gain: float
) -> Arrays:
    """One step with Gaussian noise."""
    net.draw(x, rng, gain)
    out = {"input": x, "target": y, "sigma_v": np.array(sigma_v)} | net.parameters("before")
    out["output.mean"], out["output.variance"] = net.forward(x)
    net.update("update", y, np.full(y.shape, sigma_v**2))
    return out | net.parameters("after")


def dense(
    batch: int, activation: Layer, sizes: tuple[int, ...] = (4, 8, 8, 2), far: float = 1.0
) -> Arrays:
    """A dense net with this activation between its layers, and targets of this scale."""
    rng = np.random.default_rng(SEED)
    layers: list[Layer] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [linear(inputs, outputs), activation]
    x, y = rng.normal(size=(batch, sizes[0])), far * rng.normal(size=(batch, sizes[-1]))
    return regression(Net(*layers[:-1]), x, y, 0.5, rng, gain=0.5)


def images(*layers: Layer) -> Arrays:
    """A convolutional net on four images of 8x8 pixels, with two outputs."""
    rng = np.random.default_rng(SEED)
    x, y = rng.normal(size=(4, 1, 8, 8)), rng.normal(size=(4, 2))
    return regression(Net(*layers), x, y, 1.0, rng, gain=0.2)


def convolutional() -> Arrays:
    """Padded and unpadded convolutions and average pooling."""
    return images(
        convolution(1, 3, 8, padding=1),
        RELU,
        Layer(lambda: nn.AvgPool2d(2, 2)),
        convolution(3, 4, 4),
        RELU,
        FLATTEN,
        linear(16, 2),
    )


def batch_normalised() -> Arrays:
    """Batch norm in training mode, with the statistics it used and its running averages."""
    rng = np.random.default_rng(SEED)
    x, y = rng.normal(size=(4, 1, 8, 8)), rng.normal(size=(4, 2))
    net = Net(convolution(1, 3, 8), batch_norm(3), RELU, FLATTEN, linear(108, 2))
    out = regression(net, x, y, 1.0, rng, gain=0.2)
    (statistics,) = net.model.get_norm_mean_var().values()
    names = ("running.mean", "running.variance", "batch.mean", "batch.variance")
    return out | {name: np.ravel(s) for name, s in zip(names, statistics, strict=True)}


def layer_normalised() -> Arrays:
    """Layer norm over the units of a dense net."""
    rng = np.random.default_rng(SEED)
    x, y = rng.normal(size=(6, 4)), rng.normal(size=(6, 2))
    layers = linear(4, 8), layer_norm(8), RELU, linear(8, 2)
    return regression(Net(*layers), x, y, 0.5, rng, gain=0.5)


def hierarchical() -> Arrays:
    """One step of a ten-class tree, and what it makes of given outputs.

    `nodes` (from 0) and `signs` are each class's path, (classes, 4). `given.probability` is the
    product along the path, which pytagi does not normalise over the classes.
    """
    rng, tools, classes = np.random.default_rng(SEED), pytagi.Utils(), 10
    tree = tools.get_hierarchical_softmax(classes)
    nodes = np.array(tree.idx).reshape(classes, -1) - 1
    out = {"nodes": nodes, "signs": np.array(tree.obs).reshape(classes, -1)}
    mean, variance = rng.normal(size=(6, tree.len)), rng.uniform(0.05, 2.0, (6, tree.len))
    flat = [values.astype(np.float32).ravel() for values in (mean, variance)]
    probabilities = tools.get_labels(*flat, tree, classes, 6)[1].reshape(6, classes)
    out |= {"given.mean": mean, "given.variance": variance, "given.probability": probabilities}
    net, x, labels = Net(linear(4, 8), RELU, linear(8, 11)), rng.normal(size=(10, 4)), np.arange(10)
    net.draw(x, rng, gain=0.5)
    out |= {"input": x, "labels": labels, "sigma_v": np.array(0.5)} | net.parameters("before")
    out["output.mean"], out["output.variance"] = net.forward(x)
    targets, indices, _ = tools.label_to_obs(labels, classes)
    net.update("update_using_indices", targets, np.full(targets.shape, 0.25), indices)
    return out | net.parameters("after")


def one_hot(activation: Callable[[], nn.BaseLayer]) -> Arrays:
    """One step with one-hot targets behind Remax or the closed-form softmax."""
    rng = np.random.default_rng(SEED)
    x, y = rng.normal(size=(6, 4)), np.eye(5)[rng.integers(5, size=6)]
    net = Net(linear(4, 8), RELU, linear(8, 5), Layer(activation))
    return regression(net, x, y, 0.3, rng, gain=0.5)


def activations() -> Arrays:
    """What each activation makes of given means and variances (6 examples of 5 units)."""
    rng = np.random.default_rng(SEED)
    mean, variance = rng.normal(size=(6, 5)), rng.uniform(0.01, 1.5, (6, 5))
    mean[-1], variance[-1] = (-6, -3, 0, 3, 6), 0.05  # far into both ends
    out = {"mean": mean, "variance": variance}
    kinds = (nn.ReLU, nn.Sigmoid, nn.Tanh, nn.MixtureReLU)
    for kind in (*kinds, nn.MixtureTanh, nn.MixtureSigmoid, nn.Remax, nn.ClosedFormSoftmax):
        net, name = Net(linear(5, 5), Layer(kind)), kind.__name__
        identity = (np.eye(5).ravel(), np.zeros(25), np.zeros(5), np.zeros(5))
        net.model.load_state_dict({"Linear.0": identity})
        out[f"{name}.mean"], out[f"{name}.variance"] = net.forward(mean, variance)
        out[f"{name}.jacobian"] = net.jacobian(mean.shape)
    return out


def heteroscedastic() -> Arrays:
    """One step of AGVI, two targets: outputs are (mean, noise variance) by turns.

    For the noise, pytagi's Jacobian is the covariance s·μ̃ instead of μ̃, so that its innovations
    there are the published ones times s (δ) and s² (η), s the variance before the exponential.
    """
    rng = np.random.default_rng(SEED)
    x, y = rng.normal(size=(6, 3)), rng.normal(size=(6, 2))
    net = Net(linear(3, 8), RELU, linear(8, 4), Layer(nn.EvenExp))
    net.draw(x, rng, gain=0.3)
    out = {"input": x, "target": y} | net.parameters("before")
    out["output.mean"], out["output.variance"] = net.forward(x)
    out["output.jacobian"] = net.jacobian((6, 4))
    net.update("update_heteros", y)
    return out | net.parameters("after")


def torch_gates(arrays: Arrays, layer: str, inputs: int) -> Arrays:
    """The LSTM's parameters as torch's, which has the input's and the hidden state's apart.

    pytagi's gates are forget, input, candidate, output, torch's input, forget, candidate, output;
    pytagi has one bias, so that torch's `bias_hh_l0` is to be 0 with variance 0.
    """
    out = {}
    for key, values in arrays.items():
        place, kind, moment = key.rsplit(".", 2)
        if not place.endswith(f".{layer}"):
            out[key] = values
        elif kind == "bias":
            out[f"{place}.bias_ih_l0.{moment}"] = values[[1, 0, 2, 3]].ravel()
        else:
            gates = values[[1, 0, 2, 3]].reshape(-1, values.shape[-1])
            out[f"{place}.weight_ih_l0.{moment}"] = gates[:, :inputs]
            out[f"{place}.weight_hh_l0.{moment}"] = gates[:, inputs:]
    return out


def recurrent(batch: int) -> Arrays:
    """One step through a dense layer, an LSTM of one time step from a given state, a dense layer.

    The state's rows are the examples; `after` holds the state that the next step starts from.
    pytagi carries the state on at batch size 1 only, and its covariance of the output gate with
    the cell sums over the layer's inputs but not over the previous hidden state.
    """
    rng, inputs, hidden = np.random.default_rng(SEED), 4, 5
    shapes = {"weight": (4, hidden, inputs + hidden), "bias": (4, hidden)}
    lstm = Layer(lambda: nn.LSTM(inputs, hidden, 1), shapes)
    net = Net(linear(3, inputs), lstm, linear(hidden, 2))
    x, y = rng.normal(size=(batch, 3)), rng.normal(size=(batch, 2))
    net.draw(x, rng, gain=0.5)
    names = ("hidden.mean", "hidden.variance", "cell.mean", "cell.variance")
    means, spread = rng.normal(size=(2, batch, hidden)), rng.uniform(0.05, 0.5, (2, batch, hidden))
    state = (means[0] / 2, spread[0], means[1], spread[1])
    out = {"input": x, "target": y, "sigma_v": np.array(0.5)}
    out |= torch_gates(net.parameters("before"), "1", inputs)
    out |= {f"before.{name}": values for name, values in zip(names, state, strict=True)}
    net.model.set_lstm_states({1: tuple(v.astype(np.float32).ravel() for v in state)})
    out["output.mean"], out["output.variance"] = net.forward(x)
    net.update("update", y, np.full(y.shape, 0.25))
    if batch == 1:
        states = [np.array(values)[None] for values in net.model.get_lstm_states()[1]]
        out |= {f"after.{name}": values for name, values in zip(names, states, strict=True)}
    return out | torch_gates(net.parameters("after"), "1", inputs)


CASES: dict[str, Callable[[], Arrays]] = {
    "mlp_relu_1": lambda: dense(1, RELU),
    "mlp_outlier_1": lambda: dense(1, RELU, far=300.0),
    "mlp_relu_16": lambda: dense(16, RELU),
    "mlp_relu_256": lambda: dense(256, RELU),
    "mlp_mixture_relu_16": lambda: dense(16, Layer(nn.MixtureReLU)),
    "tiny_10": lambda: dense(10, RELU, (13, 50, 1)),
    "cnn_4": convolutional,
    "max_pool_4": lambda: images(convolution(1, 3, 8), RELU, MAX_POOL, FLATTEN, linear(27, 2)),
    "batch_norm_4": batch_normalised,
    "layer_norm_6": layer_normalised,
    "layer_norm_images_4": lambda: images(
        convolution(1, 3, 8), layer_norm(3, 6, 6), RELU, FLATTEN, linear(108, 2)
    ),
    "hierarchical_10": hierarchical,
    "remax_6": lambda: one_hot(nn.Remax),
    "closed_form_softmax_6": lambda: one_hot(nn.ClosedFormSoftmax),
    "activations": activations,
    "heteroscedastic_6": heteroscedastic,
    "lstm_1": lambda: recurrent(1),
    "lstm_4": lambda: recurrent(4),
}


def main() -> None:
    """Write all cases to the path given on the command line."""
    parser = argparse.ArgumentParser(description="Write what pytagi computes in small cases.")
    parser.add_argument("path", type=Path, help="the .npz file to write")
    path = parser.parse_args().path
    flat = {f"{case}/{name}": a for case, make in CASES.items() for name, a in make().items()}
    # pytagi computes in float32, so that what it was given and gave is stored exactly.
    stored = {key: np.asarray(values, np.float32) for key, values in flat.items()}
    np.savez_compressed(path, allow_pickle=False, **stored)
    print(f"{len(flat)} arrays of {len(CASES)} cases, {path.stat().st_size / 1024:.0f} kB")


if __name__ == "__main__":
    main()
