"""Adapters where models are served: ONNX Runtime's, several of one base; ranks and alphas of single layers, as PEFT has them."""

import json

import numpy as np
import onnxruntime
import pytest
import tool
import torch
from export import export
from torch import nn

SAMPLES = 12


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.fc1 = nn.Linear(4, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 6)])
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        x = torch.tanh(self.fc1(torch.tanh(self.conv(x)).mean((2, 3))))
        for block in self.blocks:
            x = torch.tanh(block(x))
        return self.head(x)


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    module = Net().eval()
    export(module, {"x": torch.zeros(2, 2, 5, 5)}, folder / "net.onnx", "dynamo", True)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(SAMPLES, 2, 5, 5)).astype(np.float32)
    tool.save(folder / "data.npz", {"x": x, "labels": generator.integers(0, 3, SAMPLES)})
    return module, folder, x


def train(folder, name, data, *options):
    tool.run("build", data / "net.onnx", "-o", folder / "train.onnx", "--loss", "cross_entropy", *options)
    tool.run("fit", folder / "train.onnx", "--data", data / "data.npz", "--steps", 10, "--batch-size", 6, "--lr", 0.05, "--out",
             folder / name)  # fmt: skip
    return folder / name / "last.onnx"


def merged(folder, trained, x):
    tool.run("export", trained, "--merge", "-o", folder / "merged.onnx")
    return tool.session(folder / "merged.onnx").run(None, {"x": x})[0]


def served(session, path, x):
    options, adapter = onnxruntime.RunOptions(), onnxruntime.LoraAdapter()
    adapter.Load(str(path))
    options.add_active_adapter(adapter)
    return session.run(None, {"x": x}, options)[0]


