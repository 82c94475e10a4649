#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <random>
#include <set>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inlining.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/session.h"
#include "tests/op_cases/make_case.h"

namespace onnx_train {
namespace {

constexpr double kDerivativeTolerance = 1e-6;

TensorMap feed(const OpCase& row, const std::vector<Tensor>& inputs, DType precision) {
  TensorMap map;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (row.inputs[i].absent || row.inputs[i].constant) continue;
    map[concat("x", i)] = inputs[i].cast(type_in(row.inputs[i], inputs[i], precision));
  }
  return map;
}

std::vector<Tensor> run(Model model, const TensorMap& inputs) {
  std::vector<std::string> names;
  for (const Value* output : model.graph->outputs()) names.push_back(output->name());
  SessionOptions options;
  options.plan.check_memory = true;
  Session session(std::move(model), options);
  const TensorMap& outputs = session.run("predict", inputs);
  std::vector<Tensor> results;
  for (const std::string& name : names) results.push_back(outputs.at(name).clone());
  return results;
}

// ---- Comparisons

double largest(const Tensor& tensor) {
  double most = 0;
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (std::isfinite(tensor.at(i))) most = std::max(most, std::abs(tensor.at(i)));
  }
  return most;
}

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
  if (row.domain == kDomain) {
    for (DType precision : {DType::kFloat, DType::kDouble}) {
      Case body = make_case(row, inputs, precision, false);
      ASSERT_TRUE(inline_function(body.outputs[0]->producer()));
      const auto from_body = run(std::move(body.model), feed(row, inputs, precision));
      const auto from_kernel = run(make_case(row, inputs, precision, false).model, feed(row, inputs, precision));
      for (size_t i = 0; i < from_body.size(); ++i) {
        expect_close(from_kernel[i], from_body[i], from_body[i].dtype() == DType::kFloat ? row.tolerance : 1e-11,
                     concat("kernel against body in ", name(precision), ", output ", i));
      }
    }
  }
  if (row.dynamic && !row.inputs.empty() && !row.inputs[0].constant && !row.inputs[0].absent) {
    const auto dynamic = run(make_case(row, inputs, DType::kDouble, true).model, feed(row, inputs, DType::kDouble));
    for (size_t i = 0; i < exact.size(); ++i)
      expect_close(dynamic[i], exact[i], 0, concat("dynamic against static, output ", i));
  }
}

// ---- Gradients

// The case with its backward pass: outputs grad/x0, ...; inputs dy0, ... for the outputs' gradients.
struct GradientCase {
  Model model;
  std::vector<size_t> differentiated;  // inputs that have a gradient
};

