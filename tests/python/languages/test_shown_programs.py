"""What docs/languages.md shows in Java, C# and JavaScript is part of programs that the tests of these bindings run."""

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
