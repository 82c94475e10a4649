"""bindings/web and examples/web in a browser. ONNX Runtime is a module that asks the one in Python, as npm has no part in the
tests; with ONNX_TRAIN_ORT_WEB, the file of an onnxruntime-web (ort.min.mjs, with its .wasm files beside it), it is that one."""

import base64
import json
import os
import re
from pathlib import Path

import numpy as np
import onnx
import ort_server
import pages
import pytest
import tool

import onnx_train
import onnx_train.ort

WEB = tool.ROOT / "bindings" / "web"
DATA = tool.ROOT / "models" / "data"
MLP = tool.ROOT / "tests" / "fixtures" / "mlp.onnx"
X, LABELS = np.eye(4, dtype=np.float32), np.array([0, 1, 2, 0])
BATCH = "{ x: Float32Array.from({ length: 16 }, (_, i) => (i % 5 ? 0 : 1)), labels: [0, 1, 2, 0] }"
REAL = os.environ.get("ONNX_TRAIN_ORT_WEB")


@pytest.fixture(scope="module")
def files():
    """Further files of the server, bytes by path."""
    found = {"/blank.html": b"<!doctype html><meta charset='utf-8'><title>tests</title><link rel='icon' href='data:,'>"}
    for path in Path(REAL).parent.glob("*") if REAL else ():
        if path.suffix in (".mjs", ".js", ".wasm"):
            found[f"/ort-web/{path.name}"] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def address(files):
    with ort_server.serve(files) as address:
        yield address


ORT = f"/ort-web/{Path(REAL).name}" if REAL else "/bindings/web/tests/ort_over_http.js"


@pytest.fixture
def run(page, address):
    """run(body) -> what the body of an async function gives, in a page that has `ort` and the package as `web`."""
    page.open(f"{address}/blank.html", 800, 600)

    def run(body):
        return page.value(f"""(async () => {{
            const ort = await import({ORT!r}), web = await import("/bindings/web/index.js");
            const {{ Session }} = web;
            const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
            const textOf = (bytes) => {{
                let text = "";
                for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
                return btoa(text);
            }};
            const errorOf = async (call) => {{
                try {{ await call(); }} catch (e) {{ return [e.name, e.kind, e.message]; }}
                return "no error";
            }};
            {body}
        }})()""")

    return run


def text_of(model):
    return json.dumps(base64.b64encode(model.to_bytes() if hasattr(model, "to_bytes") else model).decode())


def mlp(**options):
    return onnx_train.build(MLP, "cross_entropy", **{"optimizer": "adamw(lr=0.01)", **options})


def test_steps_are_ours_and_checkpoints_go_on_on_both_sides(run):
    training = mlp()
    ours = onnx_train.Session(training, threads=1)
    found = run(f"""
        const session = await Session.create(bytesOf({text_of(training)}), {{ ort }});
        const losses = [], batch = {BATCH};
        for (let i = 0; i < 6; ++i) losses.push((await session.step(batch, i % 2 ? {{ lr: 0.05, clipNorm: 0.5 }} : {{}})).loss);
        const again = await Session.create(await session.checkpoint(), {{ ort }});
        const [a, b] = [await session.step(batch), await again.step(batch)];
        const evaluated = await session.evaluate(batch);
        const {{ logits }} = await session.predict({{ x: batch.x }});
        return {{ losses, same: a.loss === b.loss, evaluated, logits: [...logits.data], dims: logits.dims, step: Number((await session.state("state/step")).data[0]),
            checkpoint: textOf(await session.checkpoint()), model: textOf(await session.export()), entries: session.entries,
            states: session.states, inputs: session.inputs("step") }};""")
    losses = [ours.step(X, LABELS, **({"lr": 0.05, "clip_norm": 0.5} if i % 2 else {})).loss for i in range(6)]
    np.testing.assert_allclose(found["losses"], losses, rtol=1e-5)
    ours.step(X, LABELS)
    assert found["same"] and found["step"] == 7 and found["entries"] == ours.entries
    assert found["evaluated"]["loss"] == pytest.approx(ours.evaluate(X, LABELS).loss, rel=1e-5)
    assert set(found["evaluated"]) == set(ours.evaluate(X, LABELS))
    assert {port["name"]: port["role"] for port in found["states"]} == {port.name: port.role for port in ours.states()}
    assert [(port["name"], port["role"]) for port in found["inputs"]] == [(port.name, port.role) for port in ours.inputs("step")]
    logits = np.array(found["logits"], np.float32).reshape(found["dims"])
    model = base64.b64decode(found["model"])
    onnx.checker.check_model(onnx.load_from_string(model), full_check=True)
    assert not onnx.load_from_string(model).training_info
    np.testing.assert_allclose(onnx_train.Session(model, threads=1).predict(X).logits, logits, rtol=1e-5, atol=1e-6)
    checkpoint = base64.b64decode(found["checkpoint"])
    onnx.checker.check_model(onnx.load_from_string(checkpoint), full_check=True)
    went_on = onnx_train.Session(checkpoint, threads=1)
    for name, value in ours.state.items():
        np.testing.assert_allclose(went_on.state[name], value, rtol=1e-4, atol=1e-6)
    assert went_on.step(X, LABELS).loss == pytest.approx(ours.step(X, LABELS).loss, rel=1e-5)


