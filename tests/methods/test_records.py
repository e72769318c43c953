"""Records say what their methods are, and the options, the docs and the command follow them."""

from __future__ import annotations

import ast
import inspect
import json
import pickle
import re
import typing
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import bayesrule as br
from bayesrule import methods
from bayesrule.app.cli import main
from bayesrule.methods import METHODS, Need, Parts, Record, _record, record
from bayesrule.methods._words import EXPLAINED
from bayesrule.schedules import falling
from bayesrule.types import State
from benchmarks.tables import methods as method_tables

ROOT = Path(__file__).resolve().parents[2]
every = pytest.mark.parametrize("name", METHODS)
# What the words for a rule have to speak of.
RULES = {"Natural": "natural", "Elbo": "ELBO", "Conditioning": "conditioning"}


def built(name: str, model: nn.Module | None = None, **options: Any) -> br.Learner:
    """A method on a small net, or on another one."""
    torch.manual_seed(0)
    linear = Need.LINEAR_MODEL in record(name).needs
    usual = [nn.Linear(2, 1)] if linear else [nn.Linear(2, 3), nn.Tanh(), nn.Linear(3, 1)]
    net = model or nn.Sequential(*usual)
    return METHODS[name](net, br.GaussianLikelihood(noise=0.5), num_data=8, **options)


def trained(learner: br.Learner) -> State:
    """Two steps and the end of training."""
    x = torch.randn(8, 2, generator=torch.Generator().manual_seed(1))
    state = learner.init()
    for _ in range(2):
        state, _ = learner.step(state, (x, x[:, :1]))
    return learner.finish(state, [(x, x[:, :1])])


# --- parts ----------------------------------------------------------------------------------------


@every
def test_the_words_name_the_parts_of_the_learner(name: str) -> None:
    words, parts = record(name), built(name).parts()
    belief = parts["posterior"].removesuffix(" (some weights)")
    assert f"(`{belief}`)" in words.belief
    assert f"(`{parts['expectation']}`)" in words.expectation
    assert f"(`{parts['curvature']}`)" in words.curvature
    # Laplace trains by the ELBO's gradient in the mean, which it calls Adam, and ends naturally.
    assert RULES[parts["rule"]] in words.rule or (name == "laplace" and "Adam" in words.rule)


@every
def test_needs_that_a_learner_can_tell(name: str) -> None:
    needs, learner = record(name).needs, built(name)
    curvature = learner.final_curvature or learner.curvature
    assert (Need.DRAWS in needs) == learner.expectation.random
    assert (Need.SINGLE_EXAMPLES in needs) == curvature.needs_rows
    assert (Need.MOMENT_RULES in needs) == isinstance(learner.expectation, br.Moments)


@every
def test_smooth_activations_are_needed_where_others_are_warned_of(name: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        built(name, nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)))
    warned = [one for one in caught if "piecewise linear" in str(one.message)]
    assert (Need.SMOOTH_ACTIVATIONS in record(name).needs) == bool(warned)
    assert all(Path(one.filename) == Path(__file__) for one in warned), "the caller's line"


@every
def test_chains_are_needed_where_other_nets_are_refused(name: str) -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Linear(3, 1))
    if Need.CHAIN in record(name).needs:
        with pytest.raises(ValueError, match="chains"):
            built(name, net)
    else:
        built(name, net)


@every
@pytest.mark.parametrize(("option", "value"), [("prior_precision", 7.0), ("temperature", 0.2)])
def test_options_have_an_effect_unless_the_record_says_no(
    name: str, option: str, value: float
) -> None:
    if option not in methods.option_names(METHODS[name]):
        with pytest.raises(TypeError, match=f"{name} has no option {option}"):
            built(name, **{option: value})
        return
    # Binary weights that begin nearly certain would hide what a few steps change.
    first = {"sure": 0.5} if "sure" in methods.option_names(METHODS[name]) else {}
    both = first, {**first, option: value}
    usual, other = (trained(built(name, **options)).posterior for options in both)
    same = all(
        torch.allclose(a[k], b[k], rtol=1e-4, atol=0.0)
        for a, b in ((usual.mean, other.mean), (usual.variance(), other.variance()))
        for k in a
    )
    assert same == (option in record(name).without_effect)


@every
def test_shared_draws_are_for_methods_that_draw(name: str) -> None:
    assert ("shared_draws" in record(name).without_effect) != (Need.DRAWS in record(name).needs)


@every
def test_sources_are_papers_with_a_place(name: str) -> None:
    assert re.search(r"[\w.] \(\d{4}\)", record(name).source)
    if name != "noisy_ekfac":
        assert re.search(r"(sec\.|eqs?\.?|algorithm) \d", record(name).source)


# --- options --------------------------------------------------------------------------------------


@every
def test_every_option_is_explained_where_the_method_is(name: str) -> None:
    function = METHODS[name]
    parameters = [*inspect.signature(function).parameters.values()][2:]
    assert {one.kind for one in parameters} == {inspect.Parameter.KEYWORD_ONLY}
    lines = (inspect.getdoc(function) or "").splitlines()
    for one in parameters:
        start = f"- {_record.shown(one)}: {record(name).options[one.name]}"
        assert f"{start}." in lines
    assert {*methods.option_names(function), "num_data"} == {*record(name).options}


def test_there_are_no_explanations_that_nobody_uses() -> None:
    used = {words for name in METHODS for words in record(name).options.values()}
    assert {*EXPLAINED.values()} <= used


