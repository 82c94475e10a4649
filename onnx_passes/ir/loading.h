// Models from and to files. Reading trusts nothing: external data must lie in the model's folder or below it, be a
// regular file that is reached without links, and be as long as the model says. Writing is atomic: a temporary file
// beside the target, fsync, rename, fsync of the folder; an existing file is complete and old, or complete and new.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Reads the file and its external data. Throws Error that names the file and the cause.
onnx::ModelProto load_proto(const std::string& path);
Model load_model(const std::string& path);

// What one message may have: protobuf's limit of 2 GiB, less some room.
inline constexpr size_t kMaxMessageBytes = (size_t{1} << 31) - (size_t{1} << 20);

// Writes `model`; tensors go into `<file>.data` beside it when the message would pass `max_bytes`. Where the file
// that is replaced uses that name, `<file>.data2`: its own data stay until the new file is in place.
void save_proto(const onnx::ModelProto& proto, const std::string& path, size_t max_bytes = kMaxMessageBytes);

// The contents of an initializer, by its name.
using TensorContents = std::function<Tensor(const std::string& name)>;

// The same for a message whose initializers were left without their data (ToProtoOptions::contents): they are asked
// for one after the other as they are written, so that no second copy of all is held.
void save_proto(const onnx::ModelProto& proto, const std::string& path, const TensorContents& contents,
                size_t max_bytes = kMaxMessageBytes);
void save_model(const Model& model, const std::string& path);

// Writes `bytes` atomically, as above.
void write_file(const std::string& path, const std::string& bytes);

// ONNX's full checker with strict shape inference; throws Error with its message.
void check_proto(const onnx::ModelProto& proto);

}  // namespace onnx_train
