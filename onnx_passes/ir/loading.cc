#include "onnx_passes/ir/loading.h"

#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <onnx/checker.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <unordered_map>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/external_data.h"
#include "onnx_passes/ir/file.h"
#include "onnx_passes/ir/mapped_file.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/message_reader.h"

namespace onnx_train {
namespace {

// A subgraph is three messages deep (node, attribute, graph): this allows some thirty, and bounds every recursion.
constexpr int kMaxMessageDepth = 100;
// Functions that call functions grow exponentially when inlined.
constexpr int64_t kMaxInlinedNodes = 10'000'000;

File open_model(const std::string& path, size_t* size) {
  File file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) fail(path, ": ", std::strerror(errno));
  struct stat status = {};
  if (fstat(file.descriptor(), &status) != 0) fail(path, ": ", std::strerror(errno));
  if (S_ISDIR(status.st_mode)) fail(path, " is a directory; give the .onnx file in it");
  if (!S_ISREG(status.st_mode)) fail(path, " is no regular file");
  if (status.st_size == 0) fail(path, " is empty");
  if (status.st_size > INT_MAX) {
    fail(path, " has ", status.st_size, " bytes; an ONNX message ends at 2 GiB, larger models keep external data");
  }
  *size = static_cast<size_t>(status.st_size);
  return file;
}

// Walks the top level of a message. Nothing when the bytes are no fields of a ModelProto; otherwise how many bytes the
// last field lacks.
std::optional<size_t> missing_bytes(const File& file, size_t size) {
  constexpr uint32_t kLastField = 25;  // of ModelProto
  for (size_t at = 0; at < size;) {
    std::array<uint8_t, 20> head{};
    const size_t have = std::min(head.size(), size - at);
    if (!file.read(at, have, head.data())) return std::nullopt;
    google::protobuf::io::CodedInputStream in(head.data(), static_cast<int>(have));
    const uint32_t tag = in.ReadTag();
    if (tag >> 3 == 0 || tag >> 3 > kLastField) return std::nullopt;
    uint64_t number = 0;
    size_t length = 0;
    switch (tag & 7) {
      case 0:
      case 2:
        if (!in.ReadVarint64(&number)) return 1;
        if ((tag & 7) == 2) length = number;
        break;
      case 1: length = 8; break;
      case 5: length = 4; break;
      default: return std::nullopt;
    }
    at += static_cast<size_t>(in.CurrentPosition());
    if (length > size - at) return length - (size - at);
    at += length;
  }
  return 0;
}

[[noreturn]] void explain(const std::string& path, const File& file, size_t size) {
  std::string head(std::min<size_t>(size, 64), '\0');
  file.read(0, head.size(), head.data());
  const auto starts = [&](const char* text) { return head.starts_with(text); };
  if (starts("version https://git-lfs.github.com/spec/")) {
    fail(path, " is a Git LFS pointer, not the model itself; fetch it with: git lfs pull");
  }
  if (starts("PK")) fail(path, " is a zip archive (a PyTorch checkpoint?), not an ONNX model; export it to ONNX");
  if (starts("\x80\x02") || starts("\x80\x04")) fail(path, " is a Python pickle, not an ONNX model; export it to ONNX");
  if (starts("\x89HDF")) fail(path, " is an HDF5 file, not an ONNX model; export it to ONNX");
  if (head.find("TFL3") == 4) fail(path, " is a TensorFlow Lite file, not an ONNX model; export it to ONNX");
  const auto missing = missing_bytes(file, size);
  if (!missing) fail(path, " is not an ONNX model");
  if (*missing > 0) fail(path, " is truncated: it has ", size, " bytes and at least ", *missing, " more are missing");
  fail(path, " is damaged: its messages do not fit into each other");
}

// Size of each function with all its calls inlined. Throws Error when functions call each other in a circle.
class InlinedSize {
 public:
  explicit InlinedSize(const onnx::ModelProto& model) {
    for (const auto& f : model.functions()) functions_.emplace(key(f.domain(), f.name(), f.overload()), Entry{&f});
  }

  int64_t of(const google::protobuf::RepeatedPtrField<onnx::NodeProto>& nodes, int depth = 0) {
    int64_t total = 0;
    for (const auto& node : nodes) total = std::min(total + of(node, depth), kMaxInlinedNodes + 1);
    return total;
  }

