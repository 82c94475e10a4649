"""What packages say of themselves: versions, dependencies, files and bills of materials. packaging/README.md says how the packages
themselves are tried."""

import base64
import hashlib
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import zipfile

import pytest
import tool

ROOT = tool.ROOT
COMPONENTS = json.loads((ROOT / "packaging/components.json").read_text())
RECIPE = (ROOT / "packaging/conda/recipe.yaml").read_text()
PORT = json.loads((ROOT / "packaging/vcpkg/ports/onnx-train/vcpkg.json").read_text())
PORTFILE = (ROOT / "packaging/vcpkg/ports/onnx-train/portfile.cmake").read_text()
BOOTSTRAP = (ROOT / "scripts/bootstrap").read_text()
VERSION = re.search(r'ONNX_TRAIN_VERSION "(.*)"', (ROOT / "include/onnx_train/version.h").read_text())[1]


def module():
    loader = importlib.machinery.SourceFileLoader("sbom", str(ROOT / "scripts/sbom"))
    loaded = importlib.util.module_from_spec(importlib.util.spec_from_loader("sbom", loader))
    loader.exec_module(loaded)
    return loaded


@pytest.fixture
def sbom():
    return module()


def assigned(text, name):
    return re.search(rf"^\s*(?:set\()?{name}[ =:]+\"?([\w.]+)", text, re.MULTILINE)[1]


def test_all_recipes_and_bindings_have_the_version_of_the_header():
    versions = {
        "conda": assigned(RECIPE, "version"),
        "vcpkg": PORT["version"],
        "rust": assigned((ROOT / "bindings/rust/Cargo.toml").read_text(), "version"),
        "javascript": json.loads((ROOT / "bindings/javascript/package.json").read_text())["version"],
        "command": tool.run("--version").split()[-1],
    }
    assert versions == dict.fromkeys(versions, VERSION)
    assert f"{VERSION}.tar.gz" in RECIPE
    assert f"VERSION {VERSION}" not in (ROOT / "CMakeLists.txt").read_text()  # which reads the header


def test_recipes_build_the_onnx_of_bootstrap():
    version = assigned(BOOTSTRAP, "onnx_version")
    assert assigned(RECIPE, "onnx_version") == version == assigned(PORTFILE, "ONNX_VERSION")
    assert f"sha256: {assigned(BOOTSTRAP, 'onnx_sha256')}\n" in RECIPE
    archive = ROOT / f".deps/onnx-{version}.tar.gz"
    if archive.exists():
        assert f"SHA512 {hashlib.sha512(archive.read_bytes()).hexdigest()}\n" in PORTFILE
    for text in BOOTSTRAP, (ROOT / "packaging/conda/build.sh").read_text(), PORTFILE:
        assert "cmake/onnx.cmake" in text
        assert "onnx_train_onnx" not in text  # which that file says


def named(key):
    names = [component[key] for component in COMPONENTS if key in component]
    return {name for each in names for name in ([each] if isinstance(each, str) else each)}


def test_dependencies_of_recipes_are_those_of_bootstrap():
    packages = re.search(r"^packages=\((.*?)\)", BOOTSTRAP, re.MULTILINE | re.DOTALL)[1].split()
    tools = {"build-essential", "ccache", "python3-dev", "python3-venv"}
    assert set(packages) - tools == named("debian")
    for component in COMPONENTS:
        if "debian" in component and component["name"] != "Gloo":  # the recipes have no ranks over Gloo
            assert {"conda", "vcpkg"} <= set(component), component["name"]
    host = re.search(r"^  host:\n((?:    .*\n)+)", RECIPE, re.MULTILINE)[1]
    assert set(re.findall(r"^    - ([\w-]+)", host, re.MULTILINE)) == named("conda")
    dependencies = {each if isinstance(each, str) else each["name"] for each in PORT["dependencies"]}
    assert dependencies - {"vcpkg-cmake", "vcpkg-cmake-config"} == named("vcpkg")


def test_what_cmake_looks_for_is_in_the_table():
    files = [*(ROOT / "cmake").glob("*.cmake"), ROOT / "python_bindings/CMakeLists.txt"]
    text = "".join(re.sub(r"#.*", "", path.read_text()) for path in files)
    found = set(re.findall(r"\bfind_package\((\S+?)[ )]", text)) | set(re.findall(r"\badd_system_library\((\S+) \S+ \S+\)", text))
    assert found - {"GTest", "benchmark", "Python"} == named("cmake")


