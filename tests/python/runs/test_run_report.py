"""What people look at: the report in a browser, TensorBoard's events, watch, completion, configurations, dry runs."""

import html.parser
import json
import re
import shutil
import struct
import subprocess
import time

import numpy as np
import pytest
import tool

MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
VOID = {"meta", "br", "input", "link", "img", "hr"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A folder with a training model, data and a run of three epochs, with events for TensorBoard."""
    folder = tmp_path_factory.mktemp("looked at")
    rng = np.random.default_rng(0)
    data = {"x": rng.normal(size=(40, 4)).astype(np.float32), "labels": rng.integers(0, 3, 40)}
    tool.save(folder / "data.npz", data)
    tool.run("build", MLP, "-o", folder / "train.onnx", "--optimizer", "adamw(lr=0.02)")
    fit(folder, "run", "--tensorboard")
    return folder


def fit(folder, out, *options):
    return tool.run("fit", folder / "train.onnx", "--data", folder / "data.npz", "--eval-data", folder / "data.npz",
                    "--epochs", 3, "--batch-size", 8, "--out", folder / out, *options)  # fmt: skip


class Page(html.parser.HTMLParser):
    """Checks that elements are closed in their order, and keeps their texts and attributes."""

    def __init__(self, text):
        super().__init__()
        self.open, self.texts, self.attributes = [], {}, []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.attributes += attributes
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.attributes += attributes

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def test_a_run_leaves_a_report_with_its_numbers(run):
    text = (run / "run/report.html").read_text()
    page = Page(text)
    assert not {name for name, _ in page.attributes} & {"src", "href"}
    assert not re.search(r"https?://|@import|url\(", text)
    charts = {chart["title"]: chart["lines"] for chart in json.loads(page.texts["script"][0])["charts"]}
    assert [line["name"] for line in charts["Loss"]] == ["training", "evaluation"]
    np.testing.assert_allclose(charts["Loss"][0]["y"], tool.losses(run / "run"), rtol=1e-6)
    assert len(charts["Loss"][1]["y"]) == 3
    assert {"Accuracy", "Learning rate", "Gradient norm", "Samples per second"} <= set(charts)
    assert "15 of 15" in page.texts["strong"]
    assert any("weights and statistics" in text for text in page.texts["th"])


def test_runs_are_compared_and_what_differs_is_named(run):
    fit(run, "other <b>", "--lr", "0.1")
    tool.run("report", run / "run", run / "other <b>", "-o", run / "both.html")
    page = Page((run / "both.html").read_text())
    assert page.texts["title"] == ["run, other <b>"]
    assert "What differs" in page.texts["h2"]
    assert {"0.02", "0.1"} <= set(page.texts["td"])
    assert "needs -o FILE" in tool.run("report", run / "run", run / "run", status=2)
    assert "give the folder of a run" in tool.run("report", run / "none", status=1)


# How far what is shown reaches beyond the right edge, but for tables, which can be scrolled.
BEYOND = """Math.max(...[...document.querySelectorAll("body *")].filter((e) => !e.closest(".wide table"))
    .map((e) => e.getBoundingClientRect().right)) - document.documentElement.clientWidth"""


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("size", [(390, 844), (1440, 900)])
def test_a_browser_draws_every_chart_within_the_page(run, page, size, dark):
    for out, options in ("alone", ()), ("a run whose name is as long as those that a sweep gives, lr=0.5", ("--lr", 0.5)):
        if not (run / out).exists():
            fit(run, out, *options)
    tool.run("report", run / "run", run / "alone", run / out, "-o", run / "three.html")
    for path, charts in (run / "run/report.html", 5), (run / "three.html", 5):
        page.open(path, *size, dark)
        page.value("document.querySelectorAll('details').forEach((e) => { e.open = true; })")
        assert page.errors == []
        assert page.value("document.documentElement.scrollWidth") == size[0]
        assert page.value(BEYOND) <= 0
        drawn = page.value("[...document.querySelectorAll('.chart')].map((e) => e.outerHTML)")
        assert len(drawn) == charts
        for chart in drawn:
            assert '<path d="M' in chart and chart.count('class="grid"') >= 2
            assert "NaN" not in chart and "Infinity" not in chart
        # Nothing but the distance between parts lies between the charts and what follows.
        gap = page.value("""document.querySelector('.charts ~ h2, .charts ~ details').getBoundingClientRect().top
            - document.getElementById('charts').getBoundingClientRect().bottom""")
        assert 0 < gap < 80
        light = page.value("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((v) => v > 128)")
        assert light is not dark


def test_a_line_that_is_too_long_for_a_phone_is_found(run, page):
    (run / "wide.html").write_text(
        "<meta name=viewport content='width=device-width'><p style='width: 500px'>wide</p><script>missing()</script>"
    )
    page.open(run / "wide.html", 390, 844)
    assert page.value("document.documentElement.scrollWidth") > 390 and page.value(BEYOND) > 0
    assert "missing" in page.errors[0]


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def fields(data):
    """(number, value) of a protobuf message."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, data[at : at + size]
        at += size


def scalars_of_tensorboard(folder):
    """{tag: {step: value}}, by TensorBoard itself or by a reader of the format."""
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("tensorboard is not installed: its format is read by hand")
    else:
        events = EventAccumulator(str(folder))
        events.Reload()
        return {tag: {e.step: e.value for e in events.Scalars(tag)} for tag in events.Tags()["scalars"]}
    scalars = {}
    for path in sorted(folder.iterdir()):
        data = path.read_bytes()
        while data:
            length, checksum = struct.unpack("<QI", data[:12])
            record, data = data[12 : 12 + length], data[12 + length :]
            assert checksum == masked(struct.pack("<Q", length))
            assert struct.unpack("<I", data[:4])[0] == masked(record)
            data = data[4:]
            event = dict(fields(record))
            for _, value in fields(event.get(5, b"")):
                scalar = dict(fields(value))
                step = scalars.setdefault(scalar[1].decode(), {})
                step[event[2]] = struct.unpack("<f", scalar.get(2, bytes(4)))[0]
    return scalars


def test_tensorboard_reads_the_events(run):
    scalars = scalars_of_tensorboard(run / "run/tensorboard")
    losses = {line["step"]: np.float32(line["loss"]) for line in tool.metrics(run / "run")}
    assert scalars["train/loss"] == losses
    assert list(scalars["eval/loss"]) == [5, 10, 15]
    assert {"train/lr", "train/grad_norm", "train/accuracy", "eval/accuracy"} <= set(scalars)


def test_watch_follows_a_run_until_it_ends(run):
    printed = tool.run("watch", run / "run")
    assert "step 15/15" in printed and "not running" in printed and "⠀" in printed
    assert "it has step, epoch, loss" in tool.run("watch", run / "run", "--metric", "los", status=2)
    training = tool.start("fit", run / "train.onnx", "--data", run / "data.npz", "--time-limit", "60s", "--out",
                          run / "long")  # fmt: skip
    while not (run / "long/metrics.csv").exists() and training.poll() is None:
        time.sleep(0.02)
    watching = tool.start("watch", run / "long", "--every", "0.05")
    time.sleep(0.5)
    assert watching.poll() is None
    training.kill()  # which leaves nothing that says so but the lock that is gone
    training.communicate()
    output, _ = watching.communicate(timeout=tool.PATIENCE)
    assert watching.returncode == 0 and "ended" in output and output.startswith("step ")


def test_a_report_that_cannot_be_written_is_not_named_among_the_files(run):
    (run / "taken/report.html").mkdir(parents=True)
    said = tool.run("fit", run / "train.onnx", "--data", run / "data.npz", "--epochs", 1, "--batch-size", 8,
                    "--out", run / "taken")  # fmt: skip
    assert "there is no report.html: " in said and "for a browser" not in said


def test_bash_completes_commands_options_and_values(run):
    def complete(*words):
        script = f"""
            source <({tool.COMMAND} completion bash)
            COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
            compopt() {{ :; }}
            _onnx_train; printf '%s\\n' "${{COMPREPLY[@]}}"
        """
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True)
        assert done.returncode == 0 and done.stderr == ""
        return done.stdout.split()

    assert complete("onnx-train", "fl") == ["flatten"]
    assert complete("onnx-train", "fit", "--step-") == ["--step-every", "--step-factor"]
    assert complete("onnx-train", "fit", "--dtype", "") == ["float32", "float64"]
    assert complete("onnx-train", "fit", "--dtype", "=", "float6") == ["float64"]
    assert complete("onnx-train", "fit", "--data", "") == []  # files: readline's own
    for option, word in {"optimizer": "adamw", "loss": "cross_entropy", "metric": "f1", "device": "cpu", "batch": "dynamic",
                         "precision": "bf16", "qat": "int8", "init": "kaiming"}.items():  # fmt: skip
        assert word in complete("onnx-train", "build", f"--{option}", ""), option
    assert complete("onnx-train", "fit", "--schedule", "co") == ["constant", "cosine"]
    assert complete("onnx-train", "fit", "--lowering", "-fuse_e") == ["-fuse_elementwise"]
    assert complete("onnx-train", "fit", "--batch-size", "") == ["auto"]
    assert complete("onnx-train", "fit", "--augment", "rand") == ["random_resized_crop", "random_crop", "randaugment"]
    assert complete("onnx-train", "flatten", "--entry", "ev") == ["evaluate"]
    assert complete("onnx-train", "export", "--dtype", "int") == ["int8", "int4"]
    assert complete("onnx-train", "completion", "z") == ["zsh"]
    for shell in "zsh", "fish":
        script = tool.run("completion", shell)
        assert "step-every" in script and "constant linear cosine" in script
        if shutil.which(shell):
            done = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True)
            assert (done.returncode, done.stderr) == (0, "")
        else:
            print(f"{shell} is not installed: its script is not parsed")


