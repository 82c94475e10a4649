"""The manual pages hold what --help prints."""

import re
import shutil
import subprocess

import tool


def test_every_option_and_example_of_the_help_is_in_its_page(tmp_path):
    subprocess.run([tool.ROOT / "scripts" / "man_pages", tool.COMMAND, tmp_path / "man1"], check=True)
    helps = {"onnx-train": tool.run("--help")}
    commands = re.findall(r"^  ([\w-]+) ", helps["onnx-train"].split("Options:")[0], re.MULTILINE)
    assert "fit" in commands and len(commands) > 15
    helps |= {f"onnx-train-{name}": tool.run(name, "--help") for name in commands}
    assert {path.stem for path in (tmp_path / "man1").iterdir()} == set(helps)
    for name, printed in helps.items():
        page = (tmp_path / "man1" / f"{name}.1").read_text()
        plain = re.sub(r"\\e", r"\\", re.sub(r"\\([-&])", lambda m: m[1] * (m[1] == "-"), page))
        assert plain.startswith(f'.TH {name.upper()} 1')
        for line in printed.splitlines():
            for part in re.split(r" {2,}", line.strip().removesuffix(".")):
                part = part.removeprefix("Usage: ").removesuffix(":")
                if not part.endswith("--help says more"):
                    assert part in plain or part.upper() in plain, (name, part)
        if shutil.which("groff"):
            done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", tmp_path / "man1" / f"{name}.1"], capture_output=True)
            assert done.returncode == 0 and not done.stderr, done.stderr
