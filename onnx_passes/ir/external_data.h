// Tensors whose data are in files beside the model. Reading follows the rules of loading.h.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

struct ModelMessage;

// Every tensor of the model: initializers and attributes, in subgraphs, functions and training graphs too.
void for_each_tensor(onnx::ModelProto* model, const std::function<void(onnx::TensorProto*)>& f);

// Bytes that the tensor's dimensions and element type ask for. Throws Error on a negative dimension, a product that
// does not fit, or a type that ONNX does not define; strings have no size and give 0.
size_t declared_bytes(const onnx::TensorProto& tensor);

// Gives the tensor, which has no data yet, those at `data`, which `owner` keeps alive: as contents of `message`, if
// that is not null and their type and size allow it, and copied into the tensor otherwise.
void put_data(const void* data, size_t bytes, std::shared_ptr<const void> owner, ModelMessage* message,
              onnx::TensorProto* tensor);

// Maps the files of all external tensors: large initializers of the message refer to views of them from then on, other
// tensors hold their data. `folder` is the model file's.
void map_external_data(const std::string& folder, ModelMessage* message);

}  // namespace onnx_train
