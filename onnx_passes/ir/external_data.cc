#include "onnx_passes/ir/external_data.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <vector>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/file.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/types.h"

namespace onnx_train {
namespace {

using TensorFunction = std::function<void(onnx::TensorProto*)>;

void visit_nodes(google::protobuf::RepeatedPtrField<onnx::NodeProto>* nodes, const TensorFunction& f);

void visit_graph(onnx::GraphProto* graph, const TensorFunction& f) {
  for (auto& tensor : *graph->mutable_initializer()) f(&tensor);
  for (auto& sparse : *graph->mutable_sparse_initializer()) {
    f(sparse.mutable_values());
    f(sparse.mutable_indices());
  }
  visit_nodes(graph->mutable_node(), f);
}

void visit_attribute(onnx::AttributeProto* attribute, const TensorFunction& f) {
  if (attribute->has_t()) f(attribute->mutable_t());
  for (auto& tensor : *attribute->mutable_tensors()) f(&tensor);
  if (attribute->has_g()) visit_graph(attribute->mutable_g(), f);
  for (auto& graph : *attribute->mutable_graphs()) visit_graph(&graph, f);
}

void visit_nodes(google::protobuf::RepeatedPtrField<onnx::NodeProto>* nodes, const TensorFunction& f) {
  for (auto& node : *nodes) {
    for (auto& attribute : *node.mutable_attribute()) visit_attribute(&attribute, f);
  }
}

int bits_of(int data_type) {
  switch (data_type) {
    case onnx::TensorProto::UINT2:
    case onnx::TensorProto::INT2: return 2;
    case onnx::TensorProto::UINT4:
    case onnx::TensorProto::INT4:
    case onnx::TensorProto::FLOAT4E2M1: return 4;
    case onnx::TensorProto::FLOAT6E2M3:
    case onnx::TensorProto::FLOAT6E3M2: return 6;
    case onnx::TensorProto::FLOAT8E4M3FN:
    case onnx::TensorProto::FLOAT8E4M3FNUZ:
    case onnx::TensorProto::FLOAT8E5M2:
    case onnx::TensorProto::FLOAT8E5M2FNUZ:
    case onnx::TensorProto::FLOAT8E8M0: return 8;
    case onnx::TensorProto::COMPLEX64: return 64;
    case onnx::TensorProto::COMPLEX128: return 128;
    case onnx::TensorProto::STRING: return 0;
    default: return 8 * static_cast<int>(size_of(static_cast<DType>(data_type)));
  }
}

// Where a tensor's data are: the keys that ONNX defines, and no others.
struct Place {
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

Place read_place(const onnx::TensorProto& tensor) {
  Place place;
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

// The names on the way from the model's folder to the file.
std::vector<std::string> components(const std::string& tensor, const std::string& location) {
  const bool drive = location.size() > 1 && location[1] == ':';
  if (location[0] == '/' || drive || location.find('\\') != std::string::npos ||
      location.find('\0') != std::string::npos) {
    fail("tensor '", tensor, "': external data at '", location.c_str(),
         "' is refused; it must be a relative path with '/', in the model's folder or below");
  }
  std::vector<std::string> parts;
  for (size_t start = 0; start <= location.size();) {
    const size_t end = std::min(location.find('/', start), location.size());
    const std::string part = location.substr(start, end - start);
    if (part == "..") {
      fail("tensor '", tensor, "': external data at '", location, "' is refused; it leaves the model's folder");
    }
    if (!part.empty() && part != ".") parts.push_back(part);
    start = end + 1;
  }
  if (parts.empty()) fail("tensor '", tensor, "': external data at '", location, "' is no file");
  return parts;
}

// The data files of one model: each is opened once, below the model's folder, without following any link.
class DataFiles {
 public:
  explicit DataFiles(const std::string& folder) : folder_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    if (!folder_.is_open()) fail(folder, ": ", std::strerror(errno));
  }

  void read(onnx::TensorProto* tensor) {
    const size_t bytes = declared_bytes(*tensor);
    if (tensor->data_type() == onnx::TensorProto::STRING) {
      fail("tensor '", tensor->name(), "': strings cannot be external data");
    }
    const Place place = read_place(*tensor);
    Source& source = find(tensor->name(), place.location);
    if (place.offset > source.size || place.length.value_or(bytes) > source.size - place.offset) {
      fail("tensor '", tensor->name(), "': ", place.length.value_or(bytes), " bytes at offset ", place.offset,
           " lie outside of '", place.location, "', which has ", source.size, " bytes; is the file truncated?");
    }
    if (place.length.value_or(bytes) != bytes) {
      fail("tensor '", tensor->name(), "': its shape needs ", bytes, " bytes, its external data has ", *place.length);
    }
    // A few tensors may share data; a small file that claims to hold thousands of large ones is an attack.
    source.taken += bytes;
    if (source.taken > kMaxSharing * source.size) {
      fail("tensor '", tensor->name(), "': the model's tensors need far more data than '", place.location, "' holds");
    }
    std::string* data = tensor->mutable_raw_data();
    data->resize(bytes);
    if (!source.file.read(place.offset, bytes, data->data())) {
      fail("tensor '", tensor->name(), "': '", place.location, "' could not be read: ", std::strerror(errno));
    }
    tensor->clear_external_data();
    tensor->clear_data_location();
  }

 private:
  static constexpr size_t kMaxSharing = 16;

  struct Source {
    File file;
    size_t size = 0;
    size_t taken = 0;
  };

  Source& find(const std::string& tensor, const std::string& location) {
    const auto known = sources_.find(location);
    if (known != sources_.end()) return known->second;
    const auto parts = components(tensor, location);
    File file;
    int folder = folder_.descriptor();
    for (size_t i = 0; i < parts.size(); ++i) {
      const bool last = i + 1 == parts.size();
      const int kind = last ? O_NONBLOCK : O_DIRECTORY;  // a pipe must not block
      File next(openat(folder, parts[i].c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | kind));
      if (!next.is_open()) {
        const bool link = errno == ELOOP || (errno == ENOTDIR && !last);
        fail("tensor '", tensor, "': external data file '", location,
             "': ", link ? "a link on the way is not followed; put the file itself there" : std::strerror(errno));
      }
      file = std::move(next);
      folder = file.descriptor();
    }
    struct stat status = {};
    if (fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode)) {
      fail("tensor '", tensor, "': external data file '", location, "' is no regular file");
    }
    if (status.st_nlink > 1) {
      fail("tensor '", tensor, "': external data file '", location,
           "' has hard links, which may lead out of the model's folder; copy it");
    }
    Source& source = sources_[location];
    source.file = std::move(file);
    source.size = static_cast<size_t>(status.st_size);
    return source;
  }

