// NVIDIA's run-time compiler of CUDA C++, loaded at first use. Any thread may call. The functions throw Error if there
// is no libnvrtc.so.13; it says what to install.
#pragma once

#include <string>

namespace onnx_train::cuda {

// "13.0"
std::string nvrtc_version();
// Returns dlopen's handle of the library in this file.
void* open_nvrtc(const char* file);

// Returns the cubin of `text` for an architecture ("sm_90"). The text may include the files that cmake/embed.cmake
// lists. Throws Error with the compiler's first message.
std::string compile_with_nvrtc(const std::string& text, const std::string& architecture);

// Returns all files that a kernel's text may include, as one string: images depend on them, too.
const std::string& embedded_headers();

}  // namespace onnx_train::cuda
