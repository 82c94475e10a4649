// Files of this repository as strings in the program (cmake/embed.cmake), which generated kernels include.
#pragma once

#include <cstddef>

namespace onnx_train::cuda {

struct EmbeddedFile {
  const char *name, *text;
};
extern const EmbeddedFile kEmbeddedFiles[];
extern const size_t kNumEmbeddedFiles;

}  // namespace onnx_train::cuda
