"""A few of the broken model files that scripts/fuzz tries by the hundred under sanitizers."""

import fuzz
import tool


def test_broken_models_give_one_clear_error(request):
    complaints, _ = fuzz.run(tool.COMMAND, request.config.getoption("--mutations"))
    assert not complaints, "\n".join(f"{number} {mutation}, {sub}: {text}" for number, mutation, sub, text in complaints)
