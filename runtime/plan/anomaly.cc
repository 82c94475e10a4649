#include "runtime/plan/anomaly.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "kernels/lowering/memory/lifetimes.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

// The numbers of a float value; no memory of its own.
std::optional<Tensor> numbers_of(const Value* value, const void* data) {
  if (!value || !data || !is_float(value->dtype())) return std::nullopt;
  const Shape shape = value->type().shape();
  if (num_elements(shape) == 0) return std::nullopt;
  return Tensor(value->dtype(), shape, const_cast<void*>(data), nullptr);
}

// The first element that is not finite; the size if there is none.
int64_t first_not_finite(const Tensor& tensor) {
  int64_t i = 0;
  while (i < tensor.size() && std::isfinite(tensor.at(i))) ++i;
  return i;
}

const char* kind_of(double number) { return std::isnan(number) ? "NaN" : number > 0 ? "infinite" : "-infinite"; }

std::string described(const Value& value) { return concat("'", value.name(), "' ", to_string(value.type())); }

// "'x' float[8] from 0 to 2.5"
std::string range_of(const Value& value, const Tensor& tensor) {
  double least = 0, most = 0;
  int64_t finite = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    const double number = tensor.at(i);
    if (!std::isfinite(number)) continue;
    least = finite == 0 ? number : std::min(least, number);
    most = finite == 0 ? number : std::max(most, number);
    ++finite;
  }
  const int64_t others = tensor.size() - finite;
  std::string text = described(value);
  if (finite > 0) text += concat(" from ", number_text(least), " to ", number_text(most));
  if (others > 0) text += concat(", ", others, " of ", tensor.size(), " not finite");
  return text;
}

std::string ranges_of_inputs(const Node& node, const Launch& launch) {
  std::string text;
  for (int i = 0; i < node.num_inputs(); ++i) {
    const auto numbers = numbers_of(node.input(i), launch.inputs[i]);
    if (numbers) text += concat(text.empty() ? "" : "; ", range_of(*node.input(i), *numbers));
  }
  return text.empty() ? "no floats" : text;
}

}  // namespace

void AnomalyDetector::after(const Node& node, const Launch& launch) {
  for (int i = 0; i < node.num_outputs(); ++i) {
    const Value* const output = node.output(i);
    const auto numbers = numbers_of(output, launch.outputs[i]);
    if (!numbers) continue;
    const int64_t at = first_not_finite(*numbers);
    if (at == numbers->size()) continue;
    const char* const kind = kind_of(numbers->at(at));
    if (findings_.empty() || findings_.back().node != &node) {
      Finding finding{&node, {}, ""};
      const int order = operator_of(node).after;  // an input that orders collectives: its numbers are not read
      for (int k = 0; k < node.num_inputs(); ++k) {
        const Value* const input = k == order ? nullptr : node.input(k);
        if (const size_t* source = input ? finding_of_.find(input) : nullptr) finding.sources.push_back(*source);
      }
      if (finding.sources.empty() && order >= 0) {
        finding.what = concat("element ", at, " of ", described(*output), " is ", kind,
                              "; it comes from another rank, which names the node");
      } else if (finding.sources.empty()) {
        finding.what = concat("element ", at, " of ", described(*output), " is ", kind, "; it reads ",
                              ranges_of_inputs(node, launch));
      }
      findings_.push_back(std::move(finding));
    }
    finding_of_[output] = findings_.size() - 1;
    const bool is_loss = output->has_role(roles::kLoss);
    if (is_loss || (output->has_role(roles::kGradNorm) && !scales_loss_ && result_ == SIZE_MAX)) {
      result_ = findings_.size() - 1;
      result_text_ = concat(is_loss ? "the loss is " : "the norm of the gradients is ", kind);
    }
  }
}

void AnomalyDetector::finish() const {
  if (result_ == SIZE_MAX) return;
  std::vector<bool> reached(findings_.size());
  reached[result_] = true;
  size_t first = result_;
  for (size_t i = result_ + 1; i-- > 0;) {  // sources come before what reads them
    if (!reached[i]) continue;
    for (const size_t source : findings_[i].sources) reached[source] = true;
    if (findings_[i].sources.empty()) first = i;
  }
  const Finding& found = findings_[first];
  fail_as(ErrorCode::kLossNotFinite, result_text_, ": ", found.node->label(),
          " is the first node that it comes from: ", found.what);
}

}  // namespace onnx_train
