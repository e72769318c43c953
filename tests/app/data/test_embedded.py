"""The sets inside scikit-learn and the one door to every table."""

from __future__ import annotations

import pytest

from bayesrule.app.data import EMBEDDED, DataError, Encoder, embedded, open_table

SHAPES = {
    "diabetes": (442, 11),
    "breast_cancer": (569, 31),
    "wine": (178, 14),
    "iris": (150, 5),
    "digits": (1797, 65),
}


@pytest.mark.parametrize("name", EMBEDDED)
def test_each_set_loads_and_knows_its_target(name: str) -> None:
    table = embedded(name)
    assert table.frame.shape == SHAPES[name]
    assert table.target == EMBEDDED[name].target
    encoder = Encoder.fit(table)
    kind = "regression" if name == "diabetes" else "classification"
    assert encoder.task.kind == kind
    x, y = encoder.transform(table), encoder.targets(table)
    assert x.isfinite().all()
    assert len(x) == len(y) == SHAPES[name][0]


def test_default_is_diabetes_in_its_own_units() -> None:
    table = open_table()
    assert table.name == "diabetes"
    assert table.frame["age"].between(19, 79).all()
    assert table.frame["progression"].between(25, 346).all()


def test_class_names_are_words() -> None:
    assert set(embedded("iris").frame["species"]) == {"setosa", "versicolor", "virginica"}
    assert embedded("breast_cancer").frame["diagnosis"].value_counts()["benign"] == 357


def test_wine_is_scikit_learns() -> None:
    assert open_table("wine").target == "cultivar"


def test_unknown_names_list_what_exists() -> None:
    with pytest.raises(DataError, match=r"'diabets'.*Did you mean 'diabetes'.*'iris'.*'yacht'"):
        open_table("diabets")
    with pytest.raises(DataError, match="Did you mean 'digits'"):
        embedded("digit")
