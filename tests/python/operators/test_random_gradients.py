"""Outputs and gradients of the random models that fuzz_gradients.py makes by the thousand."""

import numpy as np
import pytest

import fuzz_gradients


def test_random_models_have_the_outputs_and_gradients_of_others(request):
    complaints, counts = fuzz_gradients.run(0, request.config.getoption("--random-gradients"))
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    assert not complaints, "\n".join(f"{number}: {text}" for number, text in complaints.items())
    refused = {what: count for what, count in counts.items() if what.startswith("refused")}
    assert all("(Loop)" in what for what in refused) and sum(refused.values()) <= 4, refused  # values that grow


@pytest.mark.parametrize("wrong", [1 + 1e-4, 0.0])
def test_a_wrong_gradient_is_a_failure(monkeypatch, wrong):
    right = fuzz_gradients.Derivative.run

    def run(self, arrays, u):
        results = dict(right(self, arrays, u))
        name = next(iter(self.results.values()))
        return results | {name: np.asarray(results[name]) * wrong}

    monkeypatch.setattr(fuzz_gradients.Derivative, "run", run)
    failures = 0
    for number in range(20):
        try:
            fuzz_gradients.check(number, fuzz_gradients.Counter())
        except fuzz_gradients.Failure as failure:
            failures += "differences are" in str(failure)
    assert failures >= 15  # of the others, the gradient is zero
