// Files of named tensors in the safetensors format: the length of a JSON header (8 bytes, little-endian), the header
// {name: {"dtype", "shape", "data_offsets": [begin, end]}}, and the bytes of the tensors. Offsets count from the end of
// the header. https://github.com/huggingface/safetensors
//
// As the format's own reader does, reading refuses headers of more than 100 MB, names that appear twice, and tensors
// that overlap, leave gaps or are not as long as their shape says. The caller owns the tensors, which keep the mapped
// file alive. Functions may run on any thread, and throw Error that names the file and the tensor.
#pragma once

#include <map>
#include <string>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// Views of the mapped file; tensors at odd addresses, and booleans, are copied. Adds the texts of "__metadata__" to
// `metadata` unless that is null.
TensorMap read_safetensors(const std::string& path, std::map<std::string, std::string>* metadata = nullptr);

// Writes the tensors atomically. Throws Error for element types that the format lacks.
void write_safetensors(const std::string& path, const TensorMap& tensors,
                       const std::map<std::string, std::string>& metadata = {});

// Whether the path ends in .safetensors, in whatever case.
bool is_safetensors(const std::string& path);

}  // namespace onnx_train
