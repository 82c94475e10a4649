#include "onnx_passes/io/external_data.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "onnx_passes/io/absent_data.h"
#include "onnx_passes/io/base_files.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/io/hash.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/message_tensors.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train {
namespace {

// The location of a tensor's data: the keys that ONNX defines, and no others.
struct DataLocation {
  std::string location;
  size_t offset = 0;
  std::optional<size_t> length;
};

size_t parse_size(const std::string& tensor, const std::string& key, const std::string& text) {
  size_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end) fail("tensor '", tensor, "': external ", key, " '", text, "' is no size");
  return value;
}

DataLocation read_location(const onnx::TensorProto& tensor) {
  DataLocation place;
  std::vector<std::string> seen;
  for (const auto& entry : tensor.external_data()) {
    for (const std::string& key : seen) {
      if (key == entry.key()) fail("tensor '", tensor.name(), "': external data gives '", key, "' twice");
    }
    seen.push_back(entry.key());
    if (entry.key() == "location") {
      place.location = entry.value();
    } else if (entry.key() == "offset") {
      place.offset = parse_size(tensor.name(), "offset", entry.value());
    } else if (entry.key() == "length") {
      place.length = parse_size(tensor.name(), "length", entry.value());
    } else if (entry.key() != "checksum") {
      fail("tensor '", tensor.name(), "': external data has the unknown key '", entry.key(), "'");
    }
  }
  if (place.location.empty()) fail("tensor '", tensor.name(), "': its external data names no file");
  return place;
}

// The path components from the model's folder to the file.
std::vector<std::string> components(const std::string& tensor, const std::string& location) {
  const bool drive = location.size() > 1 && location[1] == ':';
  if (location[0] == '/' || drive || location.find('\\') != std::string::npos ||
      location.find('\0') != std::string::npos) {
    fail_as(ErrorCode::kExternalData, "tensor '", tensor, "': external data at '", location.c_str(),
            "' is refused; it must be a relative path with '/', in the model's folder or below");
  }
  std::vector<std::string> parts;
  for (size_t start = 0; start <= location.size();) {
    const size_t end = std::min(location.find('/', start), location.size());
    const std::string part = location.substr(start, end - start);
    if (part == "..") {
      fail_as(ErrorCode::kExternalData, "tensor '", tensor, "': external data at '", location,
              "' is refused; it leaves the model's folder");
    }
    if (!part.empty() && part != ".") parts.push_back(part);
    start = end + 1;
  }
  if (parts.empty())
    fail_as(ErrorCode::kExternalData, "tensor '", tensor, "': external data at '", location, "' is no file");
  return parts;
}

std::string& allowed_links() {
  static std::string folder;
  return folder;
}

// The data files of one model. Each is opened once, below the model's folder, without following links.
class DataFiles {
 public:
  DataFiles(const std::string& folder, std::vector<BaseFile> bases)
      : path_(folder), folder_(platform::open_folder(folder)), bases_(std::move(bases)) {
    if (!folder_.is_open()) fail(folder, ": ", std::strerror(errno));
  }

  // The position of the tensor's data in its file.
  struct View {
    const unsigned char* data;
    size_t bytes;
    std::shared_ptr<const void> owner;
  };

  View find(const onnx::TensorProto& tensor) {
    const size_t bytes = declared_bytes(tensor);
    if (tensor.data_type() == onnx::TensorProto::STRING) {
      fail("tensor '", tensor.name(), "': strings cannot be external data");
    }
    const DataLocation place = read_location(tensor);
    Source& source = open_file(tensor.name(), place.location);
    if (!source.file) {
      if (place.length.value_or(bytes) != bytes) fail_with_length(tensor, bytes, *place.length);
      auto owner = stand_in(tensor.name(), place.location, static_cast<DType>(tensor.data_type()), bytes);
      return {static_cast<const unsigned char*>(owner.get()), bytes, owner};
    }
    const size_t size = source.file->size();
    if (place.offset > size || place.length.value_or(bytes) > size - place.offset) {
      fail_as(ErrorCode::kModelDamaged, "tensor '", tensor.name(), "': ", place.length.value_or(bytes),
              " bytes at offset ", place.offset, " lie outside of '", place.location, "', which has ", size,
              " bytes; is the file truncated? Copy it again");
    }
    if (place.length.value_or(bytes) != bytes) fail_with_length(tensor, bytes, *place.length);
    // A few tensors may share data, but a small file that claims to hold thousands of large tensors is an attack.
    source.taken += bytes;
    if (source.taken > kMaxSharing * size) {
      fail("tensor '", tensor.name(), "': the model's tensors need far more data than '", place.location, "' holds");
    }
    const unsigned char* const data = source.file->data() + place.offset;
    if (source.base) source.add(data, bytes);
    return {data, bytes, source.file};
  }

  // Throws Error unless the bases hold what was taken from them.
  void check_bases() const {
    for (const auto& [location, source] : sources_) {
      if (source.base && source.hash.hex() != source.base->hash) refuse_base(*source.base, source.file->path());
    }
  }

 private:
  static constexpr size_t kMaxSharing = 16;

  struct Source {
    std::shared_ptr<const MappedFile> file;  // null: absent, and allowed to be (absent_data.h)
    size_t taken = 0;
    const BaseFile* base = nullptr;  // of a checkpoint
    Hash hash = {};                  // of what is taken from the base

    void add(const unsigned char* data, size_t bytes) {
      hash.add_size(bytes);
      for_each_block(Tensor(DType::kUint8, {static_cast<int64_t>(bytes)}, data, nullptr),
                     [&](const void* block, size_t size) { hash.add_bytes(block, size); });
    }
  };