def test_the_page_of_dependencies_has_those_of_the_table():
    page = (ROOT / "docs/deployment.md").read_text().split("## What it is built with\n")[1].split("\n## ")[0]
    for component in COMPONENTS:
        if {"cmake", "debian"} & set(component):
            names = "OpenMP" if component["name"].startswith("libgomp") else component["name"]
            assert any(re.search(rf"\b{re.escape(name)}\b", page) for name in names.split(" or ")), names


def test_the_notice_lists_what_the_table_has():
    notice = (ROOT / "NOTICE").read_text()
    listed = re.findall(r"^  (\S.*?)(?:   *\S.*)$", notice, re.MULTILINE)
    # Those without a line of their own are in the line of what brings them.
    alone = {component["name"] for component in COMPONENTS if "of" not in component}
    assert set(listed) == alone
    for component in COMPONENTS:
        assert component["name"] in notice, component["name"]
        licences = re.split(r" (?:AND|OR|WITH) ", component["license"])
        assert any(re.sub(r"-(only|or-later)$", "", each) in notice for each in licences), component


def test_every_installed_file_is_of_a_component_that_a_package_has(tmp_path):
    for component in "command", "library", "development", "gloo", None:
        only = ["--component", component] if component else []
        subprocess.run(["cmake", "--install", tool.BUILD, "--prefix", tmp_path / str(component), *only], check=True, capture_output=True)
    files = {
        folder.name: {path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir()} for folder in tmp_path.iterdir()
    }
    everything = files.pop("None")
    modules = {path for path in everything if re.search(r"onnx_train_(mpi|cuda)\.so$", path)}  # which no package has
    assert set().union(*files.values()) == everything - modules
    traces = [path for path in everything - modules if str(ROOT).encode() in (tmp_path / "None" / path).read_bytes()]
    assert not traces, f"{traces} name a folder of this machine"
    for component, end in [
        ("command", "bin/onnx-train"), ("command", "share/man/man1/onnx-train-fit.1"), ("command", "share/zsh/site-functions/_onnx-train"),
        ("library", f"libonnx_train.so.{VERSION}"), ("library", "onnx-train/libonnxtrain_spin_limit.so"), ("library", "onnx-train/libdnnl.so.3"),
        ("development", "include/onnx_train/onnx_train.h"), ("development", "libonnx_train.so"), ("development", "onnx_train.pc"),
        ("development", "onnx_trainConfig.cmake"), ("gloo", "onnx-train/libonnx_train_gloo.so"),
    ]:  # fmt: skip
        assert [path for path in files[component] if path.endswith(end)], (component, end)
    # What the recipe says that its package has.
    contents = re.search(r"      files:\n((?:        - .*\n)+)", RECIPE)[1]
    for pattern in re.findall(r"- (\S+)", contents):
        if pattern.startswith("etc/conda/test-files/"):  # of the recipe's own tests
            continue
        assert any(path.full_match(pattern) if hasattr(path, "full_match") else path.match(pattern) for path in map(_path, everything)), pattern


def _path(text):
    from pathlib import PurePosixPath

    return PurePosixPath(re.sub(r"^lib/x86_64-linux-gnu/", "lib/", text))


def installed(folder):
    for name in "onnx-train", "libonnxtrain_spin_limit.so", "libonnx_train.so.0":
        shutil.copy(tool.BUILD / name, folder)
    (folder / "NOTICE").write_text("notice")
    return folder


