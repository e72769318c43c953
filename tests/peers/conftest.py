"""Double precision and a fixed seed for every test of this folder."""

import pytest


@pytest.fixture(autouse=True)
def _exact(double_precision: None) -> None:
    """Asks for it in every test."""
