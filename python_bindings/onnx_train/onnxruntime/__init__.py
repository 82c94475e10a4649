"""The names of ONNX Runtime's on-device training API, on top of onnx_train (docs/from_onnxruntime_training.md)."""
