// Numbers in the place of weights whose files are not there, for what plans a model and computes nothing with it. They
// are finite and differ from weight to weight, as those of a trained model do, so that no pass takes a weight for a
// mask or for another one's equal. One block of 64 MiB stands for all of them, mapped as often as a weight is long: a
// model of any size takes no more memory. Any thread; throws Error.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// Whether models load without their data files, which is false at first. A policy of the whole process, to be set
// before models are loaded.
void allow_absent_data(bool allow);
bool allows_absent_data();

// What was absent in all models that this process has loaded.
struct AbsentData {
  size_t tensors = 0, bytes = 0;
  std::string file;  // the first one
};
AbsentData absent_data();

// The numbers of a tensor of this type and of that many bytes, whose file is absent; `tensor` is its name. Throws Error
// for a type other than a float of 16 bits and more: integers say shapes and places, which nothing can stand for.
std::shared_ptr<const void> stand_in(const std::string& tensor, const std::string& file, DType dtype, size_t bytes);

}  // namespace onnx_train
