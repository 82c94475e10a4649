// Libraries that are loaded while the program runs. Any thread.
#pragma once

#include <string>

namespace onnx_train::platform {

extern const char* const kLibrarySuffix;  // ".so"

// The file of the library or program that contains this code or data; "" if it is not known.
std::string file_of(const void* address);

// Null if it cannot be loaded: library_error() says why, in one line.
void* open_library(const std::string& path);
std::string library_error();
// Null if the library has none of this name.
void* find_symbol(void* library, const char* name);

}  // namespace onnx_train::platform
