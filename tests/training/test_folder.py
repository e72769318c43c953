"""A run's folder: what another run, another process, damage and other people's files come to."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from sine import X, Y, laplace, net, quick, vogn
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import bayesrule as br
from bayesrule import GaussianLikelihood, Learner, fit, load_run
from bayesrule.training import checkpoint, files
from bayesrule.training.checkpoint import CheckpointError

FORMER = Path(__file__).resolve().parents[1] / "fixtures" / "run"


def contents(folder: Path) -> dict[str, bytes]:
    """All files of a folder."""
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def learner(
    model: nn.Module | None = None, method: str = "ivon", noise: float = 0.3, **options: Any
) -> Learner:
    """A learner without statistics and dropout."""
    likelihood, options = GaussianLikelihood(noise=noise), {"learning_rate": 0.2, **options}
    options = {"temperature": 1.0, **options}
    return getattr(br, method)(model or net(), likelihood, num_data=20, **options)


def other_weights() -> nn.Module:
    """A net whose first weights are others."""
    model = net()
    with torch.no_grad():
        model[2].bias += 1.0  # type: ignore[index, operator]
    return model


def relu() -> nn.Module:
    """A net with another activation."""
    return nn.Sequential(net()[0], nn.ReLU(), net()[2])  # type: ignore[index]


class Curve(nn.Module):
    """A net whose activation is an attribute."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.layer, self.function = net()[0], function  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(self.layer(x)).sum(1, keepdim=True)


# --- another run ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("made", "data", "what"),
    [
        (learner, (X + 1, Y), "other training inputs"),
        (learner, (X, Y + 1), "other training targets"),
        (lambda: learner(other_weights()), (X, Y), r"other first weights.*torch\.manual_seed"),
        (lambda: learner(relu()), (X, Y), r"net\.1=Tanh.*this one has net\.1=ReLU"),
        (lambda: learner(noise=0.4), (X, Y), r"likelihood\.noise=0\.3, .*likelihood\.noise=0\.4"),
        (lambda: learner(learning_rate=0.3), (X, Y), r"rule\.learning_rate=0\.2, .*=0\.3"),
        (lambda: learner(learning_rate=lambda step: 0.3), (X, Y), r"rule\.learning_rate=0\.2"),
        (lambda: learner(momentum=0.8), (X, Y), r"rule\.momentum\.decay=0\.9, .*=0\.8"),
        (lambda: learner(prior_precision=2.0), (X, Y), "prior_precision=1.0, .*=2.0"),
        (lambda: learner(temperature=0.5), (X, Y), "temperature=1.0, .*=0.5"),
        (lambda: learner(method="vogn"), (X, Y), r"parts\.curvature=Price, .*=PerExample"),
    ],
)
def test_a_finished_folder_refuses_another_run_by_name(
    made: Callable[[], Learner], data: Any, what: str, tmp_path: Path
) -> None:
    fit(learner(), (X, Y), epochs=2, out=tmp_path)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=rf"belongs to a run with .*{what}"):
        fit(made(), data, epochs=2, out=tmp_path)
    assert contents(tmp_path) == before
    fit(made(), data, epochs=2, out=tmp_path, resume=False)


def test_functions_without_a_name_are_told_by_what_they_give(tmp_path: Path) -> None:
    fit(learner(learning_rate=lambda step: 0.1), (X, Y), epochs=1, out=tmp_path)
    fit(learner(learning_rate=lambda step: 0.1), (X, Y), epochs=1, out=tmp_path)
    with pytest.raises(CheckpointError, match=r"rates\.step 0=\[.*this one has"):
        fit(learner(learning_rate=lambda step: 0.2), (X, Y), epochs=1, out=tmp_path)
    short = [0.1, 0.1, 0.1]
    fit(learner(learning_rate=lambda step: short[step]), (X, Y), epochs=1, out=tmp_path / "short")


def test_activations_that_are_attributes_are_seen(tmp_path: Path) -> None:
    fit(learner(Curve(torch.tanh)), (X, Y), epochs=1, out=tmp_path)
    fit(learner(Curve(torch.tanh)), (X, Y), epochs=1, out=tmp_path)
    with pytest.raises(CheckpointError, match=r"tanh.*this one has .*relu"):
        fit(learner(Curve(torch.relu)), (X, Y), epochs=1, out=tmp_path)


def test_other_validation_data_are_refused(tmp_path: Path) -> None:
    options: dict[str, Any] = {"epochs": 1, "out": tmp_path, "patience": 2}
    fit(learner(), (X, Y), validation=(X, Y), **options)
    with pytest.raises(CheckpointError, match="other validation data"):
        fit(learner(), (X, Y), validation=(X, Y + 1), **options)
    with pytest.raises(CheckpointError, match="early_stopping=True, this one has"):
        fit(learner(), (X, Y), epochs=1, out=tmp_path)


