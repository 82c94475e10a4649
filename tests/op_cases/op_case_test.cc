#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <random>
#include <set>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/inference/inlining.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/op_cases/covered.h"
#include "tests/op_cases/make_case.h"
#include "tests/support/run_node.h"

namespace onnx_train::op_case_test {
namespace {

constexpr double kDerivativeTolerance = 1e-6;

bool on_cpu() { return &default_device() == &Device::cpu(); }

// On the CPU with all that it has, everything is compared; with fewer instructions (kernels/isa_test.sh) or on another
// device, what depends on these: rules, bodies and symbolic sizes do not.
bool is_whole() { return on_cpu() && !std::getenv("ONNX_TRAIN_ISA"); }

TensorMap feed(const OpCase& row, const std::vector<Tensor>& inputs, DType precision) {
  TensorMap map;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (row.inputs[i].absent || row.inputs[i].constant) continue;
    map[concat("x", i)] = inputs[i].cast(type_in(row.inputs[i], inputs[i], precision));
  }
  return map;
}

// The kernels of fusion regions have cases of their own (cuda_on_host/generated_test.cc).
SessionOptions options_on(Device& device) {
  SessionOptions options;
  options.device = &device;
  options.plan.check_memory = device.uses_host_memory();
  if (device.name() == "cuda") options.plan.lowering.without = {"fuse_elementwise"};
  return options;
}

std::vector<Tensor> run(Model model, const TensorMap& inputs, Device& device = default_device()) {
  std::vector<std::string> names;
  for (const Value* output : model.graph->outputs()) names.push_back(output->name());
  Session session(std::move(model), options_on(device));
  const TensorMap& outputs = session.run("predict", inputs);
  std::vector<Tensor> results;
  for (const std::string& name : names) results.push_back(outputs.at(name).clone());
  return results;
}

// ---- Comparisons

void expect_close(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  ASSERT_EQ(got.shape(), want.shape()) << what;
  const double scale = std::max(largest(want), 1e-3);
  for (int64_t i = 0; i < got.size(); ++i) {
    const double a = got.at(i), b = want.at(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    ASSERT_LE(std::abs(a - b), tolerance * scale) << what << ", element " << i << ": " << a << " instead of " << b;
  }
}

bool has_float_input(const OpCase& row, const std::vector<Tensor>& inputs) {
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!row.inputs[i].absent && type_in(row.inputs[i], inputs[i], DType::kDouble) == DType::kDouble) return true;
  }
  return false;
}

void check_forward(const OpCase& row, const std::vector<Tensor>& inputs) {
  const bool precisions = has_float_input(row, inputs);
  const auto exact = run(make_case(row, inputs, DType::kDouble, false).model, feed(row, inputs, DType::kDouble));
  // What kernels of a device are compared with, such as bodies and differences, runs on the CPU.
  if (!on_cpu()) {
    const auto wanted =
        run(make_case(row, inputs, DType::kDouble, false).model, feed(row, inputs, DType::kDouble), Device::cpu());
    for (size_t i = 0; i < exact.size(); ++i) {
      // Some outputs are never float64: of kernels with narrow operands.
      const double tolerance = exact[i].dtype() == DType::kDouble ? 1e-11 : row.tolerance;
      expect_close(exact[i], wanted[i], tolerance, concat("float64 against the CPU, output ", i));
    }
  }
  if (precisions) {
    const auto single = run(make_case(row, inputs, DType::kFloat, false).model, feed(row, inputs, DType::kFloat));
    for (size_t i = 0; i < exact.size(); ++i) {
      expect_close(single[i], exact[i], row.tolerance, concat("float32 against float64, output ", i));
    }
  }
  if (row.expected) {
    std::vector<Tensor> doubles;
    for (size_t i = 0; i < inputs.size(); ++i) {
      doubles.push_back(row.inputs[i].absent ? Tensor()
                                             : inputs[i].cast(type_in(row.inputs[i], inputs[i], DType::kDouble)));
    }
    expect_close(exact[0], row.expected(doubles), 1e-12, "float64 against the expected value");
  }
  if (row.domain == kDomain && row.no_body.empty() && on_cpu()) {
    for (DType precision : {DType::kFloat, DType::kDouble}) {
      if (precision == DType::kDouble && !is_whole()) continue;
      Case body = make_case(row, inputs, precision, false);
      ASSERT_TRUE(inline_function(body.outputs[0]->producer()));
      const auto from_body = run(std::move(body.model), feed(row, inputs, precision), Device::cpu());
      const auto from_kernel = run(make_case(row, inputs, precision, false).model, feed(row, inputs, precision));
      for (size_t i = 0; i < from_body.size(); ++i) {
        expect_close(from_kernel[i], from_body[i], from_body[i].dtype() == DType::kFloat ? row.tolerance : 1e-11,
                     concat("kernel against body in ", name(precision), ", output ", i));
      }
    }
  }
  if (is_whole() && row.dynamic && !row.inputs.empty() && !row.inputs[0].constant && !row.inputs[0].absent) {
    const auto dynamic = run(make_case(row, inputs, DType::kDouble, true).model, feed(row, inputs, DType::kDouble));
    for (size_t i = 0; i < exact.size(); ++i)
      expect_close(dynamic[i], exact[i], 0, concat("dynamic against static, output ", i));
  }
}

