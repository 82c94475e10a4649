// The writing half of loading.h.
#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "onnx_passes/io/external_data.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/io/message_pieces.h"
#include "onnx_passes/io/message_reader.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/message_tensors.h"
#include "platform/replacement.h"

namespace onnx_train {
namespace {

// A file that appears under its name when it is complete, or not at all.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path) : path_(path) {
    const auto [folder, name] = split_path(path);
    folder_ = folder;
    if (name.empty()) fail_as(ErrorCode::kCannotWrite, "'", path, "' names no file to write");
    const std::optional<platform::FileStatus> status = platform::status_of(path);
    if (status && !status->is_regular) {
      fail_as(ErrorCode::kCannotWrite, path, ": cannot write: it is no regular file, and would be replaced by one");
    }
    if (!file_.create(folder, name)) refuse(concat("cannot write into '", folder, "'"));
    if (!file_.take_permissions(path)) refuse("cannot set permissions");
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size) {
    if (!file_.write(data, size)) refuse("cannot write");
  }

  // Writes zeros as a hole, which takes no disk space or time.
  void skip(size_t size) {
    if (!file_.skip(size)) refuse("cannot write");
  }

  // Shares the blocks of another file; false if the file system does not support it.
  bool share(const std::string& from) { return file_.share(from); }

  void commit() {
    if (!file_.put_in_place(path_)) refuse("cannot write");
    is_in_place_ = true;
    if (!platform::sync_folder(folder_)) refuse("cannot write the folder");
  }

  // Whether the path names the new file: also when `commit` has failed after that.
  bool is_in_place() const { return is_in_place_; }

  [[noreturn]] void refuse(const std::string& what) const {
    fail_as(ErrorCode::kCannotWrite, path_, ": ", what, ": ", std::strerror(errno));
  }

 private:
  std::string path_, folder_;
  platform::Replacement file_;
  bool is_in_place_ = false;
};

constexpr size_t kPage = 4096;                // so that readers can map each tensor
constexpr int kMaxDepth = 100;                // of messages, when the file being replaced is read
constexpr const char* kData = ".data";        // what a model's name has after it where its large tensors are
constexpr const char* kOtherData = ".data2";  // the same, while the old model needs the first

bool move_to_raw_data(onnx::TensorProto* tensor) {
  if (tensor->data_type() == onnx::TensorProto::STRING || tensor->ByteSizeLong() < kMinBytesBeside) return false;
  if (!tensor->has_raw_data()) {
    const onnx::TensorProto typed = *tensor;
    to_proto(from_proto(typed), typed.name(), tensor);
  }
  return tensor->raw_data().size() >= kMinBytesBeside;
}

size_t aligned(size_t at) { return (at + kPage - 1) / kPage * kPage; }

// Writes the contents of one message and passes them to the caller's observer.
class ContentsWriter {
 public:
  ContentsWriter(const std::vector<Tensor>& contents, const SaveOptions& options)
      : contents_(contents), options_(options) {}

  void write(size_t index, AtomicFile* file) const {
    for_each_block(contents_.at(index), [&](const void* data, size_t bytes) {
      if (options_.on_contents) options_.on_contents(index, data, bytes);
      // Zero moments, before the first step, are two thirds of a new training model.
      is_zero(data, bytes) ? file->skip(bytes) : file->write(data, bytes);
    });
  }
  size_t bytes(size_t index) const { return contents_.at(index).bytes(); }
  bool empty() const { return contents_.empty(); }

 private:
  const std::vector<Tensor>& contents_;
  const SaveOptions& options_;
};

// Moves large tensors of `model` into `file`, which the model refers to as `location`.
void write_external_data(onnx::ModelProto* model, const std::string& location, const ContentsWriter& contents,
                         AtomicFile* file) {
  const std::string padding(kPage, '\0');
  size_t at = 0;
  for_each_tensor(model, [&](onnx::TensorProto* tensor, bool) {
    const auto reference = reference_of(*tensor);
    const bool is_elsewhere = !reference && tensor->data_location() == onnx::TensorProto::EXTERNAL;
    if (is_elsewhere || (!reference && !move_to_raw_data(tensor))) return;
    const size_t size = reference ? contents.bytes(*reference) : tensor->raw_data().size();
    file->write(padding.data(), aligned(at) - at);
    at = aligned(at);
    if (reference) {
      contents.write(*reference, file);
    } else {
      file->write(tensor->raw_data().data(), size);
    }
    refer_to_data_file(location, at, size, tensor);
    at += size;
  });
}

void write_pieces(const onnx::ModelProto& proto, const ContentsWriter& contents, AtomicFile* file) {
  if (contents.empty()) {
    const std::string bytes = proto.SerializeAsString();
    return file->write(bytes.data(), bytes.size());
  }
  for (const MessagePiece& piece : cut_at_references(proto)) {
    file->write(piece.bytes.data(), piece.bytes.size());
    if (piece.reference) contents.write(*piece.reference, file);
  }
}