def test_a_bill_has_files_what_they_are_linked_to_and_what_was_compiled_in(tmp_path, sbom, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    bill = sbom.bill_of(installed(tmp_path), "onnx-train", VERSION)
    assert bill == sbom.bill_of(tmp_path, "onnx-train", VERSION)  # the same files, the same bill
    assert bill["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    sums = {file["fileName"]: {each["algorithm"]: each["checksumValue"] for each in file["checksums"]} for file in bill["files"]}
    assert set(sums) == {"./onnx-train", "./libonnxtrain_spin_limit.so", "./libonnx_train.so.0", "./NOTICE"}
    assert sums["./NOTICE"]["SHA256"] == hashlib.sha256(b"notice").hexdigest()
    packages = {package["SPDXID"]: package for package in bill["packages"]}
    relations = {(each["relationshipType"], packages[each["relatedSpdxElement"]]["name"]) for each in bill["relationships"]
                 if each["relatedSpdxElement"] in packages}  # fmt: skip
    assert {("STATIC_LINK", "ONNX"), ("STATIC_LINK", "CLI11"), ("DEPENDS_ON", "oneDNN")} <= relations
    for prefix in "libprotobuf", "libmimalloc", "libopenblas", "libgomp":
        assert any(relation == "DEPENDS_ON" and name.startswith(prefix) for relation, name in relations), prefix
    versions = {package["name"]: package.get("versionInfo") for package in packages.values()}
    assert versions["ONNX"] == assigned(BOOTSTRAP, "onnx_version") and all(versions.values())
    subject = packages["SPDXRef-Package-onnx-train"]
    expected = hashlib.sha1("".join(sorted(each["SHA1"] for each in sums.values())).encode()).hexdigest()
    assert subject["packageVerificationCode"]["packageVerificationCodeValue"] == expected


def test_a_library_in_no_row_of_the_table_is_an_error(tmp_path, sbom, monkeypatch):
    monkeypatch.setattr(sbom, "COMPONENTS", [each for each in COMPONENTS if each["name"] != "mimalloc"])
    with pytest.raises(sbom.Error, match=r"^onnx-train needs libmimalloc\.so\.2, which is in no row of packaging/components\.json$"):
        sbom.bill_of(installed(tmp_path), "onnx-train", VERSION)
    with pytest.raises(sbom.Error, match="has no files"):
        (tmp_path / "empty").mkdir()
        sbom.bill_of(tmp_path / "empty", "onnx-train", VERSION)


def test_copies_of_libraries_in_a_wheel_are_known(sbom):
    assert sbom.component_of("libjpeg-5fa5d1b3.so.62.3.0")["name"] == "libjpeg-turbo"
    assert sbom.component_of("libopenblas-0123abcd.so.0")["name"] == "OpenBLAS"
    assert sbom.component_of("libopenblasp-r0-3c5ecc47.3.21.so")["name"] == "OpenBLAS"
    assert sbom.component_of("libnl-route-3-89abcdef.so.200")["name"] == "libnl"
    assert sbom.component_of("libunknown.so.1") is None


def test_a_wheel_lists_its_bill(tmp_path):
    wheel = tmp_path / "onnx_train-1.2.3-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("onnx_train/__init__.py", "")
        archive.writestr("onnx_train-1.2.3.dist-info/RECORD", "onnx_train/__init__.py,,\nonnx_train-1.2.3.dist-info/RECORD,,\n")
    for _ in range(2):  # the second one takes the place of the first
        command = [ROOT / "scripts/sbom", wheel, "--name", "onnx-train", "--version", "1.2.3", "--into-wheel"]
        subprocess.run(command, check=True)
    with zipfile.ZipFile(wheel) as archive:
        path = "onnx_train-1.2.3.dist-info/sboms/onnx-train.spdx.json"
        data = archive.read(path)
        record = archive.read("onnx_train-1.2.3.dist-info/RECORD").decode().splitlines()
        assert sorted(line.split(",")[0] for line in record) == sorted(archive.namelist())
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
    assert f"{path},sha256={digest},{len(data)}" in record
    assert [file["fileName"] for file in json.loads(data)["files"]] == ["./onnx_train/__init__.py"]


def test_spdx_tools_finds_a_bill_valid(tmp_path, sbom):
    pytest.importorskip("spdx_tools", reason="spdx-tools is not installed")
    from spdx_tools.spdx.parser.parse_anything import parse_file
    from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

    (tmp_path / "root").mkdir()
    path = tmp_path / "bill.spdx.json"
    path.write_text(json.dumps(sbom.bill_of(installed(tmp_path / "root"), "onnx-train", VERSION)))
    assert validate_full_spdx_document(parse_file(str(path))) == []


def test_recipes_are_filled_in_with_the_archive_that_is_published(tmp_path):
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode != 0:
        pytest.skip("not a checkout of git")
    url = f"https://downloads.example.com/onnx-train-{VERSION}.tar.gz"
    subprocess.run([ROOT / "scripts/package", "vcpkg", "--url", url], check=True, env=os.environ | {"OUT": str(tmp_path)}, capture_output=True)
    archive = (tmp_path / f"onnx-train-{VERSION}.tar.gz").read_bytes()
    port = (tmp_path / "vcpkg/ports/onnx-train/portfile.cmake").read_text()
    assert f'URLS "{url}"' in port and f"SHA512 {hashlib.sha512(archive).hexdigest()}\n" in port
    assert "example.org" not in port and "file://" not in port
    assert subprocess.run([ROOT / "scripts/package", "debian"], capture_output=True).returncode == 2