// ---- Gradients

// The float inputs that a gradient is asked for.
std::vector<size_t> differentiable_inputs(const OpCase& row, const Case& made) {
  std::vector<size_t> inputs;
  for (size_t i = 0; i < made.inputs.size(); ++i) {
    if (made.inputs[i] && is_float(made.inputs[i]->dtype()) && row.inputs[i].no_derivative.empty()) inputs.push_back(i);
  }
  return inputs;
}

// The case with its backward pass: outputs grad/x0, ...; inputs dy0, ... for the outputs' gradients.
struct GradientCase {
  Model model;
  std::vector<size_t> with_gradient;  // the inputs of which there is one, in the order of the outputs
};

GradientCase make_gradient_case(const OpCase& row, const std::vector<Tensor>& inputs, bool dynamic) {
  Case made = make_case(row, inputs, DType::kDouble, dynamic);
  Graph& graph = *made.model.graph;
  std::vector<Value*> outputs, dy, wrt;
  for (size_t i = 0; i < made.outputs.size(); ++i) {
    if (!is_float(made.outputs[i]->dtype())) continue;
    outputs.push_back(made.outputs[i]);
    dy.push_back(graph.add_input(concat("dy", i), made.outputs[i]->type()));
  }
  const std::vector<size_t> wanted = differentiable_inputs(row, made);
  for (size_t i : wanted) wrt.push_back(made.inputs[i]);
  GradientCase result;
  graph.set_outputs({});
  if (!outputs.empty() && !wrt.empty()) {
    const auto gradients = add_gradients(&graph, outputs, dy, wrt);
    for (size_t i = 0; i < gradients.size(); ++i) {
      if (!gradients[i]) continue;
      graph.add_output(gradients[i]);
      result.with_gradient.push_back(wanted[i]);
    }
  }
  result.model = std::move(made.model);
  return result;
}

double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

double norm(const Tensor& a) { return std::sqrt(dot(a, a)); }

Tensor random_like(const Tensor& tensor, std::mt19937_64& random) {
  Tensor result(DType::kDouble, tensor.shape());
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int64_t i = 0; i < result.size(); ++i) result.set(i, uniform(random));
  return result;
}

// Σ dy y of the case, its input `i` moved by a step along `direction`.
class Loss {
 public:
  Loss(const OpCase& row, const std::vector<Tensor>& inputs, const std::vector<Tensor>& dy)
      : row_(row), inputs_(inputs), dy_(dy), session_(make_session(inputs)) {}

  double at(size_t i, const Tensor& direction, double step) {
    std::vector<Tensor> moved = inputs_;
    moved[i] = inputs_[i].cast(DType::kDouble);
    for (int64_t j = 0; j < direction.size(); ++j) moved[i].set(j, moved[i].at(j) + step * direction.at(j));
    const TensorMap given = feed(row_, moved, DType::kDouble);
    const TensorMap& y = row_.inputs[i].constant ? (constants_ = make_session(moved))->run("predict", given)
                                                 : session_->run("predict", given);
    double sum = 0;
    for (size_t k = 0; k < names_.size(); ++k) sum += dy_[k].empty() ? 0 : dot(dy_[k], y.at(names_[k]));
    return sum;
  }

  // Central differences of fourth order: the error is of the order of h^4 and of rounding / h.
  double derivative(size_t i, const Tensor& direction) {
    constexpr double h = 1e-4;
    const double near = at(i, direction, h) - at(i, direction, -h);
    const double far = at(i, direction, 2 * h) - at(i, direction, -2 * h);
    return (8 * near - far) / (12 * h);
  }