  File folder_;
  std::map<std::string, Source> sources_;
};

}  // namespace

void for_each_tensor(onnx::ModelProto* model, const TensorFunction& f) {
  if (model->has_graph()) visit_graph(model->mutable_graph(), f);
  for (auto& info : *model->mutable_training_info()) {
    if (info.has_initialization()) visit_graph(info.mutable_initialization(), f);
    if (info.has_algorithm()) visit_graph(info.mutable_algorithm(), f);
  }
  for (auto& function : *model->mutable_functions()) {
    visit_nodes(function.mutable_node(), f);
    for (auto& attribute : *function.mutable_attribute_proto()) visit_attribute(&attribute, f);
  }
}

bool lacks_contents(const onnx::TensorProto& tensor) {
  const bool typed = tensor.float_data_size() > 0 || tensor.int32_data_size() > 0 || tensor.int64_data_size() > 0 ||
                     tensor.double_data_size() > 0 || tensor.uint64_data_size() > 0;
  return !typed && tensor.raw_data().empty() && tensor.data_location() != onnx::TensorProto::EXTERNAL &&
         declared_bytes(tensor) > 0;
}

size_t declared_bytes(const onnx::TensorProto& tensor) {
  if (!onnx::TensorProto::DataType_IsValid(tensor.data_type()) || tensor.data_type() == onnx::TensorProto::UNDEFINED) {
    fail("tensor '", tensor.name(), "': element type ", tensor.data_type(), " is none that ONNX defines");
  }
  uint64_t bits = static_cast<uint64_t>(bits_of(tensor.data_type()));
  bool empty = false;
  uint64_t product = 1;
  for (const int64_t d : tensor.dims()) {
    if (d < 0) fail("tensor '", tensor.name(), "': dimension ", d, " is negative");
    empty = empty || d == 0;
    if (d > 0 && __builtin_mul_overflow(product, static_cast<uint64_t>(d), &product)) product = UINT64_MAX;
  }
  if (empty) return 0;
  if (product > INT64_MAX || __builtin_mul_overflow(product, bits, &bits)) {
    fail("tensor '", tensor.name(), "': its dimensions multiply to more than any memory holds");
  }
  return (bits + 7) / 8;
}

void read_external_data(onnx::ModelProto* model, const std::string& folder) {
  std::optional<DataFiles> files;
  for_each_tensor(model, [&](onnx::TensorProto* tensor) {
    if (tensor->data_location() != onnx::TensorProto::EXTERNAL) return;
    if (!files) files.emplace(folder);
    files->read(tensor);
  });
}

}  // namespace onnx_train
