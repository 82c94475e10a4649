"""A few of the random models that fuzz_lowering.py makes by the thousand."""

import fuzz_lowering


def test_plans_of_random_models_agree(request):
    complaints, counts = fuzz_lowering.run(0, request.config.getoption("--random-models"))
    print(", ".join(f"{count} {what}" for what, count in counts.items()))
    assert not complaints, "\n".join(f"{number}: {text}" for number, text in complaints.items())