def test_a_checkpoint_of_a_run_is_read_and_what_is_written_is_none_of_that_run(run, tmp_path):
    onnx_train.fit(mlp(), {"x": X, "labels": LABELS}, epochs=3, batch_size=4, folder=tmp_path / "run", threads=1)
    last = (tmp_path / "run" / "last.onnx").read_bytes()
    assert b"onnx_train.checksum" in last
    found = run(f"""
        const session = await Session.create(bytesOf({text_of(last)}), {{ ort }});
        const {{ loss }} = await session.step({BATCH});
        return {{ loss, checkpoint: textOf(await session.checkpoint()) }};""")
    ours = onnx_train.Session(last, threads=1)
    assert found["loss"] == pytest.approx(ours.step(X, LABELS).loss, rel=1e-5)
    went_on = onnx_train.Session(base64.b64decode(found["checkpoint"]), threads=1)
    assert went_on.state["state/step"] == 4


@pytest.mark.parametrize("name", ["cnn", "gpt2", "bert", "lstm"])
def test_entry_points_are_flattened_as_ours_are(run, exported, name):
    """Batch norm, dropout, subgraphs: the same inputs and states, and the same losses."""
    example, path = exported(name, **({"dropout": 0.3, "train": True} if name == "cnn" else {}))
    training = onnx_train.build(path, example.loss, "sgd(lr=0.05, momentum=0.9)")
    arrays = {**{key: value.numpy() for key, value in example.inputs.items()}, "labels": example.labels.numpy()}
    batch = {key: {"dims": array.shape, "data": array.ravel().tolist()} for key, array in arrays.items()}
    found = run(f"""
        const session = await Session.create(bytesOf({text_of(training)}), {{ ort }});
        const batch = {json.dumps(batch)}, losses = [];
        for (let i = 0; i < 4; ++i) losses.push((await session.step(batch)).loss);
        const {{ loss }} = await session.evaluate(batch);
        return {{ losses, loss }};""")
    ours = onnx_train.Session(training, threads=1)
    np.testing.assert_allclose(found["losses"], [ours.step(arrays).loss for _ in range(4)], rtol=1e-5)
    assert found["loss"] == pytest.approx(ours.evaluate(arrays).loss, rel=1e-5)


def test_accumulated_batches_are_ours(run):
    training = mlp(accumulate=True)
    found = run(f"""
        const session = await Session.create(bytesOf({text_of(training)}), {{ ort }});
        const {{ x }} = {BATCH}, norms = [];
        for (let i = 0; i < 3; ++i) {{
            await session.accumulate({{ x: x.slice(0, 8), labels: [0, 1] }});
            await session.accumulate({{ x: {{ dims: [2, 4], data: x.slice(8) }}, labels: BigInt64Array.of(2n, 0n) }});
            norms.push((await session.apply({{ lr: 0.05 }})).grad_norm);
        }}
        return norms;""")
    ours = onnx_train.Session(training, threads=1)
    norms = []
    for _ in range(3):
        for rows in (slice(0, 2), slice(2, 4)):
            ours.accumulate(X[rows], LABELS[rows])
        norms.append(ours.apply(lr=0.05).grad_norm)
    np.testing.assert_allclose(found, norms, rtol=1e-5)


