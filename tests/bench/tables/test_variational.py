"""What `benchmarks/tables` makes of results: bars, chosen temperatures, means over seeds."""

from __future__ import annotations

from typing import Any

from benchmarks.tables import figures as tables
from benchmarks.tables.calls import calls


def test_bars_of_a_step() -> None:
    mlp = {"case": "mlp", "multiple_of_adam": {"mean_field": 2.0, "k_tied": 1.9}}
    assert tables._cost(mlp, "mean_field", "cpu") == "2.00 (target 2.5)"
    assert tables._cost(mlp, "k_tied", "cpu") == "1.90 (target: that of mean_field)"
    assert tables._cost(mlp, "vogn", "cpu") == "–"
    assert tables._cost({**mlp, "case": "cnn"}, "mean_field", "cpu") == "2.00 (target 1.4)"
    smooth = {
        "case": "softplus",
        "multiple_of_adam": {"map": 1.1, "variational_laplace": 3.0},
        "multiple_of_map": {"variational_laplace": 2.7},
    }
    assert tables._cost(smooth, "variational_laplace", "cpu") == "3.00 (2.70 × map, target 2.75)"
    assert tables._cost(smooth, "map", "cpu") == "1.10"
    assert tables._cost(mlp, "mean_field", "cuda") == "2.00"
    assert tables._cost({**mlp, "case": "resnet18"}, "mean_field", "cuda") == "2.00 (target 1.4)"


def test_a_row_for_each_prediction_at_its_temperature() -> None:
    def one(temperature: float, held: float) -> dict[str, Any]:
        test = {"nll": 0.25 * temperature, "accuracy": 93.0, "ece": 0.01}
        return {"method": "map", "way": "mean", "temperature": temperature, "test": test} | {
            "held_out": {"nll": held}
        }

    result = {
        "title": "Net",
        "epochs": 7,
        "held_out": 60,
        "published": {"map, mean": [0.29, 93.6, 0.096]},
        "results": [one(1.0, 0.3), one(0.1, 0.4)],
        "command": "python -m benchmarks images",
        "machine": "a machine",
    }
    drawn = tables.variational([result])
    row = "| Net | 7 | map, mean | 1 | 0.250 (0.29) | 93.0 % (93.6) | 0.010 (0.096) |"
    assert [line for line in drawn.splitlines() if line.startswith("| Net")] == [row]
    assert drawn.endswith("`python -m benchmarks images`, a machine.")


def test_rows_of_ranks_are_means_over_seeds() -> None:
    def one(method: str, nll: float) -> dict[str, Any]:
        test = {"nll": nll, "nll_error": 0.01, "accuracy": 96.0, "negative_elbo": 0.5}
        ratios = {"1000": {"median": 4.0, "mean": 9.0}, "5000": {"median": 1.0, "mean": 1.0}}
        found = {"method": method, "test": test, "parameters": 956_820, "snr": ratios}
        found["negative_elbo"] = {"1000": 1.0, "5000": 1.0}
        if method == "mean_field":
            found["truncated"] = {"1": {"nll": 0.7, "accuracy": 80.0}}
        return found

    result = {
        "title": "Net",
        "draws": 100,
        "published": {"mean_field": [0.501, 0.133, 96.8, 957]},
        "results": [one("mean_field", 0.1), one("mean_field", 0.3), one("2-tied", 0.1)],
        "command": "python -m benchmarks images mnist-tied",
        "machine": "a machine",
    }
    drawn = tables.tied([result])
    assert (
        "| Net | mean_field | 0.500 (0.501) | 0.200 ± 0.010 (0.133) | 96.00 % (96.8) | "
        "956,820 (957) | 4.0 (step 1000) |"
    ) in drawn
    assert "| Net | 2-tied | 0.500 | 0.100 ± 0.010 | 96.00 % | 956,820 | 4.0 (step 1000) |" in drawn
    assert "an NLL of 0.700 (rank 1), where all of them have 0.200." in drawn


def test_of_many_calls_the_first_stands_for_all() -> None:
    def made(*commands: str) -> str:
        return calls([{"command": "; ".join(commands), "machine": "a machine"}])

    assert made("a", "b") == "`a; b`, a machine."
    assert made("a", "b", "c") == "`a` and 2 calls like it, a machine."
