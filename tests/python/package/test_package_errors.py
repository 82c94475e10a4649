"""Errors with a code: the table, the pages and the places that throw belong together; a code arrives where people meet it."""

import fcntl
import os
import re
import shlex
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pages
import pytest
import tool
from PIL import Image

import onnx_train

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
TABLE = (tool.ROOT / "onnx_passes" / "ir" / "error_codes.def").read_text()
ROWS = re.findall(r'^ONNX_TRAIN_ERROR\((\w+), (\d+), (\w+), "(.*)"\)$', TABLE, re.MULTILINE)
CODES = {f"OT{number}": title for _, number, _, title in ROWS}
SOURCES = "onnx_passes kernels runtime library tools".split()


def page_of(code):
    return f"docs/errors/{code}.md"


def test_the_table_is_in_order_and_names_nothing_twice():
    assert TABLE.count("\nONNX_TRAIN_ERROR(") == len(ROWS) >= 50
    numbers, names, titles = [int(row[1]) for row in ROWS], {row[0] for row in ROWS}, set(CODES.values())
    assert numbers == sorted(set(numbers)) and len(names) == len(titles) == len(ROWS)


def test_each_code_has_a_page_and_each_page_a_code():
    assert {path.stem for path in (tool.ROOT / "docs" / "errors").glob("OT*")} == CODES.keys()
    for code, title in CODES.items():
        lines = pages.text_of(page_of(code)).splitlines()
        assert lines[0] == f"# {code}: {title}"
        assert 8 <= len([line for line in lines if line]) <= 20 and "**Ways out**" in lines, code


def test_the_index_lists_the_table():
    listed = re.findall(r"^\| \[(OT\d+)\]\((OT\d+)\.md\) \| (.*) \|$", pages.text_of("docs/errors/index.md"), re.MULTILINE)
    assert listed == [(code, code, title) for code, title in CODES.items()]
    sections = re.findall(r"^// ---- (.*)", TABLE, re.MULTILINE)
    assert re.findall(r"^## (.*)", pages.text_of("docs/errors/index.md"), re.MULTILINE) == sections


@pytest.fixture(scope="module")
def sources():
    files = [path for folder in SOURCES for ending in ("cc", "cu", "h") for path in (tool.ROOT / folder).rglob(f"*.{ending}")]
    return "".join(path.read_text() for path in files)


def test_each_code_is_thrown(sources):
    missing = [name for name, *_ in ROWS if not re.search(rf"ErrorCode::{name}\b", sources)]
    assert not missing


def test_bad_usage_has_codes_of_its_kind(sources):
    """A UsageError, which ends the command with status 2, and an expression that cannot be read."""
    kinds = {name: kind for name, _, kind, _ in ROWS} | {"kUsage": "kUsage"}
    statements = re.findall(r"(?:throw UsageError\(|reader_?(?:\.|->)fail_at\().*?\);\n", sources, re.DOTALL)
    named = [name for text in statements for name in re.findall(r"ErrorCode::(k\w+)", text)]
    assert {"kUnknownLoss", "kUnknownOption"} <= set(named) and {kinds[name] for name in named} == {"kUsage"}


def commands_of(code):
    """The lines of a page's blocks of commands that call the command."""
    text = "".join(block for language, block in pages.blocks(page_of(code)) if language == "sh")
    return [line for line in text.splitlines() if line.startswith("onnx-train ")]


@pytest.mark.parametrize("code", CODES)
def test_the_commands_of_a_page_are_read(code, tmp_path):
    """In an empty folder they end for want of their files, and not because of their options."""
    for line in commands_of(code):
        done = subprocess.run([tool.COMMAND, *shlex.split(line)[1:]], cwd=tmp_path, capture_output=True, text=True)
        absent = re.search(r"\[(OT1001|OT4001)\]$|: is no folder|No such file|cannot read ", done.stderr.strip())
        assert done.returncode == 0 or (done.returncode == 1 and absent), f"{line}\n{done.stderr}"


def test_pages_show_commands():
    assert sum(len(commands_of(code)) for code in CODES) > 80
    assert all("onnx-train " in pages.text_of(page_of(code)) for code in CODES)


# ---- explain


