#include "onnx_passes/ir/message.h"

#include <charconv>
#include <cstring>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/message_tensors.h"

namespace onnx_train {
namespace {

constexpr const char* kReference = "contents";  // not a key that ONNX defines

void clear_data(onnx::TensorProto* tensor) {
  tensor->clear_raw_data();
  tensor->clear_external_data();
  tensor->clear_data_location();
}

}  // namespace

const Tensor& referred(const Contents& contents, size_t index) {
  if (index >= contents.size()) fail("a tensor refers to contents that the model does not have");
  return contents[index];
}

void put_contents(const Tensor& data, onnx::TensorProto* tensor) {
  clear_data(tensor);
  tensor->set_raw_data(data.data(), data.bytes());
}

bool has_four_bits(const onnx::TensorProto& tensor) {
  return tensor.data_type() == onnx::TensorProto::INT4 || tensor.data_type() == onnx::TensorProto::UINT4;
}

Tensor packed_bytes(const onnx::TensorProto& tensor) {
  std::string bytes = tensor.raw_data();
  if (!tensor.has_raw_data()) {
    for (const int32_t byte : tensor.int32_data()) bytes.push_back(static_cast<char>(byte));
  }
  const size_t needed = declared_bytes(tensor);
  if (bytes.size() != needed)
    fail("tensor '", tensor.name(), "' of 4-bit integers needs ", needed, " bytes and holds ", bytes.size(),
         "; the file is damaged");
  Tensor copy(DType::kUint8, {static_cast<int64_t>(bytes.size())});
  if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

std::optional<size_t> reference_of(const onnx::TensorProto& tensor) {
  if (tensor.data_location() != onnx::TensorProto::EXTERNAL || tensor.external_data_size() != 1) return std::nullopt;
  const auto& entry = tensor.external_data(0);
  if (entry.key() != kReference) return std::nullopt;
  size_t index = 0;
  const char* end = entry.value().data() + entry.value().size();
  const bool number = std::from_chars(entry.value().data(), end, index).ptr == end && !entry.value().empty();
  return number ? std::optional(index) : std::nullopt;
}

void set_reference(size_t index, onnx::TensorProto* tensor) {
  clear_data(tensor);
  tensor->set_data_location(onnx::TensorProto::EXTERNAL);
  auto* entry = tensor->add_external_data();
  entry->set_key(kReference);
  entry->set_value(std::to_string(index));
}

void put_beside(const Tensor& data, Contents* contents, onnx::TensorProto* tensor) {
  if (data.bytes() < kMinBytesBeside || !may_be_beside(data.dtype())) return put_contents(data, tensor);
  set_reference(contents->size(), tensor);
  contents->push_back(data);
}

const std::string* find_property(const Properties& properties, const char* key) {
  for (const auto& entry : properties) {
    if (entry.key() == key) return &entry.value();
  }
  return nullptr;
}

void add_property(Properties* properties, std::string key, const std::string& value) {
  auto* entry = properties->Add();
  entry->set_key(std::move(key));
  entry->set_value(value);
}

void remove_property(const char* key, Properties* properties) {
  for (int i = properties->size() - 1; i >= 0; --i) {
    if (properties->Get(i).key() == key) properties->DeleteSubrange(i, 1);
  }
}

onnx::ModelProto with_contents(ModelMessage message) {
  for_each_tensor(&message.proto, [&](onnx::TensorProto* tensor, bool) {
    if (const auto index = reference_of(*tensor)) put_contents(referred(message.contents, *index), tensor);
  });
  return std::move(message.proto);
}

}  // namespace onnx_train
