// The writing half of loading.h.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/external_data.h"
#include "onnx_passes/ir/file.h"
#include "onnx_passes/ir/loading.h"
#include "onnx_passes/ir/message_pieces.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

// A file that appears under its name when it is complete, or not at all.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path) : path_(path) {
    const auto [folder, name] = split_path(path);
    folder_ = folder;
    if (name.empty()) fail("'", path, "' names no file to write");
    struct stat status = {};
    if (stat(path.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      fail(path, ": cannot write: it is no regular file, and would be replaced by one");
    }
    temporary_ = folder + "/." + name + ".XXXXXX";
    file_ = File(mkostemp(temporary_.data(), O_CLOEXEC));
    if (!file_.is_open()) {
      temporary_.clear();
      refuse(concat("cannot write into '", folder, "'"));
    }
    take_permissions();
  }
  ~AtomicFile() {
    if (!temporary_.empty()) unlink(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t size) {
    if (!file_.write(data, size)) refuse("cannot write");
  }

  int descriptor() const { return file_.descriptor(); }

  void commit() {
    if (fsync(file_.descriptor()) != 0 || !file_.close_now()) refuse("cannot write");
    if (rename(temporary_.c_str(), path_.c_str()) != 0) refuse("cannot write");
    temporary_.clear();
    const File folder(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder.is_open() || (fsync(folder.descriptor()) != 0 && errno != EINVAL)) refuse("cannot write the folder");
  }

  [[noreturn]] void refuse(const std::string& what) const { fail(path_, ": ", what, ": ", std::strerror(errno)); }

 private:
  // Those of the file that is replaced, or of any new file.
  void take_permissions() {
    struct stat status = {};
    mode_t mode = 0;
    if (stat(path_.c_str(), &status) == 0) {
      mode = status.st_mode & 0777;
    } else {
      const mode_t mask = umask(0);
      umask(mask);
      mode = 0666 & ~mask;
    }
    if (fchmod(file_.descriptor(), mode) != 0) refuse("cannot set permissions");
  }

  std::string path_, folder_, temporary_;
  File file_;
};

constexpr size_t kAlignment = 4096;         // so that readers can map each tensor
constexpr size_t kMinExternalBytes = 1024;  // smaller tensors stay in the message

bool move_to_raw_data(onnx::TensorProto* tensor) {
  if (tensor->data_type() == onnx::TensorProto::STRING || tensor->ByteSizeLong() < kMinExternalBytes) return false;
  if (!tensor->has_raw_data()) {
    const onnx::TensorProto typed = *tensor;
    to_proto(from_proto(typed), typed.name(), tensor);
  }
  return tensor->raw_data().size() >= kMinExternalBytes;
}

void add_external(onnx::TensorProto* tensor, const char* key, const std::string& value) {
  auto* entry = tensor->add_external_data();
  entry->set_key(key);
  entry->set_value(value);
}

// Moves large tensors of `model` into `file`, which the model will find as `location`.
void write_external_data(onnx::ModelProto* model, const std::string& location, const TensorContents& contents,
                         AtomicFile* file) {
  const std::string padding(kAlignment, '\0');
  size_t at = 0;
  for_each_tensor(model, [&](onnx::TensorProto* tensor) {
    const bool missing = contents && lacks_contents(*tensor);
    if (!missing && !move_to_raw_data(tensor)) return;
    const Tensor value = missing ? contents(tensor->name()) : Tensor();
    const size_t size = missing ? value.bytes() : tensor->raw_data().size();
    const size_t gap = (kAlignment - at % kAlignment) % kAlignment;
    file->write(padding.data(), gap);
    at += gap;
    file->write(missing ? value.data() : tensor->raw_data().data(), size);
    add_external(tensor, "location", location);
    add_external(tensor, "offset", std::to_string(at));
    add_external(tensor, "length", std::to_string(size));
    at += size;
    tensor->set_data_location(onnx::TensorProto::EXTERNAL);
    tensor->clear_raw_data();
  });
}

// Of the initializers whose contents are not in the message.
size_t missing_bytes(const onnx::ModelProto& proto) {
  size_t total = 0;
  const auto add = [&](const onnx::GraphProto& graph) {
    for (const auto& tensor : graph.initializer()) total += lacks_contents(tensor) ? declared_bytes(tensor) : 0;
  };
  add(proto.graph());
  for (const auto& info : proto.training_info()) add(info.algorithm());
  return total;
}

void write_pieces(const onnx::ModelProto& proto, const TensorContents& contents, AtomicFile* file) {
  for (const MessagePiece& piece : cut_at_missing_tensors(proto)) {
    file->write(piece.bytes.data(), piece.bytes.size());
    if (piece.tensor.empty()) continue;
    const Tensor tensor = contents(piece.tensor);
    file->write(tensor.data(), tensor.bytes());
  }
}

// The data file that the model now at `path` uses; empty when there is none.
std::string data_file_of(const std::string& path) {
  const File file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  onnx::ModelProto model;
  std::string location;
  if (!file.is_open() || !model.ParseFromFileDescriptor(file.descriptor())) return location;
  for_each_tensor(&model, [&](onnx::TensorProto* tensor) {
    for (const auto& entry : tensor->external_data()) {
      if (location.empty() && entry.key() == "location") location = entry.value();
    }
  });
  return location;
}

void save_with_external_data(onnx::ModelProto* model, const std::string& path, const TensorContents& contents) {
  // The old model keeps its data until the new one is complete: two names take turns.
  const auto [folder, name] = split_path(path);
  const std::string first = name + ".data", second = name + ".data2";
  const std::string used = data_file_of(path);
  const std::string location = used == first ? second : first;
  AtomicFile data(folder + "/" + location);
  write_external_data(model, location, contents, &data);
  data.commit();
  try {
    write_file(path, model->SerializeAsString());
  } catch (...) {
    unlink((folder + "/" + location).c_str());
    throw;
  }
  if (used == first || used == second) unlink((folder + "/" + used).c_str());
}

}  // namespace

void write_file(const std::string& path, const std::string& bytes) {
  AtomicFile file(path);
  file.write(bytes.data(), bytes.size());
  file.commit();
}

void save_proto(const onnx::ModelProto& proto, const std::string& path, size_t max_bytes) {
  save_proto(proto, path, nullptr, max_bytes);
}

void save_proto(const onnx::ModelProto& proto, const std::string& path, const TensorContents& contents,
                size_t max_bytes) {
  if (proto.ByteSizeLong() + (contents ? missing_bytes(proto) : 0) > max_bytes) {
    onnx::ModelProto copy = proto;
    return save_with_external_data(&copy, path, contents);
  }
  AtomicFile file(path);
  if (contents) {
    write_pieces(proto, contents, &file);
  } else if (!proto.SerializeToFileDescriptor(file.descriptor())) {
    file.refuse("cannot write");
  }
  file.commit();
}

void save_model(const Model& model, const std::string& path) {
  onnx::ModelProto proto;
  to_proto(model, &proto);
  save_proto(proto, path);
}

}  // namespace onnx_train
