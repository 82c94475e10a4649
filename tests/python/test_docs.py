"""The documentation: what its pages show runs and prints that, and the options and sources that they name exist."""

import re
import subprocess

import pages
import pytest
import tool

COMMANDS = "check build import-ort fit sweep eval predict sample export flatten grad verify show opt bench scale devices ops report watch explain completion".split()
# Their test is test_package_onnxruntime.py.
ELSEWHERE = {"docs/from_onnxruntime_training.md"}


def languages(page):
    return {language for language, _ in pages.blocks(page)}


CONSOLE = [page for page in pages.paths() if "console" in languages(page) and "python" not in languages(page)]
PYTHON = [page for page in pages.paths() if "python" in languages(page) and page not in ELSEWHERE]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    pages.prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", CONSOLE)
def test_the_commands_of_a_page_print_what_it_says(page, folder):
    assert pages.run(page, folder) > 0


@pytest.mark.parametrize("page", PYTHON)
def test_the_programs_of_a_page_run_and_print_what_it_says(page, folder):
    pytest.importorskip("onnx_train", reason="the Python package is not built")
    assert pages.run(page, folder) > 0


def test_the_pages_that_must_run_are_among_those():
    assert {"docs/tutorials/command.md", "docs/tutorials/cpp.md"} <= set(CONSOLE)
    assert {"README.md", "docs/python.md", "docs/recipes.md", "docs/tutorials/python.md"} <= set(PYTHON)


def test_a_line_that_is_not_printed_is_found():
    with pytest.raises(AssertionError, match="'b 2' is not in"):
        pages.assert_shows(["a 1", "b 2"], "b 2\na 1\nb 3\n", str.split)
    pages.assert_shows(["a 1", "b 2"], "a 7\nc\nb 8\n", pages.without_numbers)


@pytest.fixture(scope="module")
def options():
    """All options of the command's subcommands, and those that the scripts and benchmarks read."""
    text = "".join(tool.run(command, "--help") for command in COMMANDS)
    for pattern in "scripts/*", "bench/*.py", "models/losses/*.py", "models/zoo/*.py", "tests/python/**/fuzz*.py":
        text += "".join(path.read_text() for path in tool.ROOT.glob(pattern) if path.is_file())
    return set(re.findall(r"--[a-z][a-z0-9-]+", text))


@pytest.mark.parametrize("page", pages.paths())
def test_options_that_a_page_names_exist(page, options):
    # Options of other programs are in lines that call them.
    others = r"\b(cmake|pip|nvcc|ctest|git|pkg-config|mkdocs|unit_tests|clang-format|torchrun|mpirun|srun|sbatch|docker|kubectl|build-arg|optimum-cli|onnxruntime_genai|gpu_check)\b"
    lines = [line for line in pages.text_of(page).splitlines() if not re.search(others, line)]
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]+", "\n".join(lines)))
    assert named <= options, f"{page} names {sorted(named - options)}"


@pytest.fixture(scope="module")
def sources():
    """The tracked files and their folders."""
    files = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=tool.ROOT,
                           capture_output=True, text=True)  # fmt: skip
    if files.returncode != 0:
        pytest.skip("not a checkout of git")
    return files.stdout.split()


PATH_OF_SOURCE = re.compile(r"(?<![\w/.*<-])(?:[\w-]+/)*[\w-]+\.(?:cc|cuh?|h|hpp|py|sh)(?![\w*])")


@pytest.mark.parametrize("page", pages.paths())
def test_sources_that_a_page_names_exist(page, sources):
    # Links are for test_site.py.
    text = re.sub(r"\]\([^)]*\)|https?://\S+", "", pages.text_of(page))
    names = PATH_OF_SOURCE.findall(text)
    missing = [name for name in names if not any(f"/{path}".endswith(f"/{name}") for path in sources)]
    assert not missing, f"{page} names {missing}"


PARTS = "bench|bindings|cmake|docs|examples|include|kernels|library|models|onnx_passes|platform|python_bindings|runtime|scripts|tests|tools"
PATH_FROM_THE_ROOT = re.compile(rf"(?<![\w/.*<$-])((?:{PARTS})/(?:[\w./-]*\w/?)?)(?![\w*<{{/])")


@pytest.mark.parametrize("page", pages.paths())
def test_paths_that_a_page_names_exist(page):
    text = re.sub(r"\]\([^)]*\)|https?://\S+", "", pages.text_of(page))
    missing = [name for name in PATH_FROM_THE_ROOT.findall(text) if not (tool.ROOT / name).exists()]
    assert not missing, f"{page} names {missing}"


def test_a_path_that_does_not_exist_is_found():
    text = "`tests/python/`, (kernels/cpu/gone.json), kernels/*.cc, FOLDER/kernels/x.h, tests/golden/<pass>.txt, runtime/plan."
    assert PATH_FROM_THE_ROOT.findall(text) == ["tests/python/", "kernels/cpu/gone.json", "runtime/plan"]


# `name`, `Type::name`, `name(arguments)`
SYMBOL = re.compile(r"`([A-Za-z_]\w*(?:::[A-Za-z_]\w*)*)(?:\([^`\n]*\))?`")
# Of other programs, packages of Debian and tests that CMake names.
OTHERS = {*"IOBinding ORTModule Ort DataCollatorForLanguageModeling WeightedRandomSampler max_grad_norm past_key_values".split(),
          *"mean_with_sample_weight manylinux_2_35 unit_avx2 unit_scalar cudaLaunchAttributeCooperative".split(),
          *"libc6 libutf8proc2 libgfortran5 libgloo0 libgomp1 libprotobuf32 libquadmath0 libwebp7 libxxhash0".split()}  # fmt: skip


