"""What `onnxruntime.training` has for on-device training: `api`, `artifacts` and `onnxblock`."""
