#include "runtime/data/files/npz.h"

#include "runtime/data/files/readers.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

void npz(Input input) {
  const std::string path = file_of(input, "x.npz");
  try_to([&] {
    const auto source = open_npz(path);
    for (const std::string& name : source->names()) try_to([&] { source->read(name).clone(); });
  });
}

}  // namespace onnx_train::fuzz
