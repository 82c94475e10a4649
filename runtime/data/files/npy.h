// NumPy's .npy format, versions 1 to 3. Functions may run on any thread, and throw Error.
// https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
#pragma once

#include <memory>
#include <string>

#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

// The array in `size` bytes at `data`. A view that keeps `owner` alive, or a copy where the file's order is Fortran's.
// `where` names the file, and the key in it, in errors. Object arrays are refused: they are pickled programs.
Tensor parse_npy(const void* data, size_t size, const std::shared_ptr<const void>& owner, const std::string& where);

// Magic, version and header, padded to 64 bytes; the data follows in C order. Throws Error for types that NumPy lacks.
std::string npy_header(DType dtype, const Shape& shape);

}  // namespace onnx_train