void save_with_external_data(onnx::ModelProto* model, const std::string& path, const ContentsWriter& contents,
                             const SaveOptions& options) {
  // The old model keeps its data until the new one is complete: two names alternate.
  const auto [folder, name] = split_path(path);
  const std::string first = name + kData, second = name + kOtherData;
  const std::set<std::string> used = data_files_of(path).value_or(std::set<std::string>());
  const std::string location = used.contains(first) ? second : first;
  AtomicFile data(folder + "/" + location), file(path);
  try {
    write_external_data(model, location, contents, &data);
    data.commit();
    const std::string bytes = model->SerializeAsString() + (options.ending ? options.ending() : "");
    file.write(bytes.data(), bytes.size());
    file.commit();
  } catch (...) {
    // A new model that is in place, though the system may not have kept it yet, needs its data.
    if (data.is_in_place() && !file.is_in_place()) platform::remove_file(folder + "/" + location);
    throw;
  }
  for (const std::string& old : {first, second}) {
    if (old != location && used.contains(old)) platform::remove_file(folder + "/" + old);
  }
}

void save(const onnx::ModelProto& proto, const std::vector<Tensor>& contents, const std::string& path,
          const SaveOptions& options) {
  size_t bytes = proto.ByteSizeLong();
  for (const Tensor& tensor : contents) bytes += tensor.bytes() + 2 * kAlignment;  // and padding
  const ContentsWriter writer(contents, options);
  if (bytes > options.max_bytes) {
    onnx::ModelProto copy = proto;
    return save_with_external_data(&copy, path, writer, options);
  }
  AtomicFile file(path);
  write_pieces(proto, writer, &file);
  const std::string ending = options.ending ? options.ending() : "";
  file.write(ending.data(), ending.size());
  file.commit();
}

}  // namespace

std::optional<std::set<std::string>> data_files_of(const std::string& path) {
  if (!path_exists(path)) return std::nullopt;
  onnx::ModelProto model;
  std::vector<RawData> left_out;
  const auto file = MappedFile::open(path);
  if (file->size() == 0 || file->size() > INT_MAX) return std::nullopt;
  if (!read_message({file->data(), file->size()}, kMaxDepth, &model, &left_out)) return std::nullopt;
  std::set<std::string> locations;
  for_each_tensor(&model, [&](onnx::TensorProto* tensor, bool) {
    for (const auto& entry : tensor->external_data()) {
      if (entry.key() == "location") locations.insert(entry.value());
    }
  });
  return locations;
}

std::vector<size_t> data_offsets(const std::vector<size_t>& sizes) {
  std::vector<size_t> offsets = {0};
  for (const size_t size : sizes) {
    offsets.back() = aligned(offsets.back());
    offsets.push_back(offsets.back() + size);
  }
  return offsets;
}

void write_data_file(const std::string& path, const std::vector<Tensor>& contents,
                     const std::function<void(size_t index, const void* data, size_t bytes)>& on_contents) {
  SaveOptions options;
  options.on_contents = on_contents;
  const ContentsWriter writer(contents, options);
  std::vector<size_t> sizes;
  for (const Tensor& tensor : contents) sizes.push_back(tensor.bytes());
  const std::vector<size_t> offsets = data_offsets(sizes);
  AtomicFile file(path);
  size_t at = 0;
  for (size_t i = 0; i < contents.size(); ++i) {
    file.skip(offsets[i] - at);
    writer.write(i, &file);
    at = offsets[i] + sizes[i];
  }
  file.commit();
}

void refer_to_data_file(const std::string& location, size_t offset, size_t bytes, onnx::TensorProto* tensor) {
  const auto add = [&](const char* key, const std::string& value) {
    auto* entry = tensor->add_external_data();
    entry->set_key(key);
    entry->set_value(value);
  };
  tensor->clear_external_data();
  tensor->clear_raw_data();
  tensor->set_data_location(onnx::TensorProto::EXTERNAL);
  add("location", location);
  add("offset", std::to_string(offset));
  add("length", std::to_string(bytes));
}

bool share_file(const std::string& from, const std::string& to) {
  // Without a data file of save_with_external_data beside it, the model is not read, which would map its pages.
  if ((path_exists(from + kData) || path_exists(from + kOtherData)) && data_files_of(from) != std::set<std::string>())
    return false;
  AtomicFile file(to);
  if (!file.share(from)) return false;
  file.commit();
  return true;
}

void write_file(const std::string& path, const std::string& bytes) { write_file(path, bytes, {}); }

void write_file(const std::string& path, const std::string& bytes, const std::vector<Tensor>& contents) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  for (const Tensor& tensor : contents) {
    for_each_block(tensor, [&](const void* data, size_t size) { file.write(data, size); });
  }
  file.commit();
}

void save_message(const ModelMessage& message, const std::string& path, const SaveOptions& options) {
  save(message.proto, message.contents, path, options);
}

void save_proto(const onnx::ModelProto& proto, const std::string& path, size_t max_bytes) {
  SaveOptions options;
  options.max_bytes = max_bytes;
  save(proto, {}, path, options);
}

void save_model(const Model& model, const std::string& path) { save_message(to_message(model), path); }

}  // namespace onnx_train
