// NVIDIA's compiler of CUDA C++ at run time, loaded when it is first needed. Any thread may call.
#pragma once

#include <string>

namespace onnx_train::cuda {

// Whether libnvrtc can be loaded.
bool has_nvrtc();
// "13.0"
std::string nvrtc_version();

// The cubin of `text`, which may include the files that cmake/embed.cmake lists, for an architecture: "sm_90". Throws
// Error with the compiler's messages.
std::string compile_with_nvrtc(const std::string& text, const std::string& architecture);

// All texts that a kernel's text may include, as one string: what else an image depends on.
const std::string& embedded_headers();

}  // namespace onnx_train::cuda