 private:
  struct Entry {
    const onnx::FunctionProto* function;
    int64_t size = 0;
    bool open = false;
    bool done = false;
  };

  static std::string key(const std::string& domain, const std::string& name, const std::string& overload) {
    return concat(domain == "ai.onnx" ? "" : domain, '\n', name, '\n', overload);
  }

  int64_t of(const onnx::NodeProto& node, int depth) {
    int64_t total = 1;
    for (const auto& attribute : node.attribute()) {
      if (attribute.has_g()) total += of(attribute.g().node(), depth);
      for (const auto& graph : attribute.graphs()) total += of(graph.node(), depth);
    }
    const auto found = functions_.find(key(node.domain(), node.op_type(), node.overload()));
    if (found == functions_.end()) return total;
    Entry& entry = found->second;
    if (entry.open) fail("the function '", node.op_type(), "' calls itself, directly or through others");
    if (depth > kMaxMessageDepth) fail("functions call each other more than ", kMaxMessageDepth, " deep");
    if (!entry.done) {
      entry.open = true;
      entry.size = of(entry.function->node(), depth + 1);
      entry.open = false;
      entry.done = true;
    }
    return total + entry.size;
  }

  std::unordered_map<std::string, Entry> functions_;
};

void check_functions(const onnx::ModelProto& model) {
  if (model.functions_size() == 0) return;
  InlinedSize size(model);
  int64_t total = size.of(model.graph().node());
  for (const auto& f : model.functions()) total = std::max(total, size.of(f.node()));
  for (const auto& info : model.training_info()) {
    total = std::max({total, size.of(info.algorithm().node()), size.of(info.initialization().node())});
  }
  if (total > kMaxInlinedNodes) fail("its functions stand for more than ", kMaxInlinedNodes, " nodes");
}

void check_size(const onnx::TensorProto& tensor, size_t held) {
  const size_t bytes = declared_bytes(tensor);
  if (held == bytes || tensor.data_type() == onnx::TensorProto::STRING) return;
  fail("tensor '", tensor.name(), "': its shape needs ", bytes, " bytes, it holds ", held);
}

void check_tensor(const onnx::TensorProto& tensor) {
  declared_bytes(tensor);
  if (tensor.has_raw_data()) check_size(tensor, tensor.raw_data().size());
}

}  // namespace

ModelMessage load_message(const std::string& path) {
  size_t size = 0;
  const File file = open_model(path, &size);
  const std::shared_ptr<const MappedFile> mapped = MappedFile::map(file, path);
  ModelMessage message;
  onnx::ModelProto& proto = message.proto;
  std::vector<RawData> left_out;
  const bool parsed = read_message(*mapped, kMaxMessageDepth, &proto, &left_out);
  if (!parsed || !proto.has_graph() || proto.ir_version() <= 0) explain(path, file, size);
  try {
    map_external_data(split_path(path).first, &message);
    for (const RawData& raw : left_out) {
      if (reference_of(*raw.tensor)) continue;  // what is external is read from there, whatever else is given
      check_size(*raw.tensor, raw.bytes);
      put_data(raw.data, raw.bytes, mapped, &message, raw.tensor);
    }
    for_each_tensor(&proto, [](onnx::TensorProto* tensor) { check_tensor(*tensor); });
    check_functions(proto);
  } catch (const Error& error) {
    fail(path, ": ", error.what());
  }
  return message;
}

onnx::ModelProto load_proto(const std::string& path) { return with_contents(load_message(path)); }

Model load_model(const std::string& path) {
  ModelMessage message = load_message(path);
  try {
    return from_message(std::move(message));
  } catch (const Error& error) {
    fail(path, ": ", error.what());
  }
}

void check_proto(const onnx::ModelProto& proto) {
  try {
    onnx::checker::check_model(proto, /*full_check=*/true);
  } catch (const std::exception& error) {
    std::string message = error.what();
    for (size_t at = message.find('\n'); at != std::string::npos; at = message.find('\n', at)) message[at] = ' ';
    fail("ONNX's checker: ", message);
  }
}

}  // namespace onnx_train
