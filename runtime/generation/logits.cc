#include "runtime/generation/logits.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "onnx_passes/ir/error.h"

namespace onnx_train {

bool are_logits(DType dtype, size_t rank) { return is_float(dtype) && rank == 3; }

Logits logits_at(const TensorMap& outputs, const std::vector<int64_t>& places) {
  for (const auto& [name, output] : outputs) {
    if (!are_logits(output.dtype(), output.shape().size())) continue;
    const int64_t length = output.shape()[1], vocabulary = output.shape()[2];
    Logits logits;
    for (size_t i = 0; i < places.size(); ++i) {
      if (places[i] >= length)
        fail("the output '", name, "' ", to_string(output.shape()), " has no logits for each token: token ", places[i],
             " has none");
      const int64_t begin = (static_cast<int64_t>(i) * length + places[i]) * vocabulary;
      logits.emplace_back(static_cast<size_t>(vocabulary));
      for (int64_t v = 0; v < vocabulary; ++v) logits.back()[static_cast<size_t>(v)] = output.at(begin + v);
    }
    return logits;
  }
  fail("the model has no output float[batch, tokens, vocabulary], the logits of the next tokens");
}

double relative_difference(const Logits& one, const Logits& other) {
  double largest = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    double size = 0, difference = 0;
    for (size_t v = 0; v < one[i].size(); ++v) {
      const double a = one[i][v], b = other[i][v];
      if (a == b || (std::isnan(a) && std::isnan(b))) continue;
      if (std::isnan(a - b)) return std::numeric_limits<double>::infinity();
      size = std::max(size, std::abs(a));
      difference = std::max(difference, std::abs(a - b));
    }
    if (difference > 0) largest = std::max(largest, difference / size);
  }
  return largest;
}

}  // namespace onnx_train
