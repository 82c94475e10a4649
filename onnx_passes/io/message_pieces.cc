#include "onnx_passes/io/message_pieces.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>

#include "onnx_passes/io/external_data.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/message_tensors.h"

namespace onnx_train {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

void add_varint(uint64_t value, std::string* out) {
  uint8_t bytes[10];
  out->append(reinterpret_cast<char*>(bytes),
              static_cast<size_t>(CodedOutputStream::WriteVarint64ToArray(value, bytes) - bytes));
}

void add_header(int field, size_t length, std::string* out) {
  add_varint(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED), out);
  add_varint(length, out);
}

// A message under construction: its finished parts, and its length including the contents of tensors.
struct Message {
  std::vector<MessagePiece> pieces = {{}};
  size_t length = 0;

  void add(const std::string& bytes) {
    pieces.back().bytes += bytes;
    length += bytes.size();
  }
  void add_contents(size_t reference, size_t bytes, size_t fields) {
    pieces.back() = {std::move(pieces.back().bytes), reference, fields, bytes};
    pieces.emplace_back();
    length += bytes;
  }
  void add(int field, Message inner) {
    std::string header;
    add_header(field, inner.length, &header);
    add(header);
    const MessagePiece& first = inner.pieces.front();
    pieces.back() = {pieces.back().bytes + first.bytes, first.reference, first.fields, first.contents};
    pieces.insert(pieces.end(), inner.pieces.begin() + 1, inner.pieces.end());
    length += inner.length;
  }
};

// A name of so many bytes. The last of several names in a message is the one that counts: those before are padding.
std::string padding(size_t bytes) {
  std::string field;
  add_header(onnx::TensorProto::kNameFieldNumber, bytes, &field);
  return field + std::string(bytes, ' ');
}

// Moves padding from after the contents to the front of their tensor, so that the contents are aligned. The lengths of
// the messages do not change.
void align(std::vector<MessagePiece>* pieces) {
  const std::string none = padding(0), all = padding(kAlignment - 1);
  size_t at = 0;
  for (size_t i = 0; i < pieces->size(); ++i) {
    MessagePiece& piece = (*pieces)[i];
    at += piece.bytes.size();
    if (!piece.reference) continue;
    const size_t missing = align_up(at) - at;
    piece.bytes.replace(piece.bytes.size() - piece.fields - none.size(), none.size(), padding(missing));
    (*pieces)[i + 1].bytes.replace(0, all.size(), padding(kAlignment - 1 - missing));
    at += missing + piece.contents;
  }
}

Message cut_tensor(const std::string& bytes) {
  Message message;
  onnx::TensorProto tensor;
  tensor.ParseFromString(bytes);
  const auto reference = reference_of(tensor);
  if (!reference) {
    message.add(bytes);
    return message;
  }
  tensor.clear_external_data();
  tensor.clear_data_location();
  std::string fields = tensor.SerializeAsString();
  add_header(onnx::TensorProto::kRawDataFieldNumber, declared_bytes(tensor), &fields);
  message.add(padding(0) + fields);
  message.add_contents(*reference, declared_bytes(tensor), fields.size());
  onnx::TensorProto again;
  again.set_name(tensor.name());
  message.add(padding(kAlignment - 1) + again.SerializeAsString());
  return message;
}

using Cut = Message (*)(const std::string& bytes);

// Copies the fields of a message; fields whose numbers are in `cuts`, which are messages, are handled recursively.
Message cut_fields(const std::string& bytes, const std::vector<std::pair<int, Cut>>& cuts) {
  Message message;
  CodedInputStream in(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size()));
  size_t copied = 0;
  while (true) {
    const auto start = static_cast<size_t>(in.CurrentPosition());
    const uint32_t tag = in.ReadTag();
    if (tag == 0) break;
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    const auto found = std::find_if(cuts.begin(), cuts.end(), [&](const auto& cut) { return cut.first == field; });
    if (found == cuts.end()) {
      WireFormatLite::SkipField(&in, tag);
      continue;
    }
    std::string inner;
    WireFormatLite::ReadBytes(&in, &inner);
    message.add(bytes.substr(copied, start - copied));
    message.add(field, found->second(inner));
    copied = static_cast<size_t>(in.CurrentPosition());
  }
  message.add(bytes.substr(copied));
  return message;
}

Message cut_graph(const std::string& bytes);

Message cut_attribute(const std::string& bytes) {
  return cut_fields(
      bytes, {{onnx::AttributeProto::kGFieldNumber, cut_graph}, {onnx::AttributeProto::kGraphsFieldNumber, cut_graph}});
}

Message cut_node(const std::string& bytes) {
  return cut_fields(bytes, {{onnx::NodeProto::kAttributeFieldNumber, cut_attribute}});
}

Message cut_graph(const std::string& bytes) {
  return cut_fields(
      bytes, {{onnx::GraphProto::kNodeFieldNumber, cut_node}, {onnx::GraphProto::kInitializerFieldNumber, cut_tensor}});
}

Message cut_training_info(const std::string& bytes) {
  return cut_fields(bytes, {{onnx::TrainingInfoProto::kInitializationFieldNumber, cut_graph},
                            {onnx::TrainingInfoProto::kAlgorithmFieldNumber, cut_graph}});
}

}  // namespace

std::vector<MessagePiece> cut_at_references(const onnx::ModelProto& proto) {
  std::vector<MessagePiece> pieces =
      cut_fields(proto.SerializeAsString(), {{onnx::ModelProto::kGraphFieldNumber, cut_graph},
                                             {onnx::ModelProto::kTrainingInfoFieldNumber, cut_training_info}})
          .pieces;
  align(&pieces);
  return pieces;
}

}  // namespace onnx_train
