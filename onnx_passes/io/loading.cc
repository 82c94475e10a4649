#include "onnx_passes/io/loading.h"

#include <google/protobuf/io/coded_stream.h>
#include <onnx/checker.h>

#include <cerrno>
#include <climits>
#include <cstring>
#include <optional>
#include <span>
#include <unordered_map>

#include "onnx_passes/io/external_data.h"
#include "onnx_passes/io/file.h"
#include "onnx_passes/io/format.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/io/message_reader.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/message_tensors.h"

namespace onnx_train {
namespace {

// A subgraph is three messages deep (node, attribute, graph): this allows about thirty levels and bounds all recursion.
constexpr int kMaxMessageDepth = 100;
// Inlining functions that call functions can grow exponentially.
constexpr int64_t kMaxInlinedNodes = 10'000'000;

using Bytes = std::span<const unsigned char>;

File open_model(const std::string& path) {
  File file = platform::open_to_read(path);
  if (!file.is_open()) fail_as(ErrorCode::kModelUnreadable, path, ": ", std::strerror(errno));
  const std::optional<platform::FileStatus> status = file.status();
  if (!status) fail_as(ErrorCode::kModelUnreadable, path, ": ", std::strerror(errno));
  if (status->is_folder) fail_as(ErrorCode::kModelUnreadable, path, " is a directory; give the .onnx file in it");
  if (!status->is_regular) fail_as(ErrorCode::kModelUnreadable, path, " is no regular file");
  if (status->size == 0) fail_as(ErrorCode::kModelUnreadable, path, " is empty");
  if (status->size > INT_MAX) {
    fail_as(ErrorCode::kFile, path, " has ", status->size,
            " bytes; an ONNX message ends at 2 GiB, larger models keep external data");
  }
  return file;
}

// Scans the top level of a message. Nothing if the bytes are not fields of a ModelProto; otherwise the number of bytes
// that are missing from the last field.
std::optional<size_t> missing_bytes(Bytes bytes) {
  constexpr uint32_t kLastField = 25;  // of ModelProto
  constexpr size_t kHead = 20;         // most bytes of a field's tag and length
  for (size_t at = 0; at < bytes.size();) {
    const size_t have = std::min(kHead, bytes.size() - at);
    google::protobuf::io::CodedInputStream in(bytes.data() + at, static_cast<int>(have));
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
    if (length > bytes.size() - at) return length - (bytes.size() - at);
    at += length;
  }
  return 0;
}

[[noreturn]] void explain(Bytes bytes) {
  const std::string head(bytes.begin(), bytes.begin() + std::min<ptrdiff_t>(64, std::ssize(bytes)));
  const auto starts = [&](const char* text) { return head.starts_with(text); };
  if (starts("version https://git-lfs.github.com/spec/")) {
    fail_as(ErrorCode::kNotOnnx, " is a Git LFS pointer, not the model itself; fetch it with: git lfs pull");
  }
  if (starts("PK"))
    fail_as(ErrorCode::kNotOnnx, " is a zip archive (a PyTorch checkpoint?), not an ONNX model; export it to ONNX");
  if (starts("\x80\x02") || starts("\x80\x04"))
    fail_as(ErrorCode::kNotOnnx, " is a Python pickle, not an ONNX model; export it to ONNX");
  if (starts("\x89HDF")) fail_as(ErrorCode::kNotOnnx, " is an HDF5 file, not an ONNX model; export it to ONNX");
  if (head.find("TFL3") == 4)
    fail_as(ErrorCode::kNotOnnx, " is a TensorFlow Lite file, not an ONNX model; export it to ONNX");
  const auto missing = missing_bytes(bytes);
  if (!missing) fail_as(ErrorCode::kNotOnnx, " is not an ONNX model");
  if (*missing > 0)
    fail_as(ErrorCode::kModelDamaged, " is truncated: it has ", bytes.size(), " bytes and at least ", *missing,
            " more are missing");
  fail_as(ErrorCode::kModelDamaged, " is damaged: its messages do not fit into each other");
}

// The size of each function after inlining all its calls. Throws Error if functions call each other in a cycle.
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
  fail_as(ErrorCode::kModelDamaged, "tensor '", tensor.name(), "': its shape needs ", bytes, " bytes, it holds ", held);
}

void check_tensor(const onnx::TensorProto& tensor) {
  declared_bytes(tensor);
  if (tensor.has_raw_data()) check_size(tensor, tensor.raw_data().size());
}

// Parses the message in `bytes`, which `owner` keeps alive; its external data are in `folder`. Errors do not name the
// file.
ModelMessage parse(Bytes bytes, const std::shared_ptr<const void>& owner, const std::optional<std::string>& folder) {
  ModelMessage message;
  onnx::ModelProto& proto = message.proto;
  std::vector<RawData> left_out;
  const bool parsed = read_message(bytes, kMaxMessageDepth, &proto, &left_out);
  if (!parsed || !proto.has_graph() || proto.ir_version() <= 0) explain(bytes);
  upgrade(&proto);
  if (folder) map_external_data(*folder, &message);
  for (const RawData& raw : left_out) {
    if (reference_of(*raw.tensor)) continue;  // external data take precedence over other data of the tensor
    check_size(*raw.tensor, raw.bytes);
    put_data(raw.data, raw.bytes, owner, &message, raw.tensor);
  }
  for_each_tensor(&proto, [](onnx::TensorProto* tensor, bool) {
    check_tensor(*tensor);
    if (tensor->data_location() != onnx::TensorProto::EXTERNAL || reference_of(*tensor)) return;
    fail_as(ErrorCode::kExternalData, "tensor '", tensor->name(),
            "' has its data in another file; load the model by its path");
  });
  check_functions(proto);
  return message;
}

// Calls f() and adds the name of the file or memory to errors.
template <typename F>
auto naming(const std::string& name, const F& f) {
  try {
    return f();
  } catch (const Error& error) {
    const std::string_view what = error.what();
    fail_as(error.kind() == ErrorCode::kFile ? error.code() : ErrorCode::kFile, name, what.starts_with(' ') ? "" : ": ",
            what);
  }
}

}  // namespace

