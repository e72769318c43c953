"""Checkpoints of every method come back as they were."""

from bayesrule.methods import METHODS
from benchmarks.trust import devices


def test_every_method_loads_what_it_saved_and_trains_on() -> None:
    results = devices.run(["cpu"])["results"]
    assert [one["method"] for one in results] == list(METHODS)
    for one in results:
        assert one["largest_difference"] == 0.0, one
        assert 0.0 < one["loss_after"] < 1e5, one