 private:
  std::unique_ptr<Session> make_session(const std::vector<Tensor>& inputs) {
    Case made = make_case(row_, inputs, DType::kDouble, false);
    names_.clear();
    for (const Value* output : made.outputs) names_.push_back(output->name());
    return std::make_unique<Session>(std::move(made.model), options_on(Device::cpu()));
  }

  const OpCase& row_;
  const std::vector<Tensor>& inputs_;
  const std::vector<Tensor>& dy_;
  std::vector<std::string> names_;
  std::unique_ptr<Session> session_, constants_;  // the latter with a constant that was moved
};

void expect_zero(const Tensor& gradient, double from_differences, size_t i) {
  EXPECT_EQ(largest(gradient), 0) << "the row says that the gradient of input " << i << " is zero";
  EXPECT_EQ(from_differences, 0) << "the row says that the gradient of input " << i << " is zero, differences do not";
}

void check_input(const OpCase& row, Loss* loss, size_t i, const Tensor& input, const Tensor& gradient,
                 std::mt19937_64* random) {
  const Tensor direction = random_like(input, *random);
  const double from_differences = loss->derivative(i, direction);
  if (row.inputs[i].zero_gradient) return expect_zero(gradient, from_differences, i);
  ASSERT_EQ(gradient.shape(), input.shape()) << "gradient of input " << i;
  const double from_graph = dot(gradient, direction), scale = norm(gradient) * norm(direction);
  const double size = std::max({std::abs(from_graph), std::abs(from_differences), 1e-3 * scale, 1e-12});
  EXPECT_LE(std::abs(from_graph - from_differences) / size, kDerivativeTolerance)
      << "input " << i << ": derivative " << from_graph << " from the gradient graph, " << from_differences
      << " from differences";
}

// A gradient for each output that is a float.
std::vector<Tensor> draw_dy(const OpCase& row, const std::vector<Tensor>& inputs, std::mt19937_64& random) {
  std::vector<Tensor> dy;
  for (const Tensor& y :
       run(make_case(row, inputs, DType::kDouble, false).model, feed(row, inputs, DType::kDouble), Device::cpu()))
    dy.push_back(is_float(y.dtype()) ? random_like(y, random) : Tensor());
  return dy;
}

TensorMap feed_gradient(const OpCase& row, const std::vector<Tensor>& inputs, const std::vector<Tensor>& dy) {
  TensorMap given = feed(row, inputs, DType::kDouble);
  for (size_t i = 0; i < dy.size(); ++i) {
    if (!dy[i].empty()) given[concat("dy", i)] = dy[i];
  }
  return given;
}

bool has_dynamic_gradient(const OpCase& row) { return row.dynamic && !row.inputs[0].constant && !row.inputs[0].absent; }

void check_gradient(const OpCase& row, const std::vector<Tensor>& inputs) {
  std::mt19937_64 random(54321);
  const std::vector<Tensor> dy = draw_dy(row, inputs, random);
  const TensorMap given = feed_gradient(row, inputs, dy);
  GradientCase gradient_case = make_gradient_case(row, inputs, false);
  const auto with_gradient = gradient_case.with_gradient;
  std::vector<Tensor> gradients;
  if (!with_gradient.empty()) gradients = run(std::move(gradient_case.model), given);
  const auto wanted = differentiable_inputs(row, make_case(row, inputs, DType::kDouble, false));
  ASSERT_FALSE(wanted.empty()) << "no float input: say gradient = false";
  Loss loss(row, inputs, dy);
  for (size_t i : wanted) {
    const auto found = std::find(with_gradient.begin(), with_gradient.end(), i);
    const bool missing = found == with_gradient.end();
    if (missing && !row.inputs[i].zero_gradient) ADD_FAILURE() << "input " << i << " has no gradient";
    if (missing && !row.inputs[i].zero_gradient) continue;
    check_input(row, &loss, i, inputs[i],
                missing ? Tensor() : gradients[static_cast<size_t>(found - with_gradient.begin())], &random);
  }

  if (with_gradient.empty() || !has_dynamic_gradient(row)) return;
  const auto dynamic = run(make_gradient_case(row, inputs, true).model, given);
  ASSERT_EQ(dynamic.size(), gradients.size());
  for (size_t g = 0; g < gradients.size(); ++g) {
    expect_close(dynamic[g], gradients[g], 1e-12, concat("dynamic against static, gradient ", g));
  }
}

