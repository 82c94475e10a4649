#include "runtime/models/derivatives.h"

#include <cstring>

#include "kernels/host.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/text/expression.h"

namespace onnx_train {
namespace {

const char* prefix_of(Derivative kind) {
  switch (kind) {
    case Derivative::kOutputs: break;
    case Derivative::kGradient: return "grad/";
    case Derivative::kVjp: return "vjp/";
    case Derivative::kJvp: return "jvp/";
    case Derivative::kHvp: return "hvp/";
  }
  return "";
}

std::string key_of_result(const Value& output, Derivative kind, const Graph& forward) {
  const ValueRole& role = *output.role();
  if (role.of.empty()) return role.name;
  if (role.name != roles::kGradient && role.name != roles::kDerivative) return concat(role.name, "/", role.of);
  const Value* of = forward.find(role.of);
  const bool is_input = of && forward.is_input(of) && !of->is_initializer();
  return (kind == Derivative::kGradient && is_input ? "grad_input/" : prefix_of(kind)) + role.of;
}

// `rows` tensors of one shape as one, along a new first axis.
class Stack {
 public:
  Stack(const Tensor& first, int64_t rows, const Shape& row) {
    Shape shape = row;
    shape.insert(shape.begin(), rows);
    stacked_ = Tensor(first.dtype(), shape);
  }
  void set(int64_t row, const Tensor& tensor) {
    std::memcpy(static_cast<char*>(stacked_.data()) + static_cast<size_t>(row) * tensor.bytes(),
                std::as_const(tensor).data(), tensor.bytes());
  }
  Tensor take() { return std::move(stacked_); }