namespace {

// Whether the path names another file now than the one that is open.
bool is_replaced(const File& file, const std::string& path) {
  const std::optional<platform::FileStatus> opened = file.status(), now = platform::status_of(path);
  return opened && now && opened->number != now->number;
}

}  // namespace

ModelMessage load_message(const std::string& path) {
  // A run that replaces its checkpoint removes the data files of the one before, maybe before they are opened here.
  for (int left = 10;; --left) {
    const File file = open_model(path);
    const std::shared_ptr<const MappedFile> mapped = MappedFile::map(file, path);
    try {
      return naming(path, [&] { return parse({mapped->data(), mapped->size()}, mapped, split_path(path).first); });
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kExternalData || left == 0 || !is_replaced(file, path)) throw;
    }
  }
}

ModelMessage load_message(const void* data, size_t bytes) {
  const char* const kName = "the model in memory";
  if (bytes == 0) fail_as(ErrorCode::kFile, kName, " has no bytes");
  if (bytes > INT_MAX) fail_as(ErrorCode::kFile, kName, " has ", bytes, " bytes; an ONNX message ends at 2 GiB");
  const auto copy = std::make_shared<Tensor>(DType::kUint8, Shape{static_cast<int64_t>(bytes)});
  std::memcpy(copy->data(), data, bytes);
  return naming(kName, [&] { return parse({copy->data<unsigned char>(), bytes}, copy, std::nullopt); });
}

onnx::ModelProto load_proto(const std::string& path) { return with_contents(load_message(path)); }

Model load_model(const std::string& path) {
  ModelMessage message = load_message(path);
  return naming(path, [&] { return from_message(std::move(message)); });
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
