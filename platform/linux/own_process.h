// Where Linux shows a process itself. Another system finds its program in other ways.
#pragma once

namespace onnx_train::platform {

inline constexpr const char* kOwnProgram = "/proc/self/exe";  // also after its file has been replaced

}  // namespace onnx_train::platform
