// Modules: the libraries libonnx_train_NAME.so in the folder of this library or in onnx-train/ there, which bring what
// needs libraries that most machines lack. One is loaded when it is first asked for, and never unloaded. Modules of
// another version of this library do not load, because their symbols have versions. Any thread.
#pragma once

#include <string>
#include <vector>

namespace onnx_train {

// The modules that are no devices: they carry what ranks exchange (runtime/distribution).
inline constexpr const char *kGlooModule = "gloo", *kMpiModule = "mpi";

// The names of the modules, sorted. Loads none.
std::vector<std::string> module_names();

// The address of a function that a module exports. Throws Error, which begins with `what`, where the module cannot be
// loaded, mostly for want of a library, or has no such function.
void* module_function(const std::string& name, const char* function, const std::string& what);

}  // namespace onnx_train
