#include "runtime/data/loading/prediction.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <numeric>

#include <nlohmann/json.hpp>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/table_metadata.h"
#include "runtime/data/gather_ahead.h"
#include "runtime/data/sample_axes.h"

namespace onnx_train {
namespace {

// Puts the first `samples` of a batch's output along its axis `axis` where they belong in the output of all. An output
// of another size there is no matter of samples: the last batch's stands.
void place_samples(const Tensor& output, size_t axis, int64_t batch, int64_t at, int64_t samples, int64_t all,
                   Tensor* result) {
  if (output.shape().size() <= axis || output.shape()[axis] != batch) {
    *result = output.clone();
    return;
  }
  Shape shape = output.shape();
  shape[axis] = all;
  if (result->empty()) *result = Tensor(output.dtype(), shape);
  if (result->shape() != shape)
    fail_as(ErrorCode::kData, "an output changes its shape from batch to batch; give --batch-size ", all);
  const int64_t pieces = num_elements(Shape(shape.begin(), shape.begin() + static_cast<std::ptrdiff_t>(axis)));
  const size_t sample = output.bytes() / static_cast<size_t>(std::max<int64_t>(batch * pieces, 1));
  const auto* from = static_cast<const char*>(output.data());
  auto* to = static_cast<char*>(result->data()) + static_cast<size_t>(at) * sample;
  for (int64_t i = 0; i < pieces; ++i) {
    std::memcpy(to, from, static_cast<size_t>(samples) * sample);
    from += static_cast<size_t>(batch) * sample;
    to += static_cast<size_t>(all) * sample;
  }
}

// Batches of an output that has a size of its own in each cannot be put together.
void expect_samples(const std::string& name, const Tensor& output, size_t axis, int64_t batch, int64_t all) {
  if (output.shape().size() > axis && output.shape()[axis] == batch) return;
  fail_as(ErrorCode::kData, "the shape of output '", name, "', ", to_string(output.shape()), " for ", batch,
          " samples, depends on data, so that batches of it cannot be put together; give --batch-size ", all);
}

// Whether no number is negative and each line of the class axis sums to 1.
bool rows_are_probabilities(const Tensor& scores) {
  constexpr double kRounding = 1e-3;
  if (scores.shape().size() != 2) return false;
  const int64_t classes = scores.shape()[1];
  for (int64_t begin = 0; begin < scores.size(); begin += classes) {
    double sum = 0;
    for (int64_t i = 0; i < classes; ++i) {
      if (!(scores.at(begin + i) >= 0)) return false;
      sum += scores.at(begin + i);
    }
    if (!(std::abs(sum - 1) < kRounding)) return false;
  }
  return classes > 1;
}

}  // namespace

TensorMap predict(Session* session, const Dataset& data, int64_t batch_size) {
  const int64_t n = data.num_samples();
  const int64_t fixed = data.fixed_batch();
  const int64_t batch = fixed > 0 ? fixed : std::min(batch_size, n);
  if (fixed > 0 && static_cast<size_t>(batch) > session->device().available_bytes() / sizeof(int64_t))
    fail_as(ErrorCode::kData, "the model's batch size is fixed at ", fixed, ", which this machine has no memory for");
  const std::string symbol = batch_symbol(session->model(), entry_inputs(session->model(), Entry::kPredict));
  std::map<std::string, size_t> axes;
  for (const Value* output : session->model().graph->outputs())
    axes[output->name()] = sample_axis(output->type(), symbol);
  TensorMap inputs, results;
  GatherAhead batches(&data);
  const auto next_rows = [&, at = int64_t{0}]() mutable {
    const int64_t samples = std::min(batch, n - at);
    // A model of a fixed batch gets its last one filled up with copies of the last sample.
    std::vector<int64_t> rows(static_cast<size_t>(fixed > 0 && samples > 0 ? batch : samples));
    std::iota(rows.begin(), rows.end(), at);
    for (int64_t& row : rows) row = std::min(row, n - 1);
    at += samples;
    return rows;
  };
  batches.start(next_rows, std::nullopt);
  // NOLINTNEXTLINE(bugprone-infinite-loop): the condition itself makes `count`
  for (int64_t at = 0; const int64_t count = batches.next(&inputs); at += batch) {
    for (const auto& [name, output] : session->run(Entry::kPredict, inputs)) {
      if (batch < n && session->is_sized_by_data(name)) expect_samples(name, output, axes[name], count, n);
      place_samples(output, axes[name], count, at, std::min(batch, n - at), n, &results[name]);
    }
  }
  return results;
}

std::optional<ScoresOf> scores_of(const Model& model, const TensorMap& outputs) {
  const auto said = nlohmann::json::parse(model.metadata(kScoresOf), nullptr, /*allow_exceptions=*/false);
  if (said.is_array() && said.size() == 4 &&
      std::ranges::all_of(said, [](const auto& item) { return item.is_string(); })) {
    const std::string axis = said[2];
    ScoresOf what{said[0], said[1] == "yes_no", 0, said[3] == "probabilities"};
    std::from_chars(axis.data(), axis.data() + axis.size(), what.axis);
    const auto found = outputs.find(what.output);
    if (found == outputs.end()) return std::nullopt;  // the model has been cut since
    const auto rank = static_cast<int64_t>(found->second.shape().size());
    if (what.axis < 0 || (what.axis >= rank && !(what.yes_no && rank < 2)) || !is_float(found->second.dtype())) {
      fail_as(ErrorCode::kData, "the metadata ", kScoresOf, " do not fit the output '", what.output, "', which is ",
              to_string(found->second.shape()));
    }
    return what;
  }
  return std::nullopt;
}

std::optional<ScoresOf> guessed_scores(const TensorMap& outputs, size_t names, bool may_be_yes_no) {
  for (const auto& [name, tensor] : outputs) {
    const Shape& shape = tensor.shape();
    if (!is_float(tensor.dtype()) || shape.empty()) continue;
    const bool yes_no = shape.size() == 1 || (shape.size() == 2 && shape[1] == 1);
    const int64_t axis = shape.size() == 3 ? 2 : 1;
    const int64_t classes = yes_no ? 2 : shape[static_cast<size_t>(axis)];
    if ((names > 0 && classes != static_cast<int64_t>(names)) || (yes_no && !may_be_yes_no)) continue;
    return ScoresOf{name, yes_no, axis, rows_are_probabilities(tensor)};
  }
  return std::nullopt;
}

namespace {

// The lines of a tensor along an axis: element i of line (a, b) is at (a size + i) inner + b.
struct ScoreLines {
  int64_t outer = 1, size = 1, inner = 1;
  ScoreLines(const Shape& shape, int64_t axis) {
    for (int64_t i = 0; i < static_cast<int64_t>(shape.size()); ++i) {
      (i < axis ? outer : i == axis ? size : inner) *= shape[static_cast<size_t>(i)];
    }
  }
};

PredictedClasses best_classes(const Tensor& scores, const ScoresOf& what) {
  Shape shape = scores.shape();
  shape.erase(shape.begin() + what.axis);
  const ScoreLines lines(scores.shape(), what.axis);
  PredictedClasses found{Tensor(DType::kInt64, shape), Tensor(DType::kDouble, shape)};
  for (int64_t line = 0; line < lines.outer * lines.inner && lines.size > 0; ++line) {
    const auto at = [&](int64_t c) {
      return scores.at((line / lines.inner * lines.size + c) * lines.inner + line % lines.inner);
    };
    int64_t best = 0;
    for (int64_t c = 1; c < lines.size; ++c) best = at(c) > at(best) ? c : best;
    double exponentials = 0;
    for (int64_t c = 0; c < lines.size; ++c) exponentials += std::exp(at(c) - at(best));
    found.classes.set(line, static_cast<double>(best));
    found.probabilities.set(line, what.probabilities ? at(best) : 1 / exponentials);
  }
  return found;
}

}  // namespace

PredictedClasses predicted_classes(const Tensor& scores, const ScoresOf& what) {
  if (!what.yes_no) return best_classes(scores, what);
  Shape shape = scores.shape();
  const bool one_class = shape.size() < 2 || shape[static_cast<size_t>(what.axis)] == 1;
  if (one_class && shape.size() > 1) shape.erase(shape.begin() + what.axis);
  PredictedClasses found{Tensor(DType::kInt64, shape), Tensor(DType::kDouble, shape)};
  for (int64_t i = 0; i < scores.size(); ++i) {
    const double yes = what.probabilities ? scores.at(i) : 1 / (1 + std::exp(-scores.at(i)));
    found.classes.set(i, yes > 0.5 ? 1 : 0);  // NOLINT(readability-magic-numbers)
    found.probabilities.set(i, one_class ? std::max(yes, 1 - yes) : yes);
  }
  return found;
}

}  // namespace onnx_train
