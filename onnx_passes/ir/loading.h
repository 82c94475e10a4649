// Models from and to files. Reading trusts nothing: external data must be in the model's folder or below it, in a
// regular file that is reached without links and is as long as the model says. Writing is atomic: a temporary file
// beside the target, fsync, rename, fsync of the folder; an existing file is complete and old, or complete and new.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct ModelMessage;

// From now on data files may be reached by links, symbolic and hard ones, if the file they lead to is in `folder` or
// below it; "" forbids links again, as in the beginning. A policy of the whole process, to be set before models are
// loaded: caches such as Hugging Face's are made of links.
void allow_links_into(const std::string& folder);

// Reads the file; large tensors, in it or in its data files, stay where they are and are mapped (mapped_file.h). Throws
// Error that names the file and the cause.
ModelMessage load_message(const std::string& path);
// The same for a serialized model in memory, which is copied; it must hold all its data.
ModelMessage load_message(const void* data, size_t bytes);
Model load_model(const std::string& path);
// The same with a copy of all tensors in the message.
onnx::ModelProto load_proto(const std::string& path);

// What one message may have: protobuf's limit of 2 GiB, less some room.
inline constexpr size_t kMaxMessageBytes = (size_t{1} << 31) - (size_t{1} << 20);

struct SaveOptions {
  size_t max_bytes = kMaxMessageBytes;
  // Gets each block of contents before it is written, in the order of the file; see message.h for `index`.
  std::function<void(size_t index, const void* data, size_t bytes)> on_contents;
  // More fields of the message, serialized: asked for when all else is written.
  std::function<std::string()> ending;
};

// Writes the model block by block; contents go into `<file>.data` beside it when the message would pass `max_bytes`.
// Where the file that is replaced uses that name, `<file>.data2`: its own data stay until the new file is in place.
void save_message(const ModelMessage& message, const std::string& path, const SaveOptions& options = {});
void save_model(const Model& model, const std::string& path);
void save_proto(const onnx::ModelProto& proto, const std::string& path, size_t max_bytes = kMaxMessageBytes);

// Makes `to` a file equal to the model `from`, atomically and without storing it twice: a copy that shares its blocks
// where the file system has such copies, else a second name of the file (a hard link; this program never writes into a
// file that is there). False, and nothing done, when neither is possible or the model keeps its data in another file.
bool share_file(const std::string& from, const std::string& to);

// Writes `bytes` atomically, as above.
void write_file(const std::string& path, const std::string& bytes);

// ONNX's full checker with strict shape inference; throws Error with its message.
void check_proto(const onnx::ModelProto& proto);

}  // namespace onnx_train
