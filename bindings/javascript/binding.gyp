# find_library.js says where the library and its header are. The addon finds the library at that place, or beside itself.
{
  "targets": [
    {
      "target_name": "onnx_train",
      "sources": ["src/addon.cc", "src/models.cc", "src/sessions.cc", "src/training.cc", "src/values.cc"],
      "variables": {
        "onnx_train_lib_dir%": "<!(node find_library.js lib)",
        "onnx_train_include_dir%": "<!(node find_library.js include)"
      },
      "include_dirs": ["<(onnx_train_include_dir)"],
      "cflags_cc!": ["-fno-exceptions", "-std=gnu++17"],
      "cflags_cc": ["-fexceptions", "-std=c++17", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wshadow", "-Werror"],
      "libraries": ["-L<(onnx_train_lib_dir)", "-lonnx_train", "-Wl,-rpath,'$$ORIGIN'", "-Wl,-rpath,<(onnx_train_lib_dir)"]
    }
  ]
}