class Rows(Dataset[Any]):
    """Rows of a table, as a user writes them; noisy ones are never the same twice."""

    def __init__(self, shift: float = 0.0, noise: float = 0.0) -> None:
        self.shift, self.noise = shift, noise

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> Any:
        return X[row] + self.noise * torch.rand(()), Y[row] + self.shift


@pytest.mark.parametrize(
    "data", [lambda shift: TensorDataset(X, Y + shift), Rows], ids=["tensors", "rows"]
)
def test_loaders_are_known_by_their_data(data: Callable[[float], Any], tmp_path: Path) -> None:
    fit(learner(), DataLoader(data(0.0), 8), epochs=1, out=tmp_path)
    fit(learner(), DataLoader(data(0.0), 8), epochs=1, out=tmp_path)
    with pytest.raises(CheckpointError, match="other training data"):
        fit(learner(), DataLoader(data(1.0), 8), epochs=1, out=tmp_path)


def test_data_that_are_made_at_random_are_no_other_data(tmp_path: Path) -> None:
    for _ in range(2):
        fit(learner(), DataLoader(Rows(noise=0.1), 8), epochs=1, out=tmp_path)


def test_of_large_data_no_more_than_some_megabytes_are_looked_at() -> None:
    from bayesrule.training.fingerprint import MOST_BYTES, _spread, digest

    large = torch.zeros(400_000, 30)
    assert _spread(large, MOST_BYTES).nbytes <= MOST_BYTES
    marks = {digest([large])}
    for row in (0, 399_999):
        large[row] += 1
        marks.add(digest([large]))
    large[::7] += 1
    assert len(marks | {digest([large]), digest([large[1:]])}) == 5


# --- more and fewer epochs ------------------------------------------------------------------------


def test_more_epochs_go_on_and_fewer_are_refused(tmp_path: Path) -> None:
    run = fit(vogn(), (X, Y), epochs=4, out=tmp_path)
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match=r"run of 4 epochs, this one has epochs=3.*load_run"):
        fit(vogn(), (X, Y), epochs=3, out=tmp_path)
    assert contents(tmp_path) == before
    steps: list[int] = []
    longer = fit(
        vogn(), (X, Y), epochs=6, out=tmp_path, on_step=lambda state, _: steps.append(state.step)
    )
    assert steps == [5, 6]
    assert longer.history[:4] == run.history
    assert checkpoint.same(longer.state, fit(vogn(), (X, Y), epochs=6).state)


def test_training_begins_with_a_state(tmp_path: Path) -> None:
    first = fit(vogn(), (X, Y), epochs=2)
    kept = checkpoint.save(tmp_path / "a.safetensors", first.state)
    second = fit(vogn(), (X, Y), epochs=2, state=first.state, out=tmp_path / "run")
    assert [figures["step"] for figures in second.history] == [3, 4]
    # What was given is left as it is, and is told from other beginnings.
    assert checkpoint.same(first.state, checkpoint.load(kept, first.state)[0])
    assert checkpoint.same(second.state, fit(vogn(), (X, Y), epochs=2, state=first.state).state)
    again = fit(vogn(), (X, Y), epochs=2, state=first.state, out=tmp_path / "run")
    assert checkpoint.same(second.state, again.state)
    with pytest.raises(CheckpointError, match="other first weights"):
        fit(vogn(), (X, Y), epochs=2, state=second.state, out=tmp_path / "run")
    with pytest.raises(ValueError, match="state is that of another learner: it has 'buffers/1"):
        fit(quick(), (X, Y), state=first.state)


# --- loading --------------------------------------------------------------------------------------


def test_a_run_is_loaded_for_the_learner_that_made_it(tmp_path: Path) -> None:
    run = fit(learner(), (X, Y), epochs=2, out=tmp_path)
    # How the belief was found, and from where, is not what it means.
    for same in (learner(other_weights()), learner(learning_rate=0.5)):
        assert checkpoint.same(load_run(same, tmp_path).state, run.state)
    others = {
        r"parts\.curvature=Price, .*=PerExample": learner(method="vogn"),
        r"likelihood\.noise=0\.3": learner(noise=0.5),
        r"net\.1=Tanh.*net\.1=ReLU": learner(relu()),
        "prior_precision=1.0": learner(prior_precision=3.0),
    }
    for what, other in others.items():
        with pytest.raises(CheckpointError, match=f"{what}.*Build the learner as it was"):
            load_run(other, tmp_path)


# --- damage ---------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a finished run with a best state."""
    fit(laplace(), (X, Y), epochs=2, out=tmp_path, validation=(X, Y), patience=5)
    return tmp_path