GradientCase make_gradient_case(const OpCase& row, const std::vector<Tensor>& inputs, bool dynamic) {
  Case made = make_case(row, inputs, DType::kDouble, dynamic);
  Graph& graph = *made.model.graph;
  std::vector<Value*> outputs, dy, wrt;
  std::vector<size_t> wanted;
  for (size_t i = 0; i < made.outputs.size(); ++i) {
    if (!is_float(made.outputs[i]->dtype())) continue;
    outputs.push_back(made.outputs[i]);
    dy.push_back(graph.add_input(concat("dy", i), made.outputs[i]->type()));
  }
  for (size_t i = 0; i < made.inputs.size(); ++i) {
    if (!made.inputs[i] || !is_float(made.inputs[i]->dtype()) || !row.inputs[i].differentiate) continue;
    wrt.push_back(made.inputs[i]);
    wanted.push_back(i);
  }
  const auto gradients = add_gradients(&graph, outputs, dy, wrt);
  GradientCase result;
  graph.set_outputs({});
  for (size_t i = 0; i < gradients.size(); ++i) {
    if (!gradients[i]) continue;
    graph.add_output(gradients[i]);
    result.differentiated.push_back(wanted[i]);
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

// Inputs moved by `step` along `directions`.
std::vector<Tensor> moved(const std::vector<Tensor>& inputs, const std::vector<Tensor>& directions, double step) {
  std::vector<Tensor> result;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (directions[i].empty()) {
      result.push_back(inputs[i]);
      continue;
    }
    result.push_back(inputs[i].cast(DType::kDouble));
    for (int64_t j = 0; j < inputs[i].size(); ++j) result[i].set(j, inputs[i].at(j) + step * directions[i].at(j));
  }
  return result;
}

void write(const Model& model, const std::string& path) {
  onnx::ModelProto proto;
  to_proto(model, &proto);
  proto.set_ir_version(10);
  std::ofstream file(path, std::ios::binary);
  proto.SerializeToOstream(&file);
}

// With OP_CASES_FOLDER set, a gradient graph goes there as NAME.onnx, and what it was given and computed as the
// initializers of NAME.data.onnx: for another runtime to repeat (tests/python/test_op_cases.py).
std::vector<Tensor> run_and_record(Model model, const TensorMap& given, const std::string& suffix) {
  const char* folder = std::getenv("OP_CASES_FOLDER");
  if (!folder) return run(std::move(model), given);
  std::string name = testing::UnitTest::GetInstance()->current_test_info()->name();
  name = concat(folder, "/", name.substr(name.find('/') + 1), suffix);
  write(model, name + ".onnx");
  Model data;
  data.context->opsets[""] = model.context->opset();
  for (const auto& [input, tensor] : given) data.graph->add_initializer(input, tensor);
  std::vector<std::string> outputs;
  for (const Value* output : model.graph->outputs()) outputs.push_back(output->name());
  const auto results = run(std::move(model), given);
  for (size_t i = 0; i < results.size(); ++i) data.graph->add_initializer(outputs[i], results[i]);
  write(data, name + ".data.onnx");
  return results;
}

void check_gradient(const OpCase& row, const std::vector<Tensor>& inputs) {
  std::mt19937_64 random(54321);
  const auto outputs = run(make_case(row, inputs, DType::kDouble, false).model, feed(row, inputs, DType::kDouble));
  TensorMap given = feed(row, inputs, DType::kDouble);
  std::vector<Tensor> dy(outputs.size());
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!is_float(outputs[i].dtype())) continue;
    dy[i] = random_like(outputs[i], random);
    given[concat("dy", i)] = dy[i];
  }
  GradientCase gradient_case = make_gradient_case(row, inputs, false);
  const auto differentiated = gradient_case.differentiated;
  if (differentiated.empty()) return;  // a zero rule
  const auto gradients = run_and_record(std::move(gradient_case.model), given, "");

  std::vector<Tensor> directions(inputs.size());
  double from_graph = 0, scale = 0;
  for (size_t g = 0; g < differentiated.size(); ++g) {
    const size_t i = differentiated[g];
    ASSERT_EQ(gradients[g].shape(), inputs[i].shape()) << "gradient of input " << i;
    directions[i] = random_like(inputs[i], random);
    from_graph += dot(gradients[g], directions[i]);
    scale += norm(gradients[g]) * norm(directions[i]);
  }
  const auto loss = [&](double step) {
    const auto at = moved(inputs, directions, step);
    const auto y = run(make_case(row, at, DType::kDouble, false).model, feed(row, at, DType::kDouble));
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += dy[i].empty() ? 0 : dot(dy[i], y[i]);
    return sum;
  };
  // Central differences of fourth order: the error is of the order of h^4 and of rounding / h.
  constexpr double h = 1e-4;
  const double from_differences = (8 * (loss(h) - loss(-h)) - (loss(2 * h) - loss(-2 * h))) / (12 * h);
  const double size = std::max({std::abs(from_graph), std::abs(from_differences), 1e-3 * scale, 1e-12});
  EXPECT_LE(std::abs(from_graph - from_differences) / size, kDerivativeTolerance)
      << "derivative " << from_graph << " from the gradient graph, " << from_differences << " from differences";

  if (!row.dynamic || row.inputs[0].constant || row.inputs[0].absent) return;
  const auto dynamic = run_and_record(make_gradient_case(row, inputs, true).model, given, "_dynamic");
  ASSERT_EQ(dynamic.size(), gradients.size());
  for (size_t g = 0; g < gradients.size(); ++g) {
    expect_close(dynamic[g], gradients[g], 1e-12, concat("dynamic against static, gradient ", g));
  }
}

class OpCases : public testing::TestWithParam<OpCase> {};

TEST_P(OpCases, Holds) {
  const OpCase& row = GetParam();
  try {
    const auto inputs = draw_inputs(row);
    check_forward(row, inputs);
    if (row.gradient && !HasFatalFailure()) check_gradient(row, inputs);
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
  const auto names = exercised_operators();
  for (const GradientRule* rule : gradient_rules()) {
    EXPECT_TRUE(names.count(concat(rule->domain, ".", rule->op))) << "no case for the gradient of " << rule->op;
  }
}

bool is_of_narrow_storage(const std::string& op) {
  const auto& rows = function_rows();
  return op.starts_with("Bfloat16") &&
         std::none_of(rows.begin(), rows.end(), [&](const FunctionRow* row) { return op == row->op; });
}

TEST(OpCaseTable, EveryKernelHasACase) {
  auto names = exercised_operators();
  names.insert("onnx_train.Updates");  // made of other functions by outline: merge_updates_test
  for (const Kernel* kernel : Device::cpu().kernels()) {
    if (std::string(kernel->op) == "Fused") continue;  // has no body but what a pass puts there: fused_test.cc
    if (is_of_narrow_storage(kernel->op)) continue;    // likewise: narrow_storage_test.cc
    EXPECT_TRUE(names.count(concat(kernel->domain, ".", kernel->op))) << "no case for the kernel of " << kernel->op;
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpCases, testing::ValuesIn(all_cases()), case_name);
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(OpCases);

}  // namespace

// How a failing row introduces itself.
void PrintTo(const OpCase& row, std::ostream* out) {
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

}  // namespace onnx_train
