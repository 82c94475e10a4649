#include "runtime/data/files/npz.h"

#include "runtime/data/files/readers.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void npz(Input input) {
  const std::string path = file_of(input, "x.npz");
  try_to([&] {
    const DataArrays file = open_npz(path);
    for (const auto& [name, rows] : file.arrays) try_to([&] { rows.read_all().clone(); });
  });
}

}  // namespace onnx_train::fuzz
