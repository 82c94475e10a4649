#include "runtime/models/cached_export.h"

#include <algorithm>
#include <cmath>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/tokens/add_cache.h"
#include "runtime/data/files/tokens.h"
#include "runtime/session/session.h"

namespace onnx_train {
namespace {

constexpr int64_t kFewTokens = 8;

// Inputs that a session gets for the tokens [from, to) of a text, as long as the model wants them; masks are of all.
TensorMap text_of(const std::vector<InputSpec>& inputs, int64_t rows, int64_t from, int64_t to, int64_t vocabulary) {
  TensorMap text;
  const InputSpec* tokens = token_inputs(inputs).tokens;
  for (const InputSpec& spec : inputs) {
    if (spec.has_default || (&spec != tokens && !is_filled(spec))) continue;
    const Dim& length = (*spec.type.dims)[1];
    const int64_t end = length.known() ? length.value() : to, begin = is_mask(spec) ? 0 : from;
    Tensor input(spec.type.dtype, {rows, end - begin});
    const Tensor filled = &spec == tokens ? Tensor() : filled_input(spec, {1, end});
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = begin; i < end; ++i) {
        const double token = static_cast<double>((i * 5 + row * 3 + 1) % vocabulary);
        input.set(row * (end - begin) + i - begin, filled.empty() ? token : filled.at(i));
      }
    }
    text[spec.name] = input;
  }
  return text;
}

struct LogitsOutput {
  std::string name;
  int64_t vocabulary;
};

LogitsOutput logits_output(const Graph& graph) {
  for (const Value* output : graph.outputs()) {
    if (!is_float(output->dtype()) || !output->has_rank() || output->rank() != 3) continue;
    const Dim& last = output->type().dims->back();
    return {output->name(), last.known() ? last.value() : 2};
  }
  fail("[Cache] the model has no output float[batch, tokens, vocabulary], the logits of the next tokens");
}

// The numbers for one place of all texts.
std::vector<double> at_place(const Tensor& logits, int64_t place) {
  const int64_t rows = logits.shape()[0], length = logits.shape()[1], size = logits.shape()[2];
  std::vector<double> numbers;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < size; ++i) numbers.push_back(logits.at((row * length + place) * size + i));
  }
  return numbers;
}

std::vector<double> last_with_cache(Session* session, const std::vector<CachedTensor>& tensors,
                                    const LogitsOutput& wanted, int64_t rows, int64_t tokens) {
  const auto inputs = entry_inputs(session->model(), Entry::kPredict);
  TensorMap given = text_of(inputs, rows, 0, tokens - 1, wanted.vocabulary);
  for (const CachedTensor& tensor : tensors) {
    Shape shape;
    for (const auto& size : tensor.sizes) shape.push_back(size.each_text ? size.number * rows : size.number);
    shape[static_cast<size_t>(tensor.axis)] = 0;
    given[tensor.past] = Tensor(tensor.dtype, shape);
  }
  const TensorMap& first = session->run(Entry::kPredict, given);
  TensorMap next = text_of(inputs, rows, tokens - 1, tokens, wanted.vocabulary);
  for (const CachedTensor& tensor : tensors) next[tensor.past] = first.at(tensor.present).clone();
  return at_place(session->run(Entry::kPredict, next).at(wanted.name), 0);
}

}  // namespace

size_t add_compared_cache(Model* model) {
  constexpr double kRounding = 1e-3;
  Session plain(clone(*model));
  const std::vector<CachedTensor> tensors = add_cache(model, CacheForm::kGrowing);
  const LogitsOutput wanted = logits_output(*plain.model().graph);
  const auto inputs = entry_inputs(plain.model(), Entry::kPredict);
  const Dims& dims = *token_inputs(inputs).tokens->type.dims;
  const int64_t rows = dims[0].known() ? dims[0].value() : 2;
  const int64_t tokens = dims[1].known() ? std::min(dims[1].value(), kFewTokens) : kFewTokens;
  const TensorMap text = text_of(inputs, rows, 0, tokens, wanted.vocabulary);
  const std::vector<double> all = at_place(plain.run(Entry::kPredict, text).at(wanted.name), tokens - 1);
  Session cached(clone(*model));
  const std::vector<double> last = last_with_cache(&cached, tensors, wanted, rows, tokens);
  double size = 0, difference = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    size = std::max(size, std::abs(all[i]));
    difference = std::max(difference, std::abs(all[i] - last[i]));
  }
  if (!(difference <= kRounding * size))
    fail("[Cache] the logits with a cache are not those without: tokens are mixed in a way that was not found");
  return tensors.size();
}

}  // namespace onnx_train
