#include "runtime/data/files/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <set>
#include <string_view>

#include <nlohmann/json.hpp>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "runtime/data/files/readers.h"

namespace onnx_train {
namespace {

using Json = nlohmann::json;

constexpr size_t kLengthBytes = 8;
constexpr size_t kMostHeaderBytes = 100'000'000;
constexpr const char* kMetadata = "__metadata__";

struct SafeType {
  DType dtype;
  std::string_view code;
};

constexpr std::array<SafeType, 13> kSafeTypes = {{
    {DType::kFloat, "F32"},
    {DType::kDouble, "F64"},
    {DType::kFloat16, "F16"},
    {DType::kBFloat16, "BF16"},
    {DType::kInt8, "I8"},
    {DType::kInt16, "I16"},
    {DType::kInt32, "I32"},
    {DType::kInt64, "I64"},
    {DType::kUint8, "U8"},
    {DType::kUint16, "U16"},
    {DType::kUint32, "U32"},
    {DType::kUint64, "U64"},
    {DType::kBool, "BOOL"},
}};

// A tensor of the file; offsets count from the end of the header.
struct SafeEntry {
  std::string name;
  DType dtype = DType::kUndefined;
  Shape shape = {};
  size_t begin = 0, end = 0;
};

class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::string& path) : path_(path), file_(MappedFile::open(path)) {}

  TensorMap read(std::map<std::string, std::string>* metadata) {
    const std::string_view header = header_text();
    read_header(header, metadata);
    const size_t start = kLengthBytes + header.size();
    check_positions(file_->size() - start);
    TensorMap tensors;
    for (const SafeEntry& entry : entries_) tensors.emplace(entry.name, tensor(entry, file_->data() + start));
    return tensors;
  }

 private:
  template <typename... Args>
  [[noreturn]] void refuse(const Args&... args) const {
    fail_as(ErrorCode::kFile, path_, args...);
  }

  std::string_view header_text() const {
    uint64_t length = 0;
    if (file_->size() < kLengthBytes) refuse(" is no safetensors file: it has ", file_->size(), " bytes");
    std::memcpy(&length, file_->data(), kLengthBytes);
    if (length > kMostHeaderBytes) {
      refuse(" is no safetensors file: its header would have ", length, " bytes, and at most ", kMostHeaderBytes,
             " are allowed");
    }
    if (length > file_->size() - kLengthBytes) {
      refuse(" is cut off or no safetensors file: its header has ", length, " bytes, the file ", file_->size());
    }
    return {reinterpret_cast<const char*>(file_->data()) + kLengthBytes, length};
  }

  void read_header(std::string_view text, std::map<std::string, std::string>* metadata) {
    if (!text.starts_with('{')) refuse(" is no safetensors file: its header does not start with '{'");
    const Json header = parse(text);
    if (!header.is_object()) refuse(" has a header that is no JSON object");
    for (const auto& [name, value] : header.items()) {
      if (name == kMetadata) {
        read_metadata(value, metadata);
      } else {
        entries_.push_back(entry_of(name, value));
      }
    }
  }

  // JSON allows a name to appear twice, and readers differ in which one counts.
  Json parse(std::string_view text) const {
    constexpr int kMostDepth = 4;
    std::vector<std::set<std::string>> names;
    const auto look = [&](int depth, Json::parse_event_t event, const Json& parsed) {
      if (depth > kMostDepth) refuse(" has a header that is not one of safetensors: it is nested too deeply");
      if (event == Json::parse_event_t::object_start) {
        names.resize(static_cast<size_t>(depth));
        names.emplace_back();
      } else if (event == Json::parse_event_t::key && !names.back().insert(parsed.get<std::string>()).second) {
        refuse(" has '", parsed.get<std::string>(), "' twice in its header");
      } else if (event == Json::parse_event_t::object_end) {
        names.pop_back();
      }
      return true;
    };
    try {
      return Json::parse(text.begin(), text.end(), look);
    } catch (const Json::exception& error) {
      refuse(" has a header that is no JSON: ", error.what());
    }
  }

