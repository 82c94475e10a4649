# The library is that of ONNX_TRAIN_LIB_DIR, by default that of the default build of the repository; its headers those of
# ONNX_TRAIN_INCLUDE_DIR. The addon finds the library at that place, or beside itself.
{
  "targets": [
    {
      "target_name": "onnx_train",
      "sources": ["src/addon.cc", "src/models.cc", "src/sessions.cc", "src/training.cc", "src/values.cc"],
      "variables": {
        "onnx_train_lib_dir%": "<!(node -p \"require('path').resolve(process.env.ONNX_TRAIN_LIB_DIR || '../../build')\")",
        "onnx_train_include_dir%": "<!(node -p \"require('path').resolve(process.env.ONNX_TRAIN_INCLUDE_DIR || '../../include')\")"
      },
      "include_dirs": ["<(onnx_train_include_dir)"],
      "cflags_cc!": ["-fno-exceptions", "-std=gnu++17"],
      "cflags_cc": ["-fexceptions", "-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow", "-Werror"],
      "libraries": ["-L<(onnx_train_lib_dir)", "-lonnx_train", "-Wl,-rpath,'$$ORIGIN'", "-Wl,-rpath,<(onnx_train_lib_dir)"]
    }
  ]
}
