"""Java, C# and JavaScript: what docs/languages.md shows is part of programs that the tests of the bindings run, and what is
by hand agrees with the header."""

import re

import pages
import pytest
import tool

PROGRAMS = {"java": "java/examples/Start.java", "csharp": "csharp/examples/Start.cs", "javascript": "javascript/examples/start.js"}


@pytest.mark.parametrize("language, program", PROGRAMS.items())
def test_the_page_shows_a_part_of_a_program(language, program):
    shown = [line.strip() for name, block in pages.blocks("docs/languages.md") if name == language for line in block.splitlines()]
    lines = [line.strip() for line in (tool.ROOT / "bindings" / program).read_text().splitlines()]
    assert shown
    assert shown in [lines[i : i + len(shown)] for i in range(len(lines))]


@pytest.mark.parametrize("language, program", PROGRAMS.items())
def test_the_tests_of_a_binding_run_that_program(language, program):
    assert program.rpartition("/")[2].partition(".")[0] in (tool.ROOT / "bindings" / language / "test").read_text()


def test_the_jar_has_the_version_of_the_library():
    version = re.search(r'ONNX_TRAIN_VERSION "(.*)"', (tool.ROOT / "include/onnx_train/version.h").read_text())[1]
    assert f"<artifactId>onnx-train</artifactId>\n  <version>{version}</version>" in (tool.ROOT / "bindings/java/pom.xml").read_text()


def numbers(enum):
    """{"OK": 0, ...} of an enum of the header."""
    text = (tool.ROOT / "include/onnx_train/onnx_train.h").read_text()
    body = re.search(rf"typedef enum {enum} {{(.*?)}} {enum};", text, re.DOTALL)[1]
    return {name: int(number) for name, number in re.findall(r"\bONNX_TRAIN_(\w+) = (\d+)", body)}


def java_names(file):
    text = (tool.ROOT / "bindings/java/src/main/java/onnxtrain" / file).read_text()
    return re.findall(r"^  ([A-Z0-9_]+)\b", re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL), re.MULTILINE)


def test_numbers_by_hand_are_those_of_the_header():
    status, reasons, types = numbers("onnx_train_status"), numbers("onnx_train_stop_reason"), numbers("onnx_train_type")
    assert {name: i for i, name in enumerate(java_names("Status.java"))} == status
    assert {name: i for i, name in enumerate(java_names("StopReason.java")[:-1])} == reasons
    following = numbers("onnx_train_next")
    text = (tool.ROOT / "bindings/java/src/main/java/onnxtrain/Next.java").read_text()
    numbered = {name: int(number) for name, number in re.findall(r"^  ([A-Z_]+)\((\d+)\)", text, re.MULTILINE)}
    assert numbered == {name: number for name, number in following.items() if name != "FAIL"}
    java = (tool.ROOT / "bindings/java/src/main/java/onnxtrain/ElementType.java").read_text()
    assert {name: int(number) for name, number in re.findall(r"^  (\w+)\((\d+), \d+\)", java, re.MULTILINE)} == types

    script = "".join((tool.ROOT / "bindings/javascript" / file).read_text() for file in ("index.js", "values.js"))
    listed = {name: re.findall(r"'([\w-]+)'", text) for name, text in re.findall(r"^const (\w+) = \[(.*)\];", script, re.MULTILINE)}
    assert [int(re.search(rf"^const {name} = (\d+);", script, re.MULTILINE)[1]) for name in ("FAIL", "END_TEXT")] == [
        following["FAIL"], following["END_TEXT"]]  # fmt: skip
    assert listed["STATUS"] == [name.lower() for name in status]
    assert listed["REASONS"] == [name.lower().replace("_", "-") for name in reasons]
    assert sorted(int(number) for number in re.findall(r"^  \w+: \[(\d+), \w+Array\]", script, re.MULTILINE)) == sorted(types.values())
