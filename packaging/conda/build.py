#!/usr/bin/env python3
"""Builds and tests the recipe of a folder by the engine of rattler-build, whose Python package is py-rattler-build.

    packaging/conda/build.py RECIPE OUTPUT [--stand-ins]

Dependencies come from conda-forge. With --stand-ins they are packages of the same names that this script makes: oneDNN and the tools
are those of scripts/bootstrap, everything else is empty and found in the system. That tries all of the recipe but the names and
versions of its dependencies: sources and checksums, the build, what is installed and how it is relinked, the tests.
"""

import argparse
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

import rattler_build

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".deps/venv"
# conda-forge's compilers, by its pinnings of 2026.
VARIANTS = """
c_compiler: [gcc]
c_compiler_version: ["15"]
cxx_compiler: [gxx]
cxx_compiler_version: ["15"]
c_stdlib: [sysroot]
c_stdlib_version: ["2.17"]
"""
# What the compilers of conda-forge set when an environment is activated; the compiler is one that this version was tried with, and
# has compiled the same before.
ACTIVATE = """
export CC=cc CXX=c++ CMAKE_ARGS="-DONNX_TRAIN_WERROR=ON"
unset LC_ALL; export LANG=C.UTF-8  # by which ccache tells calls apart
export CMAKE_CXX_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=${SRC_DIR%/*} CCACHE_NOHASHDIR=1
export LDFLAGS="-Wl,-rpath,$PREFIX/lib -L$PREFIX/lib -Wl,--allow-shlib-undefined" PKG_CONFIG_PATH="$PREFIX/lib/pkgconfig"
"""
# Versions that satisfy the recipe; 99 where it asks for none.
STAND_INS = {
    "gcc_linux-64": "15.1", "gxx_linux-64": "15.1", "sysroot_linux-64": "2.17", "cmake": "4.0", "ninja": "1.13", "pkg-config": "0.29",
    "onednn": "3.2", "openblas": "0.3.21",
}  # fmt: skip
BUILD_STRINGS = {"onednn": "omp_0", "openblas": "openmp_0"}


def names_of(requirement):
    """The names in a list of requirements, as rattler-build gives them before it renders."""
    text = str(requirement)
    return [] if "${{" in text else [text.split()[0]]


def files_of(name, folder):
    """What the stand-in has."""
    if name in ("cmake", "ninja"):
        (folder / "bin").mkdir()
        tool = folder / "bin" / name
        tool.write_text(f'#!/bin/sh\nexec "{TOOLS}/bin/{name}" "$@"\n')
        tool.chmod(0o755)
    elif name == "onednn":
        for path in [*(TOOLS / "include").rglob("*dnnl*"), *(TOOLS / "lib").glob("libdnnl.so*"), *(TOOLS / "lib/cmake/dnnl").iterdir()]:
            if path.is_file():
                to = folder / path.relative_to(TOOLS)
                to.parent.mkdir(parents=True, exist_ok=True)
                to.write_bytes(path.read_bytes())
    elif name == "gxx_linux-64":
        activate = folder / "etc/conda/activate.d/activate-gxx_linux-64.sh"
        activate.parent.mkdir(parents=True)
        # The build's home is a folder of its own, where ccache would begin with nothing.
        cache = subprocess.run(["ccache", "--get-config", "cache_dir"], capture_output=True, text=True, check=True).stdout.strip()
        activate.write_text(f"export CCACHE_DIR={shlex.quote(cache)}\n{ACTIVATE}")
    if not any(folder.iterdir()):
        (folder / "share").mkdir()
        (folder / "share" / f"{name}.stand-in").touch()


def make_stand_ins(recipe, output):
    requirements = recipe.as_single_output().requirements
    names = {name for each in (*requirements.build, *requirements.host) for name in names_of(each)}
    for name in sorted(names | set(STAND_INS)):
        with tempfile.TemporaryDirectory() as folder:
            files_of(name, Path(folder))
            rattler_build.assemble_package(
                name, STAND_INS.get(name, "99"), "linux-64", BUILD_STRINGS.get(name, "0"), output / "linux-64", files_dir=folder,
                license="Apache-2.0", compression_level=1,
            )  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--stand-ins", action="store_true")
    arguments = parser.parse_args()
    recipe = rattler_build.Stage0Recipe.from_file(arguments.recipe / "recipe.yaml")
    channels = ["conda-forge"]
    if arguments.stand_ins:
        make_stand_ins(recipe, arguments.output)
        channels = [arguments.output.resolve().as_uri()]
    try:
        results = recipe.run_build(
            rattler_build.VariantConfig.from_yaml(VARIANTS),
            rattler_build.ToolConfiguration(test_strategy="native", keep_build=True),
            output_dir=arguments.output,
            channels=channels,
        )
    except rattler_build.RattlerBuildError as error:
        sys.exit(f"packaging/conda/build.py: {error}")
    for result in results:
        print(*result.packages, sep="\n")


if __name__ == "__main__":
    main()
