// Windows' own names are UTF-16, ours UTF-8; and its errors, as errno has them.
#pragma once

#include <string>
#include <string_view>

namespace onnx_train::platform {

std::wstring wide(std::string_view utf8);
std::string narrow(std::wstring_view utf16);
// Sets errno to what GetLastError says, and returns false.
bool set_errno();

}  // namespace onnx_train::platform
