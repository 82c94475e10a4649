// Makes a model that shows a fault small: drops its outputs, nodes, values and sizes one after the other, and keeps
// each change with which it still fails. Works on the message, because the model may be one that nothing here can read.
// A model that ONNX's checker accepts stays one. One thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

struct ReduceReport {
  int64_t tries = 0;          // how often the model was tried
  bool is_exhausted = false;  // more tries might have made it smaller
  int nodes_before = 0, nodes_after = 0;
};

// Reduces `model` while `fails` says that it fails in the same way. Does nothing if it does not fail at first.
ReduceReport reduce(onnx::ModelProto* model, const std::function<bool(const onnx::ModelProto&)>& fails,
                    int64_t most_tries);

// The same from the file `path` to the file `output`, for `COMMAND FILE`, which /bin/sh runs: it fails in the same way
// if its exit status, and the first line of stderr without digits, are what they were at first. Throws Error if it does
// not fail at first, and for a file that cannot be read or written.
ReduceReport reduce_file(const std::string& path, const std::string& output, const std::string& command,
                         int64_t most_tries);

}  // namespace onnx_train
