// Sizes that the model leaves open and a rule needs, taken from the data at hand in the place of --dim. Functions on
// plain values; any thread.
#pragma once

#include <string>
#include <vector>

#include "onnx_passes/ir/error.h"
#include "runtime/data/dataset.h"

namespace onnx_train {

// "samples=512", as --dim takes it, for each symbol in the model's inputs whose size the data say and `given` does not.
// The number of samples counts only if the data are one batch.
std::vector<std::string> sizes_of_data(const Model& forward, const Dataset& data, const std::vector<std::string>& given,
                                       bool is_one_batch);

// "sizes of the data: samples=512, for without them [..]"
std::string sizes_note(const std::vector<std::string>& sizes, const std::string& why);

// make(given) or, if the model is not supported with these sizes, make(given and sizes()), which then sets `note`. If
// that fails, too, or there are no further sizes, the first error stands.
template <typename Make, typename SizesOf>
auto with_sizes_of_data(const std::vector<std::string>& given, const SizesOf& sizes, std::string* note,
                        const Make& make) {
  try {
    return make(given);
  } catch (const Error& error) {
    if (error.kind() != ErrorCode::kUnsupported) throw;
    try {
      const std::vector<std::string> more = sizes();
      std::vector<std::string> all = given;
      all.insert(all.end(), more.begin(), more.end());
      if (!more.empty()) {
        auto made = make(all);
        *note = sizes_note(more, error.what());
        return made;
      }
    } catch (const Error&) {
      // The first error tells more: it is that of the model as it is.
    }
    throw;
  }
}

}  // namespace onnx_train
