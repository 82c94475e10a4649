"""Pictures of a float64 model are computed in float64: no number is rounded to float32 on its way."""

import numpy as np
import onnx
import tool
from PIL import Image


def test_pictures_enter_a_float64_model_as_float64(tmp_path):
    onnx.save(onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 21]>
      g (float[N,1,4,4] x) => (float[N,1,4,4] y) <float[1,1,4,4] w = {1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1}> { y = Mul(x, w) }"""),
              tmp_path / "model.onnx")  # fmt: skip
    pixels = np.arange(16, dtype=np.uint8).reshape(4, 4) * 16 + 7
    for name in ("a", "b"):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        Image.fromarray(pixels).save(tmp_path / "pictures" / name / "0.png")
    for dtype, kind in (("float64", np.float64), ("float32", np.float32)):
        tool.run("build", tmp_path / "model.onnx", "-o", tmp_path / "train.onnx", "--loss", "mse(y)", "--train", "w", "--dtype",
                 dtype)  # fmt: skip
        tool.run("predict", tmp_path / "train.onnx", "--inputs", tmp_path / "pictures", "--preprocess",
                 "scale(1/255), normalize(mean=0.1, std=0.3)", "-o", tmp_path / "y.npz")  # fmt: skip
        found = tool.load(tmp_path / "y.npz")["y"][0, 0]
        assert found.dtype == kind
        np.testing.assert_allclose(found, (pixels / 255 - 0.1) / 0.3, rtol=1e-14 if kind is np.float64 else 1e-5)
