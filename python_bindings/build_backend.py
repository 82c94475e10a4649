"""The build backend of pyproject.toml: scikit-build-core with the CMake that scripts/bootstrap installed.

Without it an isolated build does not find that CMake, whose command needs the virtual environment, and pip downloads
another one: half of the time of `pip install .`.
"""

import os
from pathlib import Path

from scikit_build_core.build import *  # noqa: F403  (the hooks that pip calls)

_packages = Path(__file__).parents[1] / ".deps" / "venv"
for _program in sorted(_packages.glob("lib/python3*/site-packages/cmake/data/bin/cmake")):
    os.environ.setdefault("CMAKE_EXECUTABLE", str(_program))
