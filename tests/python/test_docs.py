"""The README's tour prints what it says, and the documentation names options that exist."""

import re
import shlex
import subprocess

import pytest
import tool

COMMANDS = ["check", "build", "fit", "eval", "predict", "export", "flatten", "grad", "verify", "show", "bench", "devices"]
PAGES = ["README.md", *sorted(f"docs/{path.name}" for path in (tool.ROOT / "docs").glob("*.md"))]


def tour():
    """(command, the lines that the README prints after it) of the tour."""
    block = re.search(r"```\n(\$ .*?)```", (tool.ROOT / "README.md").read_text(), re.DOTALL).group(1)
    for part in re.split(r"^\$ ", block.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        command, *lines = part.strip().splitlines()
        yield shlex.split(command), lines


def without_numbers(line):
    """Numbers of a training differ from processor to processor in their last digits, and so does which epoch is best."""
    return re.sub(r"\d[\d.e-]*", "0", line).replace(" best", "").split()


def test_the_tour_prints_what_it_says(tmp_path):
    (tmp_path / "models").symlink_to(tool.ROOT / "models")
    seen = 0
    for (program, *arguments), lines in tour():
        assert program == "onnx-train"
        done = subprocess.run([tool.COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed = [without_numbers(line) for line in (done.stdout + done.stderr).splitlines()]
        for line in lines:
            assert without_numbers(line) in printed, f"{line!r} is not in\n{done.stdout}{done.stderr}"
            seen += 1
    assert seen > 8


@pytest.fixture(scope="module")
def options():
    """All options of the command's subcommands, and those that the scripts and benchmarks read."""
    text = "".join(tool.run(command, "--help") for command in COMMANDS)
    for folder, pattern in ("scripts", "*"), ("bench", "*.py"), ("tests/python/fuzzing", "fuzz*.py"):
        text += "".join(path.read_text() for path in (tool.ROOT / folder).glob(pattern) if path.is_file())
    return set(re.findall(r"--[a-z][a-z0-9-]+", text))


@pytest.mark.parametrize("page", PAGES)
def test_options_that_a_page_names_exist(page, options):
    text = (tool.ROOT / page).read_text()
    # Options of other programs are in lines that call them.
    lines = [line for line in text.splitlines() if not re.search(r"\b(cmake|pip|nvcc|ctest|git|pkg-config)\b", line)]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", "\n".join(lines)))
    assert named <= options, f"{page} names {sorted(named - options)}"