ADAPTERS = {
    "several ranks": (["--lora", "rank=2,alpha=4,targets=fc1,blocks.*"],
                      ["--lora", "rank=3,alpha=9,rslora=true,rank.blocks.1=1,alpha.fc1=5,targets=fc1,blocks.*"]),
    "dora": (["--lora", "rank=2,alpha=4,dora=true,targets=fc1,blocks.*"], ["--lora", "rank=1,dora=true,targets=fc1,blocks.*"]),
    "a convolution": (["--lora", "rank=2,alpha=4,targets=conv,fc1"], ["--lora", "rank=2,alpha=1,targets=conv,fc1"]),
    "a head besides": (["--lora", "rank=2,targets=fc1", "--train", "head.*"], ["--lora", "rank=4,targets=fc1", "--train", "head.*"]),
    "ia3": (["--ia3", "targets=fc1,conv,feedforward=blocks.0"], ["--ia3", "targets=fc1,conv,feedforward=blocks.0", "--seed", "1"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("optimize", [False, True])
def test_onnxruntime_swaps_adapters_of_one_base(net, tmp_path, kind, optimize):
    module, folder, x = net
    one, other = (train(tmp_path, f"run{i}", folder, *options) for i, options in enumerate(ADAPTERS[kind]))
    said = tool.run("export", one, "--adapter-inputs", "-o", tmp_path / "base.onnx")
    assert "the adapters are inputs now, which may be left out: " in said
    for i, trained in enumerate((one, other)):
        said = tool.run("export", trained, "-o", tmp_path / f"{i}.onnx_adapter")
        assert "tensors of the adapter, in ONNX Runtime's format" in said
    session = tool.session(tmp_path / "base.onnx", optimize)
    with torch.no_grad():
        plain = module(torch.from_numpy(x)).numpy()
    if kind != "a head besides":  # whose default is that of the run
        np.testing.assert_allclose(session.run(None, {"x": x})[0], plain, atol=1e-5)
    results = []
    for i, trained in [(0, one), (1, other), (0, one)]:
        results.append(served(session, tmp_path / f"{i}.onnx_adapter", x))
        np.testing.assert_allclose(results[-1], merged(tmp_path, trained, x), atol=1e-4)
        assert np.abs(results[-1] - plain).max() > 1e-2
    np.testing.assert_array_equal(results[0], results[2])
    assert kind == "ia3" or np.abs(results[0] - results[1]).max() > 1e-3
    parameters = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / "0.onnx_adapter")).get_parameters()
    inputs = {i.name: i.shape for i in session.get_overridable_initializers()}
    assert parameters.keys() == inputs.keys()
    if kind == "several ranks":
        assert inputs["fc1.lora_A.weight"] == ["fc1.rank", 4] and parameters["fc1.lora_A.weight"].shape() == [2, 4]


def test_adapters_that_cannot_be_served_are_refused(net, tmp_path):
    _, folder, _ = net
    plain = tmp_path / "plain.onnx"
    tool.run("build", folder / "net.onnx", "-o", plain, "--loss", "cross_entropy")
    (tmp_path / "a.onnx_adapter").write_text("mine")
    assert "has no adapters" in tool.run("export", plain, "-o", tmp_path / "a.onnx_adapter", status=1)
    assert (tmp_path / "a.onnx_adapter").read_text() == "mine"
    assert "has no adapters" in tool.run("export", plain, "-o", tmp_path / "b.onnx", "--adapter-inputs", status=1)
    lora = tmp_path / "lora.onnx"
    tool.run("build", folder / "net.onnx", "-o", lora, "--loss", "cross_entropy", "--lora", "rank=2")
    assert "take one" in tool.run("export", lora, "-o", tmp_path / "b.onnx", "--adapter-inputs", "--merge", status=1)
    assert "writes it alone" in tool.run("export", lora, "-o", tmp_path / "a.onnx_adapter", "--merge", status=1)


def predictions(folder, model, data):
    tool.run("predict", model, "--inputs", data, "-o", folder / "out.npz")
    return next(iter(tool.load(folder / "out.npz").values()))


@pytest.mark.parametrize("dora", [False, True])
def test_ranks_and_alphas_of_layers_go_to_peft_and_come_back(net, tmp_path, dora):
    import peft

    module, folder, x = net
    lora = f"rank=2,alpha=3,dora={str(dora).lower()},rank.fc1=4,rank.blocks.1=1,alpha.blocks.?=5,targets=fc1,blocks.*"
    trained = train(tmp_path, "run", folder, "--lora", lora)
    expected = predictions(tmp_path, trained, folder / "data.npz")
    np.testing.assert_allclose(merged(tmp_path, trained, x), expected, atol=1e-5)
    tool.run("export", trained, "-o", f"{tmp_path}/peft/")
    config = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert config["rank_pattern"] == {"^fc1": 4, "^blocks.1": 1}
    assert config["alpha_pattern"] == {"^blocks.0": 5, "^blocks.1": 5}
    theirs = peft.PeftModel.from_pretrained(Net(), tmp_path / "peft").eval()
    with torch.no_grad():
        np.testing.assert_allclose(theirs(torch.from_numpy(x)).numpy(), expected, atol=1e-5)
    build = ["build", folder / "net.onnx", "-o", tmp_path / "again.onnx", "--loss", "cross_entropy", "--adapter"]
    tool.run(*build, tmp_path / "peft")
    np.testing.assert_array_equal(predictions(tmp_path, tmp_path / "again.onnx", folder / "data.npz"), expected)

    # Their patterns are regular expressions, of which the first that fits counts.
    torch.manual_seed(1)
    own = peft.LoraConfig(r=2, lora_alpha=3, use_dora=dora, target_modules=["fc1", "0", "1"], init_lora_weights=False,
                          rank_pattern={"blocks.0": 1, "blocks.[0-9]": 3}, alpha_pattern={"^fc1": 8, "fc.": 7})  # fmt: skip
    theirs = peft.get_peft_model(Net(), own).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    tool.run(*build, tmp_path / "theirs")
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(predictions(tmp_path, tmp_path / "again.onnx", folder / "data.npz"), wanted, atol=1e-5)
    written = tmp_path / "theirs" / "adapter_config.json"
    text = json.loads(written.read_text())
    for patterns, message in ({"(": 3}, "no regular expression"), ({"fc1": "x"}, "is no number"), ([1], "no object of patterns"):
        written.write_text(json.dumps(text | {"rank_pattern": patterns}))
        assert message in tool.run(*build, tmp_path / "theirs", status=1)


def test_a_session_swaps_adapters_with_alphas_of_their_own(net, tmp_path):
    import onnx_train

    _, folder, x = net
    build = dict(loss="cross_entropy", seed=1)
    ranks = {"rank": 2, "rank.fc1": 3, "targets": "fc1,blocks.*"}
    trained = train(tmp_path, "run", folder, "--lora", "rank=2,rank.fc1=3,alpha=6,alpha.fc1=12,targets=fc1,blocks.*")
    tool.run("export", trained, "-o", f"{tmp_path}/peft/")
    session = onnx_train.Session(onnx_train.build(folder / "net.onnx", lora=ranks, **build))
    session.load_adapter("it", tmp_path / "peft")
    session.set_adapter("it")
    expected = predictions(tmp_path, trained, folder / "data.npz")
    np.testing.assert_allclose(next(iter(session.predict(x).values())), expected, atol=1e-5)


def test_python_writes_an_adapter_and_its_base(net, tmp_path):
    import onnx_train

    _, folder, x = net
    trained = onnx_train.load(train(tmp_path, "run", folder, "--lora", "rank=2,alpha=6"))
    trained.save_adapter(tmp_path / "a.onnx_adapter")
    trained.export(adapter_inputs=True).save(tmp_path / "base.onnx")
    expected = next(iter(onnx_train.Session(trained).predict(x).values()))
    np.testing.assert_allclose(served(tool.session(tmp_path / "base.onnx"), tmp_path / "a.onnx_adapter", x), expected, atol=1e-4)