// The gradient graph on a device against the same graph on the CPU, where differences tell whether it is right.
void check_gradient_on_device(const OpCase& row, const std::vector<Tensor>& inputs) {
  std::mt19937_64 random(54321);
  const TensorMap given = feed_gradient(row, inputs, draw_dy(row, inputs, random));
  GradientCase made = make_gradient_case(row, inputs, false), same = make_gradient_case(row, inputs, false);
  if (made.with_gradient.empty()) return;
  const auto found = run(std::move(made.model), given), wanted = run(std::move(same.model), given, Device::cpu());
  for (size_t i = 0; i < found.size(); ++i)
    expect_close(found[i], wanted[i], 1e-10, concat("float64 against the CPU, gradient ", i));
}

// ---- For other runtimes

void write(const Model& model, const std::string& path) {
  onnx::ModelProto proto;
  to_proto(model, &proto);
  proto.set_ir_version(10);
  std::ofstream file(path, std::ios::binary);
  proto.SerializeToOstream(&file);
}

// The graph goes to NAME.onnx, and what it was given and computed as the initializers of NAME.data.onnx.
void record(Model model, const TensorMap& given, const std::string& name) {
  write(model, name + ".onnx");
  Model data;
  data.context->opsets[""] = model.context->opset();
  for (const auto& [input, tensor] : given) data.graph->add_initializer(input, tensor);
  std::vector<std::string> outputs;
  for (const Value* output : model.graph->outputs()) outputs.push_back(output->name());
  const auto results = run(std::move(model), given);
  for (size_t i = 0; i < results.size(); ++i) data.graph->add_initializer(outputs[i], results[i]);
  write(data, name + ".data.onnx");
}

// What tests/python/test_op_cases.py repeats: a case and its gradients, with static and with dynamic shapes.
void record_case(const OpCase& row, const std::vector<Tensor>& inputs, const std::string& name) {
  record(make_case(row, inputs, DType::kDouble, false).model, feed(row, inputs, DType::kDouble), name + "_forward");
  if (!row.gradient) return;
  std::mt19937_64 random(54321);
  const TensorMap given = feed_gradient(row, inputs, draw_dy(row, inputs, random));
  GradientCase gradient_case = make_gradient_case(row, inputs, false);
  if (gradient_case.with_gradient.empty()) return;
  record(std::move(gradient_case.model), given, name);
  if (has_dynamic_gradient(row)) record(make_gradient_case(row, inputs, true).model, given, name + "_dynamic");
}

// Whether the row calls a variant of an operator that only lowering emits: with narrow operands, on channels-last
// images, or with an epilogue.
bool is_lowered(const OpCase& row) {
  const auto is_narrow = [](const OpInput& input) {
    return input.value.dtype() == DType::kBFloat16 || input.value.dtype() == DType::kFloat16;
  };
  const auto is_variant = [](const Attr& attr) { return attr.name == "channels_last" || attr.name == "epilogue"; };
  return std::any_of(row.inputs.begin(), row.inputs.end(), is_narrow) ||
         std::any_of(row.attrs.begin(), row.attrs.end(), is_variant);
}

// A row may only say that there is nothing to check where that is so: no float input reaches a float output, or nothing
// differentiates the operator: passes after the gradients make it, or it is refused.
void check_exemption(const OpCase& row, const std::vector<Tensor>& inputs) {
  if (!row.no_derivative.empty()) return;
  const Case made = make_case(row, inputs, DType::kDouble, false);
  const auto floats = [](const std::vector<Value*>& values) {
    return std::any_of(values.begin(), values.end(), [](const Value* v) { return v && is_float(v->dtype()); });
  };
  if (!floats(made.inputs) || !floats(made.outputs)) return;
  const bool only_lowered =
      row.domain == kDomain && (is_lowered(row) || !find_gradient_rule(*made.outputs[0]->producer()));
  EXPECT_TRUE(only_lowered || !find_obstacles(made.outputs, made.inputs).empty())
      << "a row without a gradient to check gives the reason: no_derivative";
}

class OpCases : public testing::TestWithParam<OpCase> {};

