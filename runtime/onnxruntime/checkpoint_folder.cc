// Checkpoints as folders. A file NAME.pbseq is a number of messages, and each message after its size, numbers as
// protobuf's varints: the trained and the frozen parameters, a moment of each parameter of a group, the group's
// properties, the user's properties.
#include <cstdint>
#include <filesystem>
#include <optional>

#include "onnx_passes/io/file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/onnxruntime/training_checkpoint.h"

namespace onnx_train {
namespace {

// Reads the varints and messages of one file from left to right.
class MessageSequence {
 public:
  explicit MessageSequence(const std::string& path) : path_(path), bytes_(read_file(path)) {}

  // Calls f(message) for each of them.
  template <typename F>
  void read(const F& f) {
    const uint64_t count = varint();
    for (uint64_t i = 0; i < count; ++i) {  // each takes a byte at least, so that a false count ends soon
      const uint64_t size = varint();
      if (size > bytes_.size() - at_ || size > static_cast<uint64_t>(INT32_MAX)) damaged();
      onnx::TensorProto tensor;
      if (!tensor.ParseFromArray(bytes_.data() + at_, static_cast<int>(size))) damaged();
      at_ += size;
      if (tensor.data_location() == onnx::TensorProto::EXTERNAL) damaged();
      f(tensor);
    }
    if (at_ != bytes_.size()) damaged();
  }

  TensorMap tensors() {
    TensorMap result;
    read([&](const onnx::TensorProto& tensor) {
      if (tensor.name().empty() || result.contains(tensor.name())) damaged();
      try {
        result.emplace(tensor.name(), from_proto(tensor));
      } catch (const Error& error) {
        fail_as(ErrorCode::kFile, path_, ": ", error.what());
      }
    });
    return result;
  }

 private:
  [[noreturn]] void damaged() const {
    fail_as(ErrorCode::kFile, path_,
            " is cut off or damaged; save the checkpoint again with ONNX Runtime, or copy it again");
  }

  uint64_t varint() {
    uint64_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {  // of 32 bits
      if (at_ == bytes_.size()) damaged();
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      value |= uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    damaged();
  }

  std::string path_, bytes_;
  size_t at_ = 0;
};

void read_group_properties(const std::string& path, OrtOptimizerGroup* group) {
  for (const auto& [name, value] : MessageSequence(path).tensors()) {
    if (value.size() != 1) continue;
    if (name == "builtin.step" && value.dtype() == DType::kInt64) group->step = value.to_ints()[0];
    if (name == "builtin.initial_learning_rate") group->learning_rate = static_cast<float>(value.at(0));
  }
  if (group->step < 0) fail_as(ErrorCode::kFile, path, ": the optimizer has done ", group->step, " steps");
}

std::string property_text(const onnx::TensorProto& tensor) {
  if (tensor.data_type() == onnx::TensorProto::STRING)
    return tensor.string_data_size() == 1 ? tensor.string_data(0) : std::string();
  const Tensor value = from_proto(tensor);
  if (value.size() != 1) return "";
  if (value.dtype() == DType::kInt64) return std::to_string(value.to_ints()[0]);
  return is_float(value.dtype()) ? float_text(static_cast<float>(value.at(0))) : "";
}

// The part of a name between the two; nothing for another name.
std::optional<std::string> between(const std::string& name, const std::string& begin, const std::string& end) {
  if (!name.starts_with(begin) || !name.ends_with(end) || name.size() < begin.size() + end.size()) return {};
  return name.substr(begin.size(), name.size() - begin.size() - end.size());
}

}  // namespace

OrtCheckpoint read_ort_checkpoint_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::directory_iterator files(path, error);
  if (error) fail_as(ErrorCode::kFile, path, " cannot be read: ", error.message());
  OrtCheckpoint checkpoint;
  std::map<std::string, OrtOptimizerGroup> groups;
  bool found = false;
  for (const auto& entry : files) {
    const std::string name = entry.path().filename().string(), file = entry.path().generic_string();
    if (const auto kind = between(name, "param", "_tensors.pbseq")) {
      if (*kind == "train") checkpoint.trained = MessageSequence(file).tensors(), found = true;
      if (*kind == "frozen") checkpoint.frozen = MessageSequence(file).tensors();
    } else if (const auto group = between(name, "optim_", "_properties.pbseq")) {
      read_group_properties(file, &groups[*group]);
    } else if (const auto state = between(name, "optim_", "_tensors.pbseq");
               state && state->rfind('_') != state->npos) {
      const size_t at = state->rfind('_');
      for (const auto& [parameter, value] : MessageSequence(file).tensors())
        groups[state->substr(0, at)].states[parameter][state->substr(at + 1)] = value;
    } else if (name == "custom_properties.pbseq") {
      MessageSequence(file).read(
          [&](const onnx::TensorProto& tensor) { checkpoint.properties[tensor.name()] = property_text(tensor); });
    }
  }
  if (!found)
    fail_as(ErrorCode::kFile, path, " is no checkpoint of ONNX Runtime's training: it has no paramtrain_tensors.pbseq");
  for (auto& [name, group] : groups) {
    group.name = name;
    checkpoint.groups.push_back(std::move(group));
  }
  return checkpoint;
}

}  // namespace onnx_train