def test_explain_prints_the_page_and_lists_the_table():
    for code, title in CODES.items():
        assert tool.run("explain", code).startswith(f"{code}: {title}\n\n")
    for code in "OT2002", "ot2002", "[OT2002]":
        said = tool.run("explain", code)
        assert said.startswith(f"OT2002: {CODES['OT2002']}\n\n") and "\n  onnx-train check model.onnx\n" in said
        assert "```" not in said
    listed = [line.split(None, 1) for line in tool.run("explain").splitlines()]
    assert listed == [[code, title] for code, title in CODES.items()]


def test_explain_of_an_unknown_code_names_the_nearest():
    said = tool.run("explain", "OT2022", status=2)
    assert said.count("\n") == 1 and "there is no error 'OT2022'; did you mean 'OT2002'" in said


def test_the_command_ends_the_line_with_the_code(tmp_path):
    def last(*arguments, status=1):
        said = tool.run(*arguments, status=status)
        assert said.count("\n") == 1
        return said.rstrip("\n")

    assert last("check", tmp_path / "no.onnx").endswith("no.onnx: No such file or directory [OT1001]")
    assert last("flatten", MLP, "-o", tmp_path / "x.onnx").endswith(" -o train.onnx [OT1005]")
    for command in ("show", MLP, "--plan"), ("check", MLP), ("build", MLP, "-o", tmp_path / "x.onnx"):
        assert last(*command, "--dim", "nosuch=3").endswith("those of no fixed size are batch [OT5006]")
    assert last("fit", MLP, "--data", "x.npz", status=2).endswith("--steps or --time-limit [OT6003]")
    assert last("fit", MLP, "--nosuch", status=2).endswith("(see onnx-train fit --help) [OT6002]")
    assert last("buld", status=2).endswith("did you mean 'build'? (see onnx-train --help) [OT6002]")
    assert last("build", status=2).endswith("[OT6003]")
    assert last("check", MLP, "--dim", "x", status=2).endswith("not 'x' (see onnx-train check --help) [OT6001]")
    # An error that has no page ends as before.
    assert last("build", MLP, "-o", tmp_path / "x.onnx", "--ema", 0.9, "--swa", 10).endswith("give one")


def test_check_ends_with_the_code_of_the_first_obstacle(tmp_path):
    onnx.save(without_a_gradient(), tmp_path / "model.onnx")
    assert tool.run("check", tmp_path / "model.onnx", status=1).endswith("[OT2002]\n")
    assert tool.run("check", MLP, "--freeze", "*", status=1).endswith("[OT2003]\n")


# ---- One way to most of the errors


def parsed(body, x="float[N,3] x", y="float[N,3] y", opset=21):
    return onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["" : {opset}]> g ({x}) => ({y})
      <float[3,3] w = {{1,2,3,4,5,6,7,8,10}}> {{ {body} }}""")  # fmt: skip


def data(n=8, **changes):
    rng = np.random.default_rng(0)
    return {"x": rng.normal(size=(n, 4)).astype(np.float32), "labels": rng.integers(0, 3, n)} | changes


def training(**options):
    return onnx_train.build(MLP, loss="cross_entropy", **options)


def fit(model=None, given=None, **options):
    return onnx_train.fit(model or training(), data() if given is None else given, **({"epochs": 1} | options))


def without_data_file():
    model = onnx.load(MLP)
    onnx.save(model, "model.onnx", save_as_external_data=True, location="weights.data", size_threshold=0)
    (Path() / "weights.data").unlink()
    onnx_train.load("model.onnx")


def with_fixed_batch():
    fit(training(batch="4"), eval_data=data(6))


def without_a_gradient():
    return parsed("h = MatMul(x, w) y = LpPool<kernel_shape=[2], strides=[2], ceil_mode=1>(h)", "float[N,3,3] x",
                  "float[N,3,2] y")  # fmt: skip


def of_one_sample():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (float[N,3] x) => (float[N,3] y)
      <float[3] s = {1,2,3}, float[3] b = {1,1,2}, float[3] m = {0,1,2}, float[3] v = {1,2,3}>
      { y = BatchNormalization(x, s, b, m, v) }""")  # fmt: skip
    one = np.ones((1, 3), np.float32)
    onnx_train.Session(onnx_train.build(model, loss="mse"), threads=1).step(one, one)


