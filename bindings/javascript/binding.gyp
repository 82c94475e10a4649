# The library is that of ONNX_TRAIN_LIB_DIR, by default that of the default build of the repository; its headers those of
# ONNX_TRAIN_INCLUDE_DIR. The addon finds the library at that place, or beside itself.
{
  "targets": [
    {
      "target_name": "onnx_train",
      "sources": ["src/addon.cc", "src/models.cc", "src/sessions.cc", "src/training.cc", "src/values.cc"],
      "variables": {
        "library%": "<!(node -p \"require('path').resolve(process.env.ONNX_TRAIN_LIB_DIR || '../../build')\")",
        "headers%": "<!(node -p \"require('path').resolve(process.env.ONNX_TRAIN_INCLUDE_DIR || '../../include')\")"
      },
      "include_dirs": ["<(headers)"],
      "cflags_cc!": ["-fno-exceptions", "-std=gnu++17"],
      "cflags_cc": ["-fexceptions", "-std=c++17", "-fvisibility=hidden"],
      "libraries": ["-L<(library)", "-lonnx_train", "-Wl,-rpath,'$$ORIGIN'", "-Wl,-rpath,<(library)"]
    }
  ]
}