@every
def test_other_options_are_refused_by_name_with_the_nearest(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name} has no option temperatur; it takes .*\. Did you"):
        built(name, temperatur=1.0)
    with pytest.raises(TypeError, match=r"has no option zzz; it takes [^.]*\.$"):
        built(name, zzz=1.0)
    with pytest.raises(TypeError, match=rf"{name}\(\): missing a required argument: 'num_data'"):
        METHODS[name](nn.Linear(1, 1), br.GaussianLikelihood())


def test_defaults_of_a_method_come_before_those_of_its_group() -> None:
    full, kfac = (inspect.signature(f).parameters for f in (br.noisy_full, br.noisy_kfac))
    assert (full["stats_every"].default, kfac["stats_every"].default) == (1, 10)
    assert built("noisy_full").rule.stats_every == 1  # type: ignore[attr-defined]
    assert built("noisy_kfac").rule.stats_every == 10  # type: ignore[attr-defined]
    assert built("noisy_adam").rule.learning_rate == falling(0.03)  # type: ignore[attr-defined]


@every
def test_methods_travel_between_processes(name: str) -> None:
    assert pickle.loads(pickle.dumps(METHODS[name])) is METHODS[name]


# --- a method of one's own ------------------------------------------------------------------------

FACTS: dict[str, Any] = {"words": ("a", "b", "c", "d"), "source": "nowhere"}


@dataclass(frozen=True, kw_only=True)
class Shared:
    """Options that two methods could share."""

    rate: float = 0.5
    momentum: float = 0.9


def custom(model: nn.Module, options: Shared, *, speed: float = 0.1, temperature: float) -> Parts:
    """Gradient descent under another name."""
    assert isinstance(model, nn.Linear)
    return Parts(
        posterior=br.GaussianFamily(),
        expectation=br.AtMean(),
        curvature=br.PerExample(),
        rule=br.Natural(speed * temperature, momentum=br.Average(options.momentum)),
    )


def test_a_decorated_function_is_a_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_record, "RECORDS", {})
    explained = {"speed": "how fast it goes"}
    made = methods.method(
        **FACTS,
        defaults={"temperature": 0.5, "momentum": 0.8},
        lacks=("shared_draws",),
        explained=explained,
    )(custom)
    learner = made(nn.Linear(1, 1), br.GaussianLikelihood(), num_data=3, speed=4.0)
    assert learner.temperature == 0.5
    assert learner.rule == br.Natural(2.0, momentum=br.Average(0.8))
    kept: Record = _record.RECORDS["custom"]
    assert (kept.build, kept.name) == (made, "custom")
    assert kept.summary == "Gradient descent under another name."
    assert (kept.belief, kept.expectation, kept.curvature, kept.rule) == ("a", "b", "c", "d")
    assert "- `speed=0.1`: how fast it goes." in (made.__doc__ or "")


def test_its_signature_has_all_options_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_record, "RECORDS", {})
    facts: dict[str, Any] = {**FACTS, "defaults": {"temperature": 1.0}}
    made = methods.method(**facts, lacks=("shared_draws",), explained={"speed": ""})(custom)
    assert str(inspect.signature(made)).startswith(
        "(model: torch.nn.modules.module.Module, likelihood: "
    )
    names = ["model", "likelihood", "num_data", "speed", "rate", "momentum"]
    names += ["prior", "prior_precision", "temperature"]
    assert [*inspect.signature(made).parameters] == names
    assert typing.get_type_hints(made)["rate"] is float
    assert made(likelihood=br.GaussianLikelihood(), model=nn.Linear(1, 1), num_data=3).num_data == 3
    with pytest.raises(TypeError, match="custom has no option shared_draws; it takes momentum, "):
        made(nn.Linear(1, 1), br.GaussianLikelihood(), num_data=3, shared_draws=True)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "custom: speed is an option without an explanation"),
        ({"explained": {"speed": "", "sped": ""}}, "sped is .* explanation without an option"),
        ({"defaults": {"sped": 1}}, "custom has no option sped; see defaults= and lacks="),
        ({"lacks": ("pryor",)}, "custom has no option pryor; see defaults= and lacks="),
    ],
)
def test_faulty_records_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        methods.method(**FACTS, **given)(custom)


# --- who reads records ----------------------------------------------------------------------------


def test_no_other_module_keeps_facts_about_methods() -> None:
    """Outside of methods/, a name of a method in the code is a default or an example."""
    source = ROOT / "src" / "bayesrule"
    files = [*source.glob("app/**/*.py"), *source.glob("training/*.py"), source / "sklearn.py"]
    named = {
        (file.name, node.value)
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and node.value in METHODS
    }
    assert {name for _, name in named} == {"vogn"}


def test_the_tables_of_the_docs_are_those_of_the_records() -> None:
    readme = (ROOT / "README.md").read_text()
    assert f"<!-- methods:begin -->\n{method_tables.summaries()}\n" in readme
    page = (ROOT / "docs" / "methods.md").read_text()
    for marker, table in method_tables.METHOD_PAGE.items():
        assert f"<!-- {marker}:begin -->\n{table()}\n<!-- {marker}:end -->" in page


def test_the_command_says_what_the_records_say(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["methods", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == list(METHODS)
    for row in rows:
        one = record(row["method"])
        assert row["what it is"] == one.summary
        assert row["in words"]["rule"] == one.rule
        assert (row["source"], row["limits"]) == (one.source, one.limits)
        assert row["needs"] == [str(need) for need in one.needs]
        assert {k: v["explained"] for k, v in row["options"].items()} == dict(one.options)
        assert row["training"]["most"] == one.course.most
    assert main(["methods", "Noisy-KFAC"]) == 0
    assert capsys.readouterr().out.strip() == f"noisy_kfac\n{inspect.getdoc(br.noisy_kfac)}"
    assert main(["methods", "vogm"]) == 2
    assert "Did you mean 'vogn'?" in capsys.readouterr().err
