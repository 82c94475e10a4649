#include "runtime/training/checkpoint_checksum.h"

#include <sstream>

#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/message.h"
#include "onnx_passes/ir/message_tensors.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

const std::string kInRest = "-";

const Tensor& contents_at(const std::vector<Tensor>& contents, size_t index) {
  if (index >= contents.size()) fail("a tensor refers to contents that the model does not have");
  return contents[index];
}

// The bytes of a tensor whose data are in the message.
std::string bytes_in_message(const onnx::TensorProto& tensor) {
  return tensor.has_raw_data() ? tensor.raw_data() : tensor.SerializeAsString();
}

std::string checksum_of_rest(const ModelMessage& message, const std::string& position,
                             const std::vector<std::string>& own) {
  Hash hash;
  hash.add(position);
  const std::vector<const onnx::TensorProto*> tensors = stored_tensors(message.proto);
  for (size_t i = 0; i < tensors.size(); ++i) {
    hash.add(tensors[i]->name());
    if (!own[i].empty()) {
      hash.add(own[i]);
    } else if (const auto index = reference_of(*tensors[i])) {
      hash.add_size(declared_bytes(*tensors[i]));
      for_each_block(contents_at(message.contents, *index),
                     [&](const void* data, size_t bytes) { hash.add_bytes(data, bytes); });
    } else {
      hash.add(bytes_in_message(*tensors[i]));
    }
  }
  return hash.hex();
}

std::string checksum_of(const Tensor& contents) {
  Hash hash;
  for_each_block(contents, [&](const void* data, size_t bytes) { hash.add_bytes(data, bytes); });
  return hash.hex();
}

[[noreturn]] void refuse(const std::string& name, const std::string& what) {
  fail_as(ErrorCode::kCheckpointDamaged, name, " is damaged: ", what);
}

}  // namespace

std::vector<onnx::TensorProto*> stored_tensors(onnx::ModelProto* proto) {
  std::vector<onnx::TensorProto*> tensors;
  for (auto& tensor : *proto->mutable_graph()->mutable_initializer()) tensors.push_back(&tensor);
  for (auto& info : *proto->mutable_training_info()) {
    if (!info.has_algorithm()) continue;
    for (auto& tensor : *info.mutable_algorithm()->mutable_initializer()) tensors.push_back(&tensor);
  }
  return tensors;
}

std::vector<const onnx::TensorProto*> stored_tensors(const onnx::ModelProto& proto) {
  std::vector<const onnx::TensorProto*> tensors;
  for (const auto& tensor : proto.graph().initializer()) tensors.push_back(&tensor);
  for (const auto& info : proto.training_info()) {
    for (const auto& tensor : info.algorithm().initializer()) tensors.push_back(&tensor);
  }
  return tensors;
}

Checksum::Checksum(const onnx::ModelProto& proto, const std::string& position) : tensors_(stored_tensors(proto)) {
  for (const onnx::TensorProto* tensor : tensors_) {
    if (const auto index = reference_of(*tensor)) listed_.insert(*index);
  }
  hash_.add(position);
}

void Checksum::add(size_t index, const void* data, size_t bytes) {
  if (!listed_.count(index)) return;  // belongs to a subgraph or an initialization
  if (index != open_) {
    add_small_ones();
    hash_.add(tensors_[next_]->name());
    hash_.add_size(declared_bytes(*tensors_[next_++]));
    open_ = index;
  }
  hash_.add_bytes(data, bytes);
}

void Checksum::add_all(const std::vector<Tensor>& contents) {
  for (const onnx::TensorProto* tensor : tensors_) {
    const auto index = reference_of(*tensor);
    if (!index) continue;
    for_each_block(contents_at(contents, *index), [&](const void* data, size_t bytes) { add(*index, data, bytes); });
  }
}

std::string Checksum::finish() {
  add_small_ones();
  return hash_.hex();
}

void Checksum::add_small_ones() {
  for (; next_ < tensors_.size() && !reference_of(*tensors_[next_]); ++next_) {
    hash_.add(tensors_[next_]->name());
    hash_.add(bytes_in_message(*tensors_[next_]));
  }
}

std::string checksums_text(const ModelMessage& message, const std::string& position,
                           const std::vector<std::string>& own) {
  std::string text = checksum_of_rest(message, position, own);
  for (const std::string& checksum : own) text += " " + (checksum.empty() ? kInRest : checksum);
  return text;
}

TensorChecks::TensorChecks(const ModelMessage& message, const std::string& position, const std::string& text,
                           const std::string& name)
    : name_(name) {
  std::istringstream texts(text);
  std::string rest;
  texts >> rest;
  std::vector<std::string> own;
  for (std::string checksum; texts >> checksum;) own.push_back(checksum == kInRest ? "" : checksum);
  const std::vector<const onnx::TensorProto*> tensors = stored_tensors(message.proto);
  if (own.size() != tensors.size())
    refuse(name, concat("it has checksums of ", own.size(), " tensors, and ", tensors.size(), " tensors"));
  if (checksum_of_rest(message, position, own) != rest) refuse(name, "its checksum is not that of its tensors");
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (own[i].empty() || own[i] == kInBase) continue;
    const auto index = reference_of(*tensors[i]);
    if (index) {
      checks_.push_back({tensors[i]->name(), own[i], contents_at(message.contents, *index)});
    } else {
      const std::string& bytes = tensors[i]->raw_data();
      const std::vector<uint8_t> copy(bytes.begin(), bytes.end());
      checks_.push_back({tensors[i]->name(), own[i], Tensor::of<uint8_t>({std::ssize(copy)}, copy)});
    }
  }
}

void TensorChecks::compare(const std::function<bool(const std::string&)>& reads) const {
  for (const Check& check : checks_) {
    if (reads(check.tensor) && checksum_of(check.contents) != check.checksum)
      refuse(name_, concat("the checksum of '", check.tensor, "' is not that of its bytes"));
  }
}

}  // namespace onnx_train