  [[noreturn]] static void fail_with_length(const onnx::TensorProto& tensor, size_t bytes, size_t length) {
    fail_as(ErrorCode::kModelDamaged, "tensor '", tensor.name(), "': its shape needs ", bytes,
            " bytes, its external data has ", length);
  }

  Source& open_file(const std::string& tensor, const std::string& location) {
    const auto known = sources_.find(location);
    if (known != sources_.end()) return known->second;
    if (const BaseFile* base = find_base(location)) return open_source(*base);
    const auto parts = components(tensor, location);
    std::string why;
    File file = open_below(folder_, parts, /*hard_links=*/false, &why);
    if (!file.is_open() && !allowed_links().empty()) file = open_linked(tensor, location, &why);
    if (!file.is_open() && allows_absent_data() && why == missing()) return sources_[location];
    if (!file.is_open())
      fail_as(ErrorCode::kExternalData, "tensor '", tensor, "': external data file '", location, "'", why);
    Source& source = sources_[location];
    source.file = MappedFile::map(file, concat(path_, '/', location));
    return source;
  }

  const BaseFile* find_base(const std::string& location) const {
    const auto found = std::ranges::find(bases_, location, &BaseFile::location);
    return found == bases_.end() ? nullptr : &*found;
  }

  Source& open_source(const BaseFile& base) {
    std::string path;
    try {
      const File file = open_base(base, path_, &path);
      Source& source = sources_[base.location];
      source.file = MappedFile::map(file, path, /*is_base=*/true);
      source.base = &base;
      return source;
    } catch (const Error&) {
      if (!allows_absent_data()) throw;
      return sources_[base.location];
    }
  }

  static std::string missing() {
    return concat(": ", std::strerror(ENOENT), "; copy it with the model, whose tensors it has");
  }

  // Opens a regular file reached from `folder` without links; otherwise the result is not open and `why` tells the
  // reason.
  static File open_below(const File& folder, const std::vector<std::string>& parts, bool hard_links, std::string* why) {
    File file;
    const File* at = &folder;
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool last = i + 1 == parts.size();
      File next = platform::open_entry(*at, parts[i], /*is_folder=*/!last);
      if (!next.is_open()) {
        const bool link = errno == ELOOP || (errno == ENOTDIR && !last);
        *why = errno == ENOENT ? missing()
                               : concat(": ", link ? "a link on the way is not followed; put the file itself there, or "
                                                     "allow links that lead into a folder you trust: --allow-links DIR"
                                                   : std::strerror(errno));
        return File();
      }
      file = std::move(next);
      at = &file;
    }
    const std::optional<platform::FileStatus> status = file.status();
    if (!status || !status->is_regular) {
      *why = " is no regular file";
      return File();
    }
    if (status->links > 1 && !hard_links) {
      *why =
          " has hard links, which may lead out of the model's folder; copy it, or allow a folder you trust: "
          "--allow-links DIR";
      return File();
    }
    return file;
  }

  // The file that the location reaches through links, if it is in the folder where links may lead.
  File open_linked(const std::string& tensor, const std::string& location, std::string* why) const {
    const std::string& allowed = allowed_links();
    const std::string path = platform::real_path(concat(path_, '/', location)), below = platform::real_path(allowed);
    if (below.empty()) fail_as(ErrorCode::kExternalData, "--allow-links ", allowed, ": ", std::strerror(errno));
    if (path.empty()) return File();  // keeps the first reason
    const std::string prefix = below == "/" ? below : below + "/";
    if (!path.starts_with(prefix)) {
      *why = concat(" leads to '", path, "', which is not below '", below, "' (--allow-links)");
      return File();
    }
    const File folder = platform::open_folder(below);
    if (!folder.is_open()) fail_as(ErrorCode::kExternalData, "--allow-links ", allowed, ": ", std::strerror(errno));
    return open_below(folder, components(tensor, path.substr(prefix.size())), /*hard_links=*/true, why);
  }

  std::string path_;
  File folder_;
  const std::vector<BaseFile> bases_;
  std::map<std::string, Source> sources_;
};

}  // namespace

void allow_links_into(const std::string& folder) { allowed_links() = folder; }

void put_data(const void* data, size_t bytes, std::shared_ptr<const void> owner, ModelMessage* message,
              onnx::TensorProto* tensor) {
  const auto dtype = static_cast<DType>(tensor->data_type());
  if (message && bytes >= kMinBytesBeside && has_four_bits(*tensor)) {
    put_beside({DType::kUint8, {static_cast<int64_t>(bytes)}, data, std::move(owner)}, &message->contents, tensor);
  } else if (message && bytes >= kMinBytesBeside && may_be_beside(dtype)) {
    put_beside({dtype, {tensor->dims().begin(), tensor->dims().end()}, data, std::move(owner)}, &message->contents,
               tensor);
  } else {
    tensor->set_raw_data(data, bytes);
  }
}

void map_external_data(const std::string& folder, ModelMessage* message) {
  std::vector<BaseFile> bases = take_base_record(&message->proto);
  std::optional<DataFiles> files;
  for_each_tensor(&message->proto, [&](onnx::TensorProto* tensor, bool is_initializer) {
    if (tensor->data_location() != onnx::TensorProto::EXTERNAL) return;
    if (!files) files.emplace(folder, std::move(bases));
    const DataFiles::View view = files->find(*tensor);
    tensor->clear_external_data();
    tensor->clear_data_location();
    put_data(view.data, view.bytes, view.owner, is_initializer ? message : nullptr, tensor);
  });
  if (files) files->check_bases();
}

}  // namespace onnx_train