def resumed(folder: Path) -> br.training.Run:
    return fit(laplace(), (X, Y), epochs=2, out=folder, validation=(X, Y), patience=5)


def test_any_flipped_bit_of_weights_is_noticed(run: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    for name in ("checkpoint.safetensors", "final.safetensors", "best-2.safetensors"):
        whole = (run / name).read_bytes()
        for place in torch.randint(8 * len(whole), (40,), generator=generator).tolist():
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << place % 8
            (run / name).write_bytes(damaged)
            with pytest.raises(CheckpointError, match=name):
                load_run(laplace(), run) if name.startswith("final") else resumed(run)
        (run / name).write_bytes(whole)
    resumed(run)


def test_a_damaged_list_is_named(run: Path) -> None:
    file = run / "files.json"
    whole = file.read_text()
    document = json.loads(whole)
    outside = {"../x": []}
    honest = {"format": 1, "files": outside, "checksum": files._list_sum(outside)}
    others = ({**document, "format": 2}, {**document, "files": []}, honest)
    damages = "", "[]", "{", whole.replace("a", "b", 1), "[" * 100_000, *map(json.dumps, others)
    for text in damages:
        file.write_text(text)
        for read in (lambda: load_run(laplace(), run), lambda: resumed(run)):
            with pytest.raises(CheckpointError, match=r"files\.json is no list of the files"):
                read()
        assert file.read_text() == text


def test_weights_of_another_run_are_refused(run: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    fit(laplace(), (X, Y), epochs=2, out=other, validation=(X, Y), patience=5, seed=1)
    shutil.copy(other / "final.safetensors", run)
    with pytest.raises(CheckpointError, match=r"final\.safetensors is not as its run wrote it"):
        load_run(laplace(), run)
    shutil.copy(other / "checkpoint.safetensors", run)
    with pytest.raises(CheckpointError, match=r"checkpoint\.safetensors is not as its run wrote"):
        resumed(run)


# --- files of others ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["checkpoint", "final", "best-3"])
@pytest.mark.parametrize("resume", [True, False])
def test_a_file_that_no_run_wrote_is_left_alone(name: str, resume: bool, tmp_path: Path) -> None:
    file = tmp_path / f"{name}.safetensors"
    file.write_text("mine")
    with pytest.raises(CheckpointError, match=rf"holds a {name}\.safetensors that no run wrote"):
        fit(quick(), (X, Y), epochs=1, out=tmp_path, resume=resume)
    assert contents(tmp_path) == {file.name: b"mine"}


def test_a_list_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "files.json").write_text('["mine"]')
    with pytest.raises(CheckpointError, match=r"files\.json is no list"):
        fit(quick(), (X, Y), epochs=1, out=tmp_path)
    assert contents(tmp_path) == {"files.json": b'["mine"]'}


def test_links_and_modes_are_kept(tmp_path: Path) -> None:
    folder, store = tmp_path / "run", tmp_path / "store.safetensors"
    fit(quick(), (X, Y), epochs=1, out=folder)
    final = folder / "final.safetensors"
    final.rename(store)
    final.symlink_to(store)
    store.chmod(0o600)
    (folder / "checkpoint.safetensors").chmod(0o640)
    fit(quick(), (X, Y), epochs=2, out=folder)
    assert final.is_symlink()
    assert stat.S_IMODE(store.stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "checkpoint.safetensors").stat().st_mode) == 0o640
    assert len(load_run(quick(), folder).history) == 2


# --- folders of before ----------------------------------------------------------------------------


def test_a_folder_of_the_version_before_loads_and_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(FORMER, folder)
    validation = X, 0.6 * net()(X).detach() + 0.4 * Y
    options: dict[str, Any] = {"batch_size": 6, "patience": 3, "validation": validation}
    note = "a version that kept no checksums"
    with pytest.warns(UserWarning, match=note):
        loaded = load_run(laplace(0.004), folder)
    assert len(loaded.history) == 4
    assert contents(folder) == contents(FORMER)
    with (
        pytest.warns(UserWarning, match=note),
        pytest.raises(CheckpointError, match="batch_size=6, this one has batch_size=5"),
    ):
        fit(laplace(0.004), (X, Y), epochs=6, out=folder, **{**options, "batch_size": 5})
    assert contents(folder) == contents(FORMER)
    with pytest.warns(UserWarning, match=note):
        found = fit(laplace(0.004), (X, Y), epochs=6, out=folder, **options)
    assert found.history[:4] == loaded.history
    whole = fit(laplace(0.004), (X, Y), epochs=6, **options)
    for name, value in whole.state.posterior.mean.items():
        torch.testing.assert_close(found.state.posterior.mean[name], value)
    # From now on its files are checked, too.
    assert checkpoint.same(load_run(laplace(0.004), folder).state, found.state)
