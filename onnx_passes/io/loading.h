// Loading and saving models. Reading trusts nothing: external data must be in the model's folder or below it, in a
// regular file that is reached without links and is as long as the model says. Writing is atomic (a temporary file
// beside the target, fsync, rename, fsync of the folder): an existing file is either old or new, and always complete.
// Any thread; functions throw Error that names the file.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

struct ModelMessage;

// Allows data files that are reached through symbolic or hard links if the target is in `folder` or below it; ""
// forbids links again, which is the default. A policy of the whole process, to be set before models are loaded: caches
// such as Hugging Face's consist of links.
void allow_links_into(const std::string& folder);

// Loads the file. Large tensors, in it or in its data files, are not read but mapped (mapped_file.h). Throws Error that
// names the file and the cause.
ModelMessage load_message(const std::string& path);
// The same for a serialized model in memory, which is copied; it must contain all its data.
ModelMessage load_message(const void* data, size_t bytes);
Model load_model(const std::string& path);
// The same with all tensors copied into the message.
onnx::ModelProto load_proto(const std::string& path);

// Largest message: protobuf's limit of 2 GiB, less a margin.
inline constexpr size_t kMaxMessageBytes = (size_t{1} << 31) - (size_t{1} << 20);

struct SaveOptions {
  size_t max_bytes = kMaxMessageBytes;
  // Receives each block of contents before it is written, in the order of the file; message.h explains `index`.
  std::function<void(size_t index, const void* data, size_t bytes)> on_contents;
  // Additional fields of the message, serialized; called after everything else has been written.
  std::function<std::string()> ending;
};

// Writes the model block by block. If the message would exceed `max_bytes`, contents go into `<file>.data` beside it,
// or into `<file>.data2` if the file being replaced uses that name: its data stay until the new file is in place.
void save_message(const ModelMessage& message, const std::string& path, const SaveOptions& options = {});
void save_model(const Model& model, const std::string& path);
void save_proto(const onnx::ModelProto& proto, const std::string& path, size_t max_bytes = kMaxMessageBytes);

// Where write_data_file puts tensors of these sizes: each begins at a multiple of 4096 bytes, so that readers can map
// it. The last number is the size of the file.
std::vector<size_t> data_offsets(const std::vector<size_t>& sizes);
// Writes tensors into a file that models can name as external data, atomically. `on_contents` as in SaveOptions.
void write_data_file(const std::string& path, const std::vector<Tensor>& contents,
                     const std::function<void(size_t index, const void* data, size_t bytes)>& on_contents);
// Makes `tensor` one whose data are `bytes` bytes at `offset` of the file `location`, from the model's folder.
void refer_to_data_file(const std::string& location, size_t offset, size_t bytes, onnx::TensorProto* tensor);
// The data files that the model at `path` refers to, as it names them; null if there is no model at `path`. Throws
// Error if the system cannot read it.
std::optional<std::set<std::string>> data_files_of(const std::string& path);

// Makes `to` a file equal to the model `from` that save_message wrote, atomically and without storing it twice: a copy
// that shares blocks if the file system supports it, else a hard link (this program never writes into an existing
// file). Returns false and does nothing if neither is possible or if the model keeps its data in another file.
bool share_file(const std::string& from, const std::string& to);

// Writes `bytes` atomically, as above.
void write_file(const std::string& path, const std::string& bytes);
// The same with the contents of tensors after them, which are not copied.
void write_file(const std::string& path, const std::string& bytes, const std::vector<Tensor>& contents);

// Runs ONNX's full checker with strict shape inference. Throws Error with its message.
void check_proto(const onnx::ModelProto& proto);

}  // namespace onnx_train