  void read_metadata(const Json& value, std::map<std::string, std::string>* metadata) const {
    if (!value.is_object()) refuse(": '", kMetadata, "' is no JSON object");
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string()) refuse(": '", kMetadata, "' holds '", key, "', which is no text");
      if (metadata) (*metadata)[key] = text.get<std::string>();
    }
  }

  SafeEntry entry_of(const std::string& name, const Json& value) const {
    const auto damaged = [&](const char* what) { refuse(": '", name, "' has no valid ", what, " in the header"); };
    SafeEntry entry{name};
    if (!value.is_object()) damaged("entry");
    const auto field = [&](const char* key) -> const Json& {
      const auto found = value.find(key);
      if (found == value.end()) damaged(key);
      return *found;
    };
    const Json &dtype = field("dtype"), &shape = field("shape"), &offsets = field("data_offsets");
    if (!dtype.is_string()) damaged("dtype");
    entry.dtype = dtype_of_code(name, dtype.get<std::string>());
    const auto is_size = [](const Json& number) {
      return number.is_number_unsigned() && number.get<uint64_t>() <= static_cast<uint64_t>(INT64_MAX);
    };
    if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_size)) damaged("shape");
    for (const Json& size : shape) entry.shape.push_back(size.get<int64_t>());
    if (!offsets.is_array() || offsets.size() != 2 || !std::all_of(offsets.begin(), offsets.end(), is_size))
      damaged("data_offsets");
    entry.begin = offsets[0].get<size_t>();
    entry.end = offsets[1].get<size_t>();
    return entry;
  }

  DType dtype_of_code(const std::string& name, const std::string& code) const {
    std::string known;
    for (const SafeType& type : kSafeTypes) {
      if (type.code == code) return type.dtype;
      known += concat(known.empty() ? "" : ", ", type.code);
    }
    refuse(": '", name, "' has the type ", code, "; supported are ", known);
  }

  // The tensors, in the order of the file, follow each other without a gap up to the end of the file.
  void check_positions(size_t bytes) {
    std::stable_sort(entries_.begin(), entries_.end(), [](const SafeEntry& a, const SafeEntry& b) {
      return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
    });
    size_t at = 0;
    for (const SafeEntry& entry : entries_) {
      if (entry.begin != at) {
        refuse(": '", entry.name, "' begins at byte ", entry.begin, ", but the tensor before it ends at ", at);
      }
      if (entry.end < entry.begin || entry.end > bytes) {
        refuse(" is cut off: '", entry.name, "' ends at byte ", entry.end, ", the file's tensors at ", bytes);
      }
      const size_t expected = bytes_of(entry);
      if (entry.end - entry.begin != expected) {
        refuse(": '", entry.name, "' of shape ", to_string(entry.shape), " takes ", expected, " bytes, not ",
               entry.end - entry.begin);
      }
      at = entry.end;
    }
    if (at != bytes) refuse(" has ", bytes - at, " bytes after its last tensor");
  }

  size_t bytes_of(const SafeEntry& entry) const {
    size_t bytes = size_of(entry.dtype);
    for (const int64_t size : entry.shape) {
      if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes)) {
        refuse(": '", entry.name, "' of shape ", to_string(entry.shape), " has more bytes than can be counted");
      }
    }
    return bytes;
  }

  Tensor tensor(const SafeEntry& entry, const unsigned char* data) const {
    const void* at = data + entry.begin;
    if (entry.dtype == DType::kBool) {  // any byte but 0 is true
      Tensor booleans(entry.dtype, entry.shape);
      auto* to = booleans.data<bool>();
      for (size_t i = 0; i < booleans.bytes(); ++i) to[i] = data[entry.begin + i] != 0;
      return booleans;
    }
    const Tensor view(entry.dtype, entry.shape, at, file_);
    return reinterpret_cast<uintptr_t>(at) % size_of(entry.dtype) == 0 ? view : view.clone();
  }

  std::string path_;
  std::shared_ptr<const MappedFile> file_;
  std::vector<SafeEntry> entries_;
};

std::string_view code_of(const std::string& path, const std::string& name, DType dtype) {
  for (const SafeType& type : kSafeTypes) {
    if (type.dtype == dtype) return type.code;
  }
  fail_as(ErrorCode::kFile, path, ": safetensors cannot hold '", name, "', which is ", onnx_train::name(dtype));
}

}  // namespace

TensorMap read_safetensors(const std::string& path, std::map<std::string, std::string>* metadata) {
  return SafetensorsReader(path).read(metadata);
}

void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  size_t at = 0;
  std::vector<Tensor> contents;
  for (const auto& [name, tensor] : tensors) {
    if (name == kMetadata) fail_as(ErrorCode::kFile, path, ": safetensors cannot hold a tensor called '", name, "'");
    header[name] = {{"dtype", code_of(path, name, tensor.dtype())},
                    {"shape", tensor.shape()},
                    {"data_offsets", {at, at + tensor.bytes()}}};
    at += tensor.bytes();
    contents.push_back(tensor);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& error) {
    fail_as(ErrorCode::kFile, path, ": a name is no UTF-8, which safetensors needs: ", error.what());
  }
  text.resize(align_up(text.size(), kLengthBytes), ' ');  // the tensors start at a multiple of 8 bytes
  const uint64_t length = text.size();
  std::string head(kLengthBytes, '\0');
  std::memcpy(head.data(), &length, kLengthBytes);
  write_file(path, head + text, contents);
}

bool is_safetensors(const std::string& path) {
  std::string suffix = std::filesystem::path(path).extension().string();
  std::transform(suffix.begin(), suffix.end(), suffix.begin(), [](unsigned char c) { return std::tolower(c); });
  return suffix == ".safetensors";
}

DataArrays open_safetensors(const std::string& path) { return arrays_of(read_safetensors(path)); }

}  // namespace onnx_train