def with_another_loss_model():
    loss = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (float[N,5] logits) => (float l)
      { l = ReduceMean<keepdims=0>(logits) }""")  # fmt: skip
    onnx_train.build(MLP, loss=loss)


def stepped(**changes):
    given = data(**changes)
    onnx_train.Session(training(), threads=1).step(given["x"], given["labels"])


def read(name, write):
    write(name)
    onnx_train.fit(training(), name, epochs=1)


def cut_off(name):
    np.savez(name, **data())
    path = Path(name)
    path.write_bytes(path.read_bytes()[:-100])


def of_objects(name):
    np.savez(name, **data(x=np.array([[1, 2], [1, 2, 3]], object)))


def of_text(text):
    return lambda name: Path(name).write_text(text)


def weights_of_another_model():
    np.savez("weights.npz", other=np.ones(3, np.float32))
    onnx_train.build(MLP, weights="weights.npz")


def again(**options):
    fit(folder="run")
    fit(folder="run", **options)


def damaged():
    fit(folder="run")
    path = Path("run/last.onnx")
    model = onnx.load(path)
    tensor = model.graph.initializer[0]
    tensor.raw_data = tensor.raw_data[:-1] + bytes([tensor.raw_data[-1] ^ 1])
    onnx.save(model, path)
    onnx_train.load(path)
    fit(folder="run", resume=True, epochs=2)


def with_pictures(path, picture):
    """Data of one picture at this path."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    picture(path)
    onnx_train.fit(onnx_train.build(tool.ROOT / "models" / "digits_cnn.onnx", loss="cross_entropy"), "pictures", epochs=1)


def with_few_tokens():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (int64[N,4] tokens) => (float[N,4,3] y)
      <float[3,3] w = {1,2,3,4,5,6,7,8,10}> { y = Gather(w, tokens) }""")  # fmt: skip
    np.array([0, 1], np.uint16).tofile("text.bin")
    onnx_train.fit(onnx_train.build(model, loss="cross_entropy"), "text.bin", epochs=1)


def in_a_locked_folder():
    Path("run").mkdir()
    folder = os.open("run", os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    try:
        fit(folder="run")
    finally:
        os.close(folder)


def without_a_kernel():
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]> g (uint8[N] x) => (uint8[H,W,3] y)
      { y = ImageDecoder(x) }""")  # fmt: skip
    onnx_train.Session(model, threads=1).run("predict", {"x": np.ones(20, np.uint8)})