 private:
  Tensor stacked_;
};

bool is_gradient(const std::string& key) { return key.starts_with("grad"); }

}  // namespace

DerivativeSession::DerivativeSession(const Model& forward, Derivative kind, const BuildOptions& options,
                                     const SessionOptions& session) {
  Model copy = clone(forward);
  infer_types(copy.graph.get());  // what is known of contents, such as those of shapes, is not copied
  Model model = derivative(std::move(copy), kind, options, &notes_);
  if (const std::string statistics = model.metadata("onnx_train.batch_norm"); !statistics.empty())
    notes_.insert(notes_.begin(), statistics);
  for (const Value* output : model.graph->outputs()) {
    keys_[output->name()] = key_of_result(*output, kind, *forward.graph);
  }
  for (InputSpec& spec : entry_inputs(forward, Entry::kPredict, model)) {
    const Value& input = *model.graph->find(spec.name);
    if (input.has_role(roles::kDirection) || input.has_role(roles::kOutputGradient)) {
      vectors_[input.role()->of] = spec;
    } else if (!input.has_role(roles::kWeight) && !input.has_role(roles::kTrainingState)) {
      inputs_.push_back(std::move(spec));
    }
  }
  preprocess_ = Preprocess(model);
  session_.emplace(std::move(model), session);
}

bool DerivativeSession::updates_state() const {
  return std::any_of(keys_.begin(), keys_.end(), [](const auto& key) { return key.second.starts_with("next/"); });
}

TensorMap DerivativeSession::vectors(const TensorMap& given, const TensorMap& batch) const {
  std::vector<std::string> names;
  for (const auto& [name, spec] : vectors_) names.push_back(name);
  for (const auto& [name, tensor] : given) {
    if (vectors_.count(name)) continue;
    std::string list;
    for (const std::string& known : names) list += concat(list.empty() ? "" : ", ", known);
    fail_as(ErrorCode::kData, "'", name, "' takes no vector", did_you_mean(name, names), "; vectors are of ", list);
  }
  TensorMap inputs;
  for (const auto& [name, spec] : vectors_) {
    const auto vector = given.find(name), of = batch.find(name);
    const bool is_output = spec.role == roles::kOutputGradient;
    if (is_output && vector == given.end()) {
      fail_as(ErrorCode::kData, "the output '", name, "' has no vector; give one for each float output, ",
              to_string(spec.type), ", zeros for those that do not count");
    }
    std::optional<Shape> shape;
    if (of != batch.end()) shape = of->second.shape();
    if (spec.type.is_static()) shape = spec.type.shape();
    if (vector == given.end()) {
      inputs[spec.name] = Tensor(spec.type.dtype, shape.value());
    } else if (shape && vector->second.shape() != *shape) {
      fail_as(ErrorCode::kData, "the vector of '", name, "' has the shape ", to_string(vector->second.shape()),
              "; it must be ", to_string(*shape));
    } else if (!is_float(vector->second.dtype()) && !is_integer(vector->second.dtype())) {
      fail_as(ErrorCode::kData, "the vector of '", name, "' is ", onnx_train::name(vector->second.dtype()),
              "; it must be numbers");
    } else {
      inputs[spec.name] = vector->second.cast(spec.type.dtype);
    }
  }
  return inputs;
}

TensorMap DerivativeSession::run(const TensorMap& inputs) {
  TensorMap results;
  for (const auto& [name, tensor] : session_->run(Entry::kPredict, inputs)) results[keys_.at(name)] = tensor.clone();
  return results;
}

TensorMap per_sample_gradients(DerivativeSession* gradient, const Dataset& data) {
  if (gradient->updates_state()) {
    fail_as(ErrorCode::kUsage,
            "a sample alone has no statistics of a batch, and the model updates state in training: add --mode frozen");
  }
  std::map<std::string, Stack> stacks;
  for (int64_t sample = 0; sample < data.num_samples(); ++sample) {
    TensorMap batch;
    data.gather(&sample, 1, &batch);
    for (const auto& [key, tensor] : gradient->run(batch)) {
      if (key != "loss" && !is_gradient(key)) continue;
      Shape row = tensor.shape();
      // The gradient of an input has the batch's axis already, unless the input is passed whole.
      constexpr std::string_view kOfInput = "grad_input/";
      const Dataset::Array* input = key.starts_with(kOfInput) ? data.find(key.substr(kOfInput.size())) : nullptr;
      if (input && input->per_sample && input->axis < row.size())
        row.erase(row.begin() + static_cast<std::ptrdiff_t>(input->axis));
      stacks.try_emplace(key, tensor, data.num_samples(), row).first->second.set(sample, tensor);
    }
  }
  TensorMap results;
  for (auto& [key, stack] : stacks) results[key] = stack.take();
  return results;
}

TensorMap jacobians(DerivativeSession* vjp, DerivativeSession* outputs, const TensorMap& batch) {
  TensorMap results = outputs->run(batch), zeros;
  for (const auto& [key, output] : results) {
    constexpr std::string_view kOutput = "output/";
    const bool counts = key.starts_with(kOutput) && is_float(output.dtype());
    if (counts) zeros[key.substr(kOutput.size())] = Tensor(output.dtype(), output.shape());
  }
  size_t bytes = 0;
  for (const auto& [name, output] : zeros) {
    std::map<std::string, Stack> stacks;
    for (int64_t element = 0; element < output.size(); ++element) {
      TensorMap one = zeros;
      one[name] = output.clone();
      one[name].set(element, 1);
      TensorMap inputs = vjp->vectors(one, batch);
      inputs.insert(batch.begin(), batch.end());
      for (const auto& [key, tensor] : vjp->run(inputs)) {
        if (!key.starts_with("vjp/")) continue;
        const std::string of = concat("jacobian/", name, "/", key.substr(4));
        if (element == 0) {
          bytes += static_cast<size_t>(output.size()) * tensor.bytes();
          if (bytes > available_host_memory()) {
            fail_as(ErrorCode::kOutOfMemory, of, " has ", output.size(), " x ", tensor.size(),
                    " elements, more than the memory has room for; take fewer samples, or --train fewer weights");
          }
          stacks.try_emplace(of, tensor, output.size(), tensor.shape());
        }
        stacks.at(of).set(element, tensor);
      }
    }
    for (auto& [key, stack] : stacks) {
      const Tensor rows = stack.take();
      Shape shape = output.shape();
      shape.insert(shape.end(), rows.shape().begin() + 1, rows.shape().end());
      results[key] = rows.reshaped(shape);
    }
  }
  return results;
}

}  // namespace onnx_train
