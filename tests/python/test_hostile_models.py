"""A few of the broken models, checkpoints, data files and command lines that scripts/fuzz tries by the hundred under
sanitizers."""

import fuzz
import tool


def test_what_is_broken_gives_one_clear_error(request):
    complaints, _ = fuzz.run(tool.COMMAND, request.config.getoption("--mutations"))
    assert not complaints, "\n".join(map(str, complaints))