WAYS = [
    ("OT1001", "file", lambda: onnx_train.load("missing.onnx")),
    ("OT1002", "file", lambda: onnx_train.load(b"no model")),
    ("OT1003", "file", lambda: onnx_train.load(MLP.read_bytes()[:-50])),
    ("OT1004", "file", without_data_file),
    ("OT1006", "unsupported", lambda: onnx_train.build(parsed("y = MatMul(x, w)", opset=6))),
    ("OT1007", "unsupported", lambda: onnx_train.build(parsed("y = MatMul(x, v)"))),
    ("OT1008", "unsupported", lambda: onnx_train.build(parsed("y = MatMul(x, w)", y="float[N,5] y"))),
    ("OT1009", "unsupported", with_fixed_batch),
    ("OT2001", "unsupported", lambda: onnx_train.build(parsed("y = Tahn(x)"))),
    ("OT2002", "unsupported", lambda: onnx_train.build(without_a_gradient(), loss="mse")),
    ("OT2003", "unsupported", lambda: onnx_train.build(MLP, freeze="*")),
    ("OT2004", "unsupported", lambda: onnx_train.build(parsed("h = MatMul(x, w) y = Round(h)"), loss="mse")),
    ("OT2005", "unsupported", without_a_kernel),
    ("OT2006", "unsupported", of_one_sample),
    ("OT3001", "usage", lambda: onnx_train.build(MLP, loss="mes(logits)")),
    ("OT3001", "usage", lambda: onnx_train.build(MLP, loss="nothing")),
    ("OT3002", "usage", lambda: onnx_train.build(MLP, loss="mse(nothing, labels)")),
    ("OT3003", "data", lambda: onnx_train.fit(MLP, {"x": data()["x"]}, epochs=1)),
    ("OT3004", "unsupported", with_another_loss_model),
    ("OT3005", "data", lambda: stepped(labels=np.full(8, 7))),
    ("OT3006", "data", lambda: stepped(x=np.full((8, 4), np.nan, np.float32))),
    ("OT3007", "data", lambda: fit(training(precision="fp16"), data(x=np.full((8, 4), 1e6, np.float32)), epochs=100)),
    ("OT3008", "usage", lambda: fit(best="accuracy")),
    ("OT4001", "file", lambda: fit(given="missing.npz")),
    ("OT4002", "file", lambda: read("x.xyz", of_text("1"))),
    ("OT4003", "data", lambda: fit(given={"labels": data()["labels"]})),
    ("OT4004", "data", lambda: fit(given=data(x=np.ones((8, 5), np.float32)))),
    ("OT4005", "data", lambda: fit(given=data(labels=np.zeros(7, np.int64)))),
    ("OT4006", "file", lambda: read("x.npz", cut_off)),
    ("OT4007", "file", lambda: read("x.npz", of_objects)),
    ("OT4008", "file", lambda: read("x.csv", of_text("x0,x1,x2,x3,labels\n1,2,3,4,0\n1,2,3\n"))),
    ("OT4009", "usage", lambda: (of_text("x0,x1,x2,x3,labels\n1,2,3,4,0\n")("x.csv"), fit(given="x.csv", map={"colour": "x"}))),
    ("OT4010", "file", lambda: with_pictures("pictures/cat/1.png", of_text("no picture"))),
    ("OT4011", "data", lambda: with_pictures("pictures/1.png", Image.new("L", (8, 8)).save)),
    ("OT4012", "data", with_few_tokens),
    ("OT5001", "data", lambda: onnx_train.Session(MLP, threads=1).run("predict", {"x": np.ones((2, 5), np.float32)})),
    ("OT5002", "data", lambda: onnx_train.Session(MLP, threads=1).run("predict", {"y": 0.0})),
    ("OT5003", "data", lambda: onnx_train.Session(MLP, threads=1).run("predict", {"x": np.ones((2, 4), complex)})),
    ("OT5004", "usage", lambda: fit(training(batch="4"), batch_size=2)),
    ("OT5005", "usage", lambda: onnx_train.Session(MLP, threads=1).run("stp", {})),
    ("OT6001", "usage", lambda: onnx_train.build(MLP, clip=-1.0)),
    ("OT6004", "usage", lambda: onnx_train.build(MLP, loss="mse(")),
    ("OT6005", "unsupported", lambda: onnx_train.build(MLP, freeze="fc9.*")),
    ("OT6006", "data", weights_of_another_model),
    ("OT7001", "usage", again),
    ("OT7002", "unsupported", lambda: again(resume=True, batch_size=2)),
    ("OT7003", "file", damaged),
    ("OT7004", "usage", in_a_locked_folder),
    ("OT7005", "file", lambda: onnx_train.load(MLP).save("no/such/folder/x.onnx")),
    ("OT8001", "memory", lambda: fit(memory=64)),
    ("OT8002", "memory", lambda: onnx_train.Session(MLP, threads=1).plan("predict", batch=2**40)),
    ("OT8003", "device", lambda: onnx_train.Session(MLP, "abacus")),
    ("OT9003", "usage", lambda: fit(accumulate=2, batch_size=2)),
]


@pytest.mark.parametrize("code, kind, way", WAYS, ids=[f"{code}-{i}" for i, (code, *_) in enumerate(WAYS)])
def test_an_error_has_its_code_and_kind(code, kind, way, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(onnx_train.Error) as raised:
        way()
    assert (raised.value.code, raised.value.kind) == (code, kind), str(raised.value)
    assert code not in str(raised.value)


def test_an_error_without_a_page_has_no_code():
    with pytest.raises(onnx_train.UsageError, match="give one") as raised:
        onnx_train.build(MLP, ema=0.9, swa=10)
    assert raised.value.code == ""