TEST_P(OpCases, Holds) {
  const OpCase& row = GetParam();
  try {
    const auto inputs = draw_inputs(row);
    if (const char* folder = std::getenv("OP_CASES_FOLDER")) {
      const std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
      return record_case(row, inputs, concat(folder, "/", name.substr(name.find('/') + 1)));
    }
    check_forward(row, inputs);
    if (HasFatalFailure()) return;
    if (is_whole()) return row.gradient ? check_gradient(row, inputs) : check_exemption(row, inputs);
    if (row.gradient && default_device().name() == "cuda") check_gradient_on_device(row, inputs);
  } catch (const Error& error) {
    FAIL() << error.what();
  }
}

std::string case_name(const testing::TestParamInfo<OpCase>& info) {
  return concat(info.param.domain.empty() ? "" : "onnx_train_", info.param.op, "_", info.index);
}

std::set<std::string> exercised_operators() {
  std::set<std::string> names;
  for (const OpCase& row : all_cases()) names.insert(concat(row.domain, ".", row.op));
  return names;
}

TEST(OpCaseTable, EveryRuleHasACase) {
  auto names = exercised_operators();
  for (const char* op : {".If", ".Scan"}) names.insert(op);  // tests/passes/control_flow_test.cc
  names.insert(".Unique");                                   // tests/lowering/segments_test.cc
  for (const GradientRule* rule : gradient_rules()) {
    EXPECT_TRUE(names.count(concat(rule->domain, ".", rule->op))) << "no case for the gradient of " << rule->op;
  }
}

// The weights after one step with or without the passes that make Fused and Updates, and the operators of its plan.
std::pair<TensorMap, std::set<std::string>> small_step(const std::vector<std::string>& without) {
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    g (float[4,3] x) => (float[4,3] y) <float[3,3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[3] b = {1, 2, 3}> {
      p = MatMul (x, w)
      a = Add (p, b)
      s = Sigmoid (a)
      t = Sin (s)
      y = Mul (t, a)
    })");
  infer_types(model.graph.get());
  BuildOptions build;
  build.loss = "mse";
  build_training_model(&model, build);
  SessionOptions options;
  options.plan.lowering.without = without;
  Session session(std::move(model), options);
  const Tensor x = Tensor::full(DType::kFloat, {4, 3}, 0.25);
  const TensorMap inputs = {{"x", x}, {"labels", x}};
  session.run("step", inputs);
  TensorMap weights;
  for (const char* name : {"w", "b"}) weights[name] = session.contents(name).clone();
  std::set<std::string> operators;
  for (const PlanStep& step : session.plan("step", {{"x", x.shape()}, {"labels", x.shape()}}).steps()) {
    operators.insert(concat(step.node->domain(), ".", step.node->op()));
  }
  return {std::move(weights), operators};
}

// What has no body but what a pass puts there is run by a step that those passes have changed.
std::set<std::string> operators_of_lowered_step() {
  const auto [weights, operators] = small_step({});
  const auto [wanted, plain] = small_step({"fuse_elementwise", "merge_updates"});
  for (const auto& [name, tensor] : wanted) expect_close(weights.at(name), tensor, 1e-6, name);
  EXPECT_NE(operators, plain);
  return operators;
}

TEST(OpCaseTable, EveryKernelHasACase) {
  auto names = exercised_operators();
  names.merge(operators_of_lowered_step());
  for (const auto& operators : {narrow_storage_operators(), narrow_recurrences()}) {
    for (const std::string& op : operators) names.insert(concat(kDomain, ".", op));
  }
  for (const Kernel* kernel : Device::cpu().kernels()) {
    EXPECT_TRUE(names.count(concat(kernel->domain, ".", kernel->op))) << "no case for the kernel of " << kernel->op;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpCases, testing::ValuesIn(all_cases()), case_name);

}  // namespace

}  // namespace onnx_train::op_case_test

void onnx_train::PrintTo(const OpCase& row, std::ostream* out) {
  *out << row.op;
  for (const OpInput& input : row.inputs) {
    *out << ' ' << (input.absent ? "-" : to_string(input.value.empty() ? input.shape : input.value.shape()));
  }
  for (const Attr& attr : row.attrs) {
    *out << ' ' << attr.name;
    if (const auto* i = std::get_if<int64_t>(&attr.value)) *out << '=' << *i;
    if (const auto* f = std::get_if<float>(&attr.value)) *out << '=' << *f;
    if (const auto* s = std::get_if<std::string>(&attr.value)) *out << '=' << *s;
    if (const auto* v = std::get_if<std::vector<int64_t>>(&attr.value)) *out << '=' << to_string(*v);
  }
}