def symbols_of(text):
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    return {part for name in SYMBOL.findall(text) for part in name.split("::")}


@pytest.fixture(scope="module")
def words(sources):
    """Those of all sources: what is called so, and what is written so in a string."""
    binary = (".md", ".onnx", ".bin", ".npz", ".ipynb", ".svg", "test_docs.py")  # this file has OTHERS
    texts = [tool.ROOT / path for path in sources if not path.endswith(binary)]
    return {word for path in texts if path.is_file() for word in re.findall(r"\w+", path.read_text(errors="ignore"))}


@pytest.mark.parametrize("page", [page for page in pages.paths() if page != "CHANGELOG.md"])
def test_symbols_that_a_page_names_exist(page, words):
    """A name may leave out what it begins with: the prefix of a library's names."""
    missing = symbols_of(pages.text_of(page)) - words - OTHERS
    missing = {name for name in missing if not any(word.endswith(f"_{name}") for word in words)}
    assert not missing, f"{page} names {sorted(missing)}"


def test_a_symbol_that_does_not_exist_is_found():
    text = "`Plan`, `Device::find`, `f(x, y)`, `a + b`, `--option`\n```\n`block`\n```\n"
    assert symbols_of(text) == {"Plan", "Device", "find", "f"}


@pytest.mark.parametrize("page, row", [("CONTRIBUTING.md", r"^\| `{0}/`.*"), ("docs/architecture.md", r"^{0}/ .*(?:\n .*)*")])
@pytest.mark.parametrize("part", ["platform", "onnx_passes", "kernels", "runtime", "tests"])
def test_a_map_of_the_sources_names_each_folder_of_a_part(page, row, part):
    shown = "".join(re.findall(row.format(f"{part}[/a-z`, ]*"), pages.text_of(page), re.MULTILINE))
    folders = {path.name for path in (tool.ROOT / part).iterdir() if path.is_dir() and path.name != "__pycache__"}
    missing = {name for name in folders if not re.search(rf"\b{name}\b", shown)}
    assert shown and not missing, f"{page}: {part} holds {sorted(missing)}, too"


def code(text):
    """The lines of a text that are code, without the space around them."""
    return [line.strip() for line in text.splitlines() if line.strip() and line.strip() != "..."]


def test_the_tutorial_of_cpp_shows_the_whole_example():
    shown = "".join(block for language, block in pages.blocks("docs/tutorials/cpp.md") if language == "cpp")
    assert code(shown) == code((tool.ROOT / "examples/cpp/train.cc").read_text())


def test_the_page_about_installation_says_for_each_system_what_runs_there_and_where_to_read_on():
    page = pages.text_of("docs/install.md")
    rows = [row.strip("| ").split(" | ") for row in page.split("## Packages")[0].splitlines() if row.startswith("| ")][2:]
    systems = " ".join(row[0] for row in rows)
    for system in "x86-64 aarch64 Raspberry 32-bit Windows WSL macOS Android iOS browser GPUs".split():
        assert system in systems
    for system, *cells in rows:
        assert len(cells) == 3 and all("](" in cell for cell in cells), system
    readme = pages.text_of("README.md")
    assert "docs/install.md#what-runs-where" in re.search(r"^\| machines \| .*", readme, re.MULTILINE)[0]


def test_the_readme_counts_what_there_is():
    """Losses, metrics, optimizers and commands are those of the command's tables."""
    script, page = tool.run("completion", "fish"), pages.text_of("README.md")

    def words(option):
        return re.search(rf"from build' -l {option} -x -a '([^']*)'", script).group(1).split()

    assert f"[{len(words('loss'))} of them](docs/losses.md)" in page
    assert f"[{len(words('metric'))} of them](docs/metrics.md)" in page
    optimizers = re.search(r"^\| optimizers \|.*", page, re.MULTILINE).group()
    assert {name for name in words("optimizer") if f"`{name}`" not in optimizers} == set()
    table = page.partition("### All commands")[2].partition("\nFrom Python")[0]
    named = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(re.findall(r"-a (\w+) -d", script))


def test_the_readme_quotes_the_example():
    quoted = [line for language, block in pages.blocks("README.md") if language == "cpp" for line in code(block)]
    assert quoted and set(quoted) <= set(code((tool.ROOT / "examples/cpp/train.cc").read_text()))


def test_the_page_about_operators_quotes_the_sources():
    """Clang-format may break a line of a source where the page does not."""
    text = "".join(path.read_text() for folder in ("onnx_passes", "kernels", "tests/op_cases")
                   for path in sorted((tool.ROOT / folder).rglob("*.*")) if path.suffix in (".cc", ".cu", ".h"))  # fmt: skip
    text = re.sub(r"\s", "", text)
    count = 0
    for language, block in pages.blocks("docs/adding_an_operator.md"):
        if language not in ("cpp", "diff"):
            continue
        for part in re.split(r"^\s*\.\.\.$|^ *$", re.sub(r"^\+", "", block, flags=re.MULTILINE), flags=re.MULTILINE):
            assert re.sub(r"\s", "", part) in text, f"the sources do not have\n{part}"
            count += 1
    assert count > 8