def test_a_configuration_makes_the_run_that_its_options_make(run):
    (run / "fit.yaml").write_text(
        f"model: {run}/train.onnx\ndata: {run}/data.npz\nepochs: 3\nbatch_size: 8\nlr: 0.5\nout: {run}/configured\n"
    )
    tool.run("fit", "--config", run / "fit.yaml", "--lr", "0.02", "--eval-data", run / "data.npz")
    assert (run / "configured/last.onnx").read_bytes() == (run / "run/last.onnx").read_bytes()
    tool.run("fit", "--config", run / "run/options.json", "--out", run / "again")  # the resolved options
    assert (run / "again/last.onnx").read_bytes() == (run / "run/last.onnx").read_bytes()
    assert json.loads((run / "configured/options.json").read_text())["batch-size"] == 8
    (run / "fit.json").write_text('{"epoch": 3}')
    said = tool.run("fit", "--config", run / "fit.json", status=2)
    assert "there is no option 'epoch'; did you mean 'epochs'" in said


def test_a_dry_run_writes_nothing_and_finds_what_is_wrong(run):
    before = sorted(run.rglob("*"))
    printed = fit(run, "dry", "--dry-run")
    assert "dry run: the first loss is" in printed and "15 steps" in printed and "Nothing was written" in printed
    first = tool.losses(run / "run")[0]
    line = json.loads(fit(run, "dry", "--dry-run", "--json").splitlines()[-1])
    assert line["steps"] == 15 and line["loss"] == pytest.approx(first)
    assert sorted(run.rglob("*")) == before
    said = tool.run("fit", run / "train.onnx", "--data", run / "data.npz", "--epochs", 1, "--batch-size", 41,
                    "--out", run / "dry", "--dry-run", status=1)  # fmt: skip
    assert "the batch size is 41" in said
    (run / "file").write_text("")
    said = tool.run("fit", run / "train.onnx", "--data", run / "data.npz", "--epochs", 1, "--out", run / "file/run",
                    "--dry-run", status=1)  # fmt: skip
    assert "is no folder" in said
