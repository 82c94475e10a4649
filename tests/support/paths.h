#pragma once

#include <filesystem>

// Where this build's checkout is. Only paths.cc is compiled with these folders: all other tests come from ccache in any
// clone.
namespace onnx_train {

std::filesystem::path source_folder();
std::filesystem::path node_tests_folder();  // what make_node_tests.py writes

}  // namespace onnx_train