def test_a_federated_round_gives_the_difference_of_its_steps(run, tmp_path):
    training, start = mlp(optimizer="sgd(lr=0.1)"), onnx_train.Session(mlp(optimizer="sgd"), threads=1)
    start.state["fc1.bias"] = np.linspace(-1, 1, 16)
    onnx_train.save_weights(start, tmp_path / "global.safetensors")
    sent = (tmp_path / "global.safetensors").read_bytes()
    found = run(f"""
        const session = await Session.create(bytesOf({text_of(training)}), {{ ort }});
        const {{ x, labels }} = {BATCH};
        async function* batches() {{
            yield {{ x: x.slice(0, 12), labels: labels.slice(0, 3) }};
            yield {{ x: x.slice(12), labels: labels.slice(3) }};
        }}
        const {{ difference, ...rest }} = await session.federatedRound(bytesOf({text_of(sent)}), batches(), {{ lr: 0.2 }});
        return {{ ...rest, difference: textOf(difference), weights: textOf(await session.saveWeights()) }};""")
    ours = onnx_train.Session(training, threads=1)
    onnx_train.load_weights(ours, tmp_path / "global.safetensors")
    losses = [ours.step(X[rows], LABELS[rows], lr=0.2).loss for rows in (slice(0, 3), slice(3, 4))]
    assert (found["steps"], found["samples"]) == (2, 4)
    assert found["loss"] == pytest.approx((3 * losses[0] + losses[1]) / 4, rel=1e-5)
    difference = ort_server.arrays_of(base64.b64decode(found["difference"]))
    assert set(difference) == {"fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"}
    for name, value in difference.items():
        np.testing.assert_allclose(value, ours.state[name] - np.asarray(start.state[name]), rtol=1e-4, atol=1e-6)
    (tmp_path / "back.safetensors").write_bytes(base64.b64decode(found["weights"]))
    assert onnx_train.load_weights(start, tmp_path / "back.safetensors") == list(difference)
    np.testing.assert_allclose(start.state["fc1.bias"], ours.state["fc1.bias"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("call, kind, message", [
    ("session.step({ x: batch.x })", "data", r"entry point 'step': the input 'labels', int64\[.*\], is missing"),
    ("session.step({ ...batch, y: 1 })", "data", "has no input 'y'; it has x, labels, learning_rate, clip_norm"),
    ("session.step({ ...batch, x: batch.x.slice(1) })", "data", "'x' has the shape"),
    ("session.step({ ...batch, x: { dims: [4, 4], data: [1] } })", "data", r"'x' has 1 elements; its shape is \[4,4\]"),
    ("session.step({ ...batch, x: { dims: [8, 2], data: batch.x } })", "data", r"'x' has the shape \[8,2\]; it must be \[batch,4\]"),
    ("session.step({ ...batch, x: 'text' })", "data", "'x' is no array of numbers"),
    ("session.step({ ...batch, labels: [0.5, 1, 2, 0] })", "data", "'labels' must be int64: 0.5 is no whole number"),
    ("session.step({ ...batch, labels: [9, 9, 9, 9] })", "data", "entry point 'step' on ONNX Runtime: .*out of data bounds"),
    ("session.step({ ...batch, x: batch.x.fill(NaN) })", "data", "the loss is NaN; no weight is changed"),
    ("session.step({ ...batch, x: { dims: [1, 4], data: [1, 2, null, 4] } })", "data", "'x' must be float32: null is no number"),
    ("session.apply()", "usage", "the model has no entry point 'apply'; it has predict, step, evaluate"),
    ("session.state('none')", "usage", "the model has no state 'none'"),
    ("Promise.all([session.step(batch), session.step(batch)])", "usage", "the session is at work"),
    ("session.loadWeights(new Uint8Array(3))", "file", "no file of safetensors: it is cut off"),
    ("session.loadWeights(web.writeSafetensors({ a: { type: 'float32', dims: [1], data: Float32Array.of(1) } }))", "data", "no state 'a'"),
    ("session.loadWeights(web.writeSafetensors({ 'fc1.bias': { type: 'float32', dims: [1], data: Float32Array.of(1) } }))", "data",
     r"'fc1.bias' is float32\[1\]; the state is float32\[16\]"),
    ("Session.create(new Uint8Array([8, 10, 58, 200, 1]), { ort })", "file", "no ONNX model: a field is cut off"),
    ("Session.create(new Uint8Array(), { ort })", "file", "no ONNX model: it has no graph"),
    ("Session.create('/none.onnx', { ort })", "file", "/none.onnx: 404"),
    ("Session.create(7, { ort })", "usage", "bytes are an ArrayBuffer or a Uint8Array"),
    ("Session.create('/blank.html')", "usage", "onnxruntime-web is not there: give it as `ort`, or an import map"),
    ("session.release().then(() => session.step(batch))", "usage", "the session has been released"),
])  # fmt: skip
def test_what_goes_wrong_is_said_and_changes_nothing(run, call, kind, message):
    found, before, after = run(f"""
        const session = await Session.create(bytesOf({text_of(mlp())}), {{ ort }}), batch = {BATCH};
        const before = textOf(await session.saveWeights());
        const error = await errorOf(() => {call});
        return [error, before, error[2].includes("released") || {json.dumps(call)}.includes("all(") ? before : textOf(await session.saveWeights())];""")
    assert after == before
    assert found[:2] == ["OnnxTrainError", kind] and re.search(message, found[2]), found


@pytest.mark.parametrize("model", ["mlp", "digits"])
def test_a_file_that_is_cut_off_or_changed_gives_an_error_or_a_model(run, model):
    """Nothing else, and soon."""
    data = mlp().to_bytes() if model == "mlp" else onnx_train.build(tool.ROOT / "models" / "digits_cnn.onnx").to_bytes()
    rng = np.random.default_rng(0)
    cases = [(int(at), int(byte)) for at, byte in zip(rng.integers(0, len(data), 60), rng.integers(0, 256, 60))]
    kinds = run(f"""
        const bytes = bytesOf({text_of(data)}), kinds = {{}};
        for (const [at, byte] of {json.dumps(cases)}) {{
            const changed = bytes.slice();
            changed[at] = byte;
            for (const file of [changed, bytes.slice(0, at)]) {{
                const error = await errorOf(() => Session.create(file, {{ ort }}).then((session) => session.inputs("step")));
                const kind = typeof error === "string" ? error : error[0] === "OnnxTrainError" ? error[1] : error.join(" ");
                kinds[kind] = (kinds[kind] ?? 0) + 1;
            }}
        }}
        return kinds;""")
    assert set(kinds) <= {"no error", "file", "usage", "unsupported", "data"} and kinds["file"] > 0, kinds


def test_the_types_name_what_the_package_has(run):
    declared = (WEB / "index.d.ts").read_text()
    found = run("return [Object.keys(web), Object.getOwnPropertyNames(Session.prototype), Object.getOwnPropertyNames(Session)];")
    exported = re.findall(r"^export (?:class|function) (\w+)", declared, re.MULTILINE)
    session = re.search(r"export class Session \{(.*?)^\}", declared, re.DOTALL | re.MULTILINE)[1]
    members = re.findall(r"^  (?:static |readonly |private )?(\w+)[(:]", session, re.MULTILINE)
    assert set(exported) == set(found[0])
    assert set(members) == set(found[1]) | set(found[2]) - {"length", "name", "prototype"}
    version = re.search(r'ONNX_TRAIN_VERSION "(.*)"', (tool.ROOT / "include/onnx_train/version.h").read_text())[1]
    assert json.loads((WEB / "package.json").read_text())["version"] == version


def test_the_program_of_the_documentation_runs(run, files):
    files["/train.onnx"] = onnx_train.build(tool.ROOT / "models" / "digits_cnn.onnx", "cross_entropy", "adamw").to_bytes()
    (program,) = [block for language, block in pages.blocks("docs/other_runtimes.md") if language == "javascript"]
    assert program.count("import ") == 2
    program = re.sub(r"^import .*\n", "", program, flags=re.MULTILINE).replace("console.log", "seen.push")
    data = tool.load(DATA / "digits_train.npz")

    def batch(rows):
        return {"image": {"dims": data["image"][rows].shape, "data": data["image"][rows].ravel().tolist()}, "labels": data["labels"][rows].tolist()}

    found = run(f"""
        const seen = [], test = {json.dumps(batch(slice(0, 16)))};
        const batches = [{", ".join(json.dumps(batch(slice(i, i + 16))) for i in (0, 16, 32))}];
        const globalWeights = await (await Session.create("/train.onnx", {{ ort }})).saveWeights();
        {program}
        return {{ seen, accuracy, logits: logits.dims, sizes: [checkpoint.length, model.length, difference.length], samples, loss }};""")
    assert found["samples"] == 48 and found["logits"] == [16, 10] and min(found["sizes"]) > 100000
    assert len(found["seen"]) == 6 and found["loss"] == pytest.approx(np.mean(found["seen"][::2]), rel=0.2)


STROKES = {0: [[(128, 30), (70, 80), (70, 180), (128, 226), (186, 180), (186, 80), (128, 30)]],
           1: [[(100, 60), (135, 30), (135, 226)]], 7: [[(70, 40), (190, 40), (110, 226)]]}  # fmt: skip


def draw(page, strokes):
    """With the mouse, as a person does."""
    left, top = page.value("(({ left, top }) => [left, top])(document.getElementById('drawing').getBoundingClientRect())")
    for stroke in strokes:
        for kind, (x, y) in [("mousePressed", stroke[0]), *(("mouseMoved", at) for at in stroke[1:]), ("mouseReleased", stroke[-1])]:
            page.call("Input.dispatchMouseEvent", type=kind, x=left + x, y=top + y, button="left", buttons=int(kind != "mouseReleased"), clickCount=1)


def status(page, pattern, patience=120):
    """Waits until the page says what matches."""
    return page.value(f"""new Promise((resolve) => {{
        const end = Date.now() + {1000 * patience}, look = () => {{
            const text = document.getElementById("status").textContent;
            if (/{pattern}|^Error/.test(text) || Date.now() > end) resolve(text);
            else setTimeout(look, 50);
        }};
        look();
    }})""")


def click(page, button):
    left, top, width, height = page.value(
        f"((r) => [r.left, r.top, r.width, r.height])(document.getElementById('{button}').getBoundingClientRect())")  # fmt: skip
    for kind in "mousePressed", "mouseReleased":
        page.call("Input.dispatchMouseEvent", type=kind, x=left + width / 2, y=top + height / 2, button="left", clickCount=1)


def guess_of(page):
    return page.value("document.getElementById('guess').textContent")


@pytest.fixture(scope="module")
def digits(files):
    model = onnx_train.build(tool.ROOT / "models" / "digits_cnn.onnx", "cross_entropy", "adamw(lr=0.003)")
    files["/train.onnx"] = model.to_bytes()


def test_a_person_teaches_the_page_by_drawing(page, address, digits, tmp_path):
    page.open(f"{address}/examples/web/?ort={ORT}&model=/train.onnx", 900, 760)
    assert status(page, "^Ready").startswith("Ready")
    for digit, strokes in STROKES.items():
        click(page, "clear")
        draw(page, strokes)
        page.value(f"document.getElementById('label').value = {digit}")
        for _ in range(2):
            click(page, "learn")
            before = status(page, "^Learned")
            page.value("document.getElementById('status').textContent = ''")
            assert before.startswith("Learned"), before
    guesses = []
    for strokes in STROKES.values():
        click(page, "clear")
        draw(page, strokes)
        page.value("new Promise((done) => setTimeout(done, 300))")
        guesses.append(guess_of(page))
    assert guesses == [f"looks like a {digit}" for digit in STROKES]
    click(page, "train")
    told = status(page, "other digits are right")
    assert float(re.search(r"([\d.]+) % of 360", told)[1]) > 75, told
    points = [float(at) for at in re.findall(r",([\d.]+)", page.value("document.querySelector('#curve path').getAttribute('d')"))]
    assert len(points) == 6 * 8 + 45 and np.mean(points[-10:]) > np.mean(points[48:58])  # lower on the page is a lower loss
    page.picture(Path(os.environ.get("ONNX_TRAIN_PICTURES", tmp_path)) / "web.png")
    assert page.errors == []


def test_the_page_says_what_it_lacks(page, address):
    page.open(f"{address}/examples/web/?ort={ORT}&model=/none.onnx", 390, 844, dark=True)
    assert "none.onnx: 404" in status(page, "^Error")
    assert page.value("document.documentElement.scrollWidth") == 390
    page.open(f"{address}/examples/web/?model=/none.onnx", 390, 844)
    assert status(page, "^Error").startswith("Error")
