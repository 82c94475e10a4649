#include "tests/support/paths.h"

namespace onnx_train {

std::filesystem::path source_folder() { return ONNX_TRAIN_SOURCE_DIR; }
std::filesystem::path node_tests_folder() { return ONNX_TRAIN_NODE_TESTS; }

}  // namespace onnx_train
