#include <vector>

#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/message.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {
namespace {

// What locations may name: files of some sizes, one in a folder, a link, and the folder itself.
void make_data_files() {
  static const bool made = [] {
    const std::vector<uint8_t> bytes(4096, 1);
    std::filesystem::create_directories(folder() / "sub");
    file_of(bytes, "w");
    file_of(Input(bytes).first(64), "v");
    file_of({}, "empty");
    file_of(Input(bytes).first(256), "sub/w");
    std::filesystem::create_symlink("w", folder() / "link");
    return true;
  }();
  static_cast<void>(made);
}

}  // namespace

void external_data(Input input) {
  make_data_files();
  const std::string path = file_of(input, "model.onnx");
  try_to([&] { load_proto(path); });
}

}  // namespace onnx_train::fuzz
