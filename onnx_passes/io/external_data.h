// Tensors whose data are in files beside the model. Reading follows the rules of loading.h. Any thread; throws Error
// that names the file.
#pragma once

#include <memory>
#include <string>

#include "onnx_passes/ir/protobuf.h"

namespace onnx_train {

struct ModelMessage;

// Sets the data of a tensor without data to those at `data`, which `owner` keeps alive: as contents of `message` if
// that is not null and type and size allow it, otherwise copied into the tensor.
void put_data(const void* data, size_t bytes, std::shared_ptr<const void> owner, ModelMessage* message,
              onnx::TensorProto* tensor);

// Maps the files of all external tensors. Large initializers of the message then refer to views of them; other tensors
// get copies. `folder` is the folder of the model file.
void map_external_data(const std::string& folder, ModelMessage* message);

}  // namespace onnx_train
