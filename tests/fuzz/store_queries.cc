#include "runtime/distribution/store_values.h"
#include "tests/fuzz/harness.h"

namespace onnx_train::fuzz {

// The queries of one connection, which come in two pieces.
void store_queries(Input input) {
  StoreValues values;
  const std::string sent = text_of(input);
  std::string come = sent.substr(0, sent.size() / 2);
  try_to([&] {
    for (bool is_whole = false;; is_whole = true) {
      size_t taken = 0;
      while (values.answer(come, &taken)) come.erase(0, taken);
      if (is_whole) return;
      come += sent.substr(sent.size() / 2);
    }
  });
}

}  // namespace onnx_train::fuzz
