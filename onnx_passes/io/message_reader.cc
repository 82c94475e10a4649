// Walks the wire format down to the tensors. A message is a sequence of fields, and parsing it equals merging the
// results of parsing its parts. So only the messages on the path to a large tensor are walked; everything in between is
// parsed at once by protobuf.
#include "onnx_passes/io/message_reader.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>

#include <algorithm>
#include <functional>
#include <span>

#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

using Bytes = std::span<const uint8_t>;

class Reader {
 public:
  Reader(int max_depth, std::vector<RawData>* left_out) : depth_left_(max_depth), left_out_(left_out) {}

  bool read(Bytes bytes, onnx::ModelProto* model) {
    return walk(
        bytes, model,
        {{onnx::ModelProto::kGraphFieldNumber, [&](Bytes b) { return read(b, model->mutable_graph()); }},
         {onnx::ModelProto::kTrainingInfoFieldNumber, [&](Bytes b) { return read(b, model->add_training_info()); }}});
  }

 private:
  // A field whose value is walked recursively if it is large.
  struct Large {
    int field;
    std::function<bool(Bytes)> read;
  };

  bool read(Bytes bytes, onnx::TrainingInfoProto* info) {
    using Info = onnx::TrainingInfoProto;
    return walk(bytes, info,
                {{Info::kInitializationFieldNumber, [&](Bytes b) { return read(b, info->mutable_initialization()); }},
                 {Info::kAlgorithmFieldNumber, [&](Bytes b) { return read(b, info->mutable_algorithm()); }}});
  }

  bool read(Bytes bytes, onnx::GraphProto* graph) {
    return walk(
        bytes, graph,
        {{onnx::GraphProto::kNodeFieldNumber, [&](Bytes b) { return read(b, graph->add_node()); }},
         {onnx::GraphProto::kInitializerFieldNumber, [&](Bytes b) { return read(b, graph->add_initializer()); }}});
  }

  bool read(Bytes bytes, onnx::NodeProto* node) {
    return walk(bytes, node,
                {{onnx::NodeProto::kAttributeFieldNumber, [&](Bytes b) { return read(b, node->add_attribute()); }}});
  }

  bool read(Bytes bytes, onnx::AttributeProto* attribute) {
    return walk(
        bytes, attribute,
        {{onnx::AttributeProto::kGFieldNumber, [&](Bytes b) { return read(b, attribute->mutable_g()); }},
         {onnx::AttributeProto::kGraphsFieldNumber, [&](Bytes b) { return read(b, attribute->add_graphs()); }}});
  }

  bool read(Bytes bytes, onnx::TensorProto* tensor) {
    RawData raw{tensor, nullptr, 0};
    const auto note = [&](Bytes b) {
      raw.data = b.data();
      raw.bytes = b.size();
      return true;
    };
    if (!walk(bytes, tensor, {{onnx::TensorProto::kRawDataFieldNumber, note}})) return false;
    if (raw.data) left_out_->push_back(raw);
    return true;
  }

  bool walk(Bytes bytes, google::protobuf::MessageLite* message, const std::vector<Large>& large) {
    if (depth_left_ == 0) return false;
    --depth_left_;
    CodedInputStream in(bytes.data(), static_cast<int>(bytes.size()));
    size_t parsed = 0;  // bytes before it have been parsed into the message
    for (size_t field_start = 0; field_start < bytes.size(); field_start = static_cast<size_t>(in.CurrentPosition())) {
      const uint32_t tag = in.ReadTag();
      if (tag == 0) return false;
      if (WireFormatLite::GetTagWireType(tag) != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!WireFormatLite::SkipField(&in, tag)) return false;
        continue;
      }
      uint32_t length = 0;
      if (!in.ReadVarint32(&length)) return false;
      const auto start = static_cast<size_t>(in.CurrentPosition());
      if (length > bytes.size() - start || !in.Skip(static_cast<int>(length))) return false;
      if (length < kMinBytesBeside) continue;
      const int field = WireFormatLite::GetTagFieldNumber(tag);
      const auto found = std::find_if(large.begin(), large.end(), [&](const Large& l) { return l.field == field; });
      if (found == large.end()) continue;
      // Fields with the same number must keep their order, so the earlier ones are parsed first.
      if (!parse(bytes.subspan(parsed, field_start - parsed), message)) return false;
      if (!found->read(bytes.subspan(start, length))) return false;
      parsed = start + length;
    }
    if (!parse(bytes.subspan(parsed), message)) return false;
    ++depth_left_;
    return true;
  }

  bool parse(Bytes bytes, google::protobuf::MessageLite* message) const {
    if (bytes.empty()) return true;
    CodedInputStream in(bytes.data(), static_cast<int>(bytes.size()));
    in.SetRecursionLimit(depth_left_);
    return message->MergeFromCodedStream(&in) && in.ConsumedEntireMessage();
  }

  int depth_left_;
  std::vector<RawData>* left_out_;
};

}  // namespace

bool read_message(std::span<const unsigned char> bytes, int max_depth, onnx::ModelProto* proto,
                  std::vector<RawData>* left_out) {
  return Reader(max_depth, left_out).read(bytes, proto);
}

}  // namespace onnx_train
