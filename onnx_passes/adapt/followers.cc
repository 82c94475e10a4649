#include "onnx_passes/adapt/followers.h"

#include <algorithm>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

int count_size(const TensorType& type, int64_t size) {
  if (!type.dims) return 0;
  return static_cast<int>(std::count(type.dims->begin(), type.dims->end(), Dim(size)));
}

}  // namespace

void Followers::follow(const std::vector<Value*>& changed, const std::vector<Node*>& others) {
  const Marks<Node> skipped(others);
  Marks<Value> dependent(changed);
  for (Node* node = graph_.first(); node; node = node->next()) {
    bool reads = false;
    for_each_input(*node, [&](const Value* input) { reads = reads || dependent.contains(input); });
    if (!reads || skipped.contains(node)) continue;
    if (before_ != after_) expect_fit(node, dependent);
    for (Value* output : node->outputs()) {
      if (!output) continue;
      old_[output] = output->type();
      output->set_type({});
      output->set_elements(std::nullopt);
      dependent.insert(output);
    }
    try {
      check_shapes(*node);
      infer_types(node);
    } catch (const Error& error) {
      fail("[Head] ", node->label(), " does not take ", after_, " outputs: ", error.what(), way_out());
    }
  }
}

std::string Followers::way_out() const {
  return concat("; end the model before it (--cut), and append what is right for ", after_, " (--join)");
}

// Numbers in a model do not say what they count: one that equals the old number of outputs may be it.
void Followers::expect_fit(Node* node, const Marks<Value>& dependent) {
  constexpr int64_t kAxes = 8;  // smaller numbers are axes, strides and the like
  for (int i = 0; i < node->num_inputs(); ++i) {
    const Value* input = node->input(i);
    if (!input) continue;
    if (node->is("Reshape") && i == 1) {
      mend_reshape(node);
      continue;
    }
    if (dependent.contains(input)) continue;
    const Tensor constant = constant_of(input);
    if (constant.empty()) continue;
    const auto& shape = constant.shape();
    const bool has_size =
        before_ > 1 && is_float(constant.dtype()) && std::find(shape.begin(), shape.end(), before_) != shape.end();
    bool has_number = false;
    for (int64_t j = 0; before_ > kAxes && is_integer(constant.dtype()) && j < constant.size(); ++j) {
      has_number = has_number || constant.at(j) == static_cast<double>(before_);
    }
    if (has_size || has_number) {
      fail("[Head] ", node->label(), " reads '", input->name(), "', which seems to be made for the ", before_,
           " outputs that '", output_, "' had", way_out());
    }
  }
}

void Followers::mend_reshape(Node* node) {
  const Value* shape = node->input(1);
  Tensor target = constant_of(shape);
  std::vector<Dim> sizes;
  if (!target.empty()) {
    for (const int64_t size : target.to_ints()) sizes.emplace_back(size);
  } else if (shape->elements()) {
    sizes = *shape->elements();
  }
  const auto times = std::count(sizes.begin(), sizes.end(), Dim(before_));
  if (times == 0) return;
  const Value* reshaped = node->input(0);
  const TensorType* old = old_.find(reshaped);
  const bool safe = times == 1 && !target.empty() && count_size(old ? *old : reshaped->type(), before_) == 1;
  if (!safe) {
    fail("[Head] ", node->label(), " has a shape ('", shape->name(), "') that holds ", before_,
         ", and it is not clear ", "whether that is the number of outputs of '", output_, "'", way_out());
  }
  std::vector<int64_t> numbers = target.to_ints();
  std::replace(numbers.begin(), numbers.end(), before_, after_);
  const std::string name = graph_.unique_name(shape->name() + "/head");
  node->set_input(1, graph_.add_initializer(name, Tensor::ints(numbers)));
  mended_ += concat(mended_.empty() ? "" : ", ", node->label());
}

}  // namespace onnx_train
