// NVIDIA's run-time compiler of CUDA C++, loaded at first use. Any thread may call.
#pragma once

#include <string>

namespace onnx_train::cuda {

// Whether libnvrtc can be loaded.
bool has_nvrtc();
// "13.0"
std::string nvrtc_version();

// Returns the cubin of `text` for an architecture ("sm_90"). The text may include the files that cmake/embed.cmake
// lists. Throws Error with the compiler's messages.
std::string compile_with_nvrtc(const std::string& text, const std::string& architecture);

// Returns all files that a kernel's text may include, as one string: images depend on them, too.
const std::string& embedded_headers();

}  // namespace onnx_train::cuda
