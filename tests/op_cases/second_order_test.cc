// Rules apply to their own output: for every case with a gradient, the gradient is differentiated again, and agrees
// with differences of the first one in float64. The column "second order" of docs/operators.md is what this test finds:
// it fails where an operator has a second gradient and without_gradient.cc says no, and the other way around.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/gradients/without_gradient.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "runtime/session/session.h"
#include "tests/op_cases/make_case.h"

namespace onnx_train::second_order_test {

namespace {

constexpr double kTolerance = 2e-6, kStep = 1e-4;

double product(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (int64_t i = 0; i < a.size(); ++i) sum += a.at(i) * b.at(i);
  return sum;
}

Tensor drawn_like(const Tensor& like, std::mt19937_64* random) {
  Tensor tensor(DType::kDouble, like.shape());
  std::uniform_real_distribution<double> uniform(-1, 1);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, uniform(*random));
  return tensor;
}

Tensor moved(const Tensor& x, const Tensor& along, double step) {
  Tensor result = x.clone();
  for (int64_t i = 0; i < x.size(); ++i) result.set(i, x.at(i) + step * along.at(i));
  return result;
}

// The first gradients g of a case, and those of Σ v g by the case's inputs and by the gradients dy of its outputs.
struct Twice {
  Model model;
  std::vector<std::string> first, second;  // names of outputs; "" for a gradient that is zero
  std::vector<std::string> by;             // names of inputs, in the order of `second`
};

Twice differentiate_twice(const OpCase& row, const std::vector<Tensor>& inputs) {
  Case made = make_case(row, inputs, DType::kDouble, /*dynamic=*/false);
  Graph& graph = *made.model.graph;
  std::vector<Value*> outputs, dy, by, with_respect_to;
  for (Value* output : made.outputs) {
    if (!is_float(output->dtype())) continue;
    outputs.push_back(output);
    dy.push_back(graph.add_input(concat("dy", dy.size()), output->type()));
  }
  for (size_t i = 0; i < made.inputs.size(); ++i) {
    const Value* input = made.inputs[i];
    const bool smooth = input && input->dtype() == DType::kDouble && row.inputs[i].no_derivative.empty();
    if (smooth && !row.inputs[i].zero_gradient && !row.inputs[i].constant) with_respect_to.push_back(made.inputs[i]);
  }
  graph.set_outputs({});
  Twice twice;
  if (outputs.empty() || with_respect_to.empty()) return twice;
  std::vector<Value*> gradients = add_gradients(&graph, outputs, dy, with_respect_to);
  std::erase(gradients, nullptr);
  if (gradients.empty()) return twice;
  std::vector<Value*> v;
  for (const Value* gradient : gradients) v.push_back(graph.add_input(concat("v", v.size()), gradient->type()));
  by = with_respect_to;
  by.insert(by.end(), dy.begin(), dy.end());
  graph.set_outputs(gradients);  // outputs stay when functions on the way give way to their bodies
  const std::vector<Value*> second = add_gradients(&graph, gradients, v, by);
  for (const Value* gradient : graph.outputs()) twice.first.push_back(gradient->name());
  for (size_t i = 0; i < by.size(); ++i) {
    twice.by.push_back(by[i]->name());
    if (second[i]) graph.add_output(second[i]);
    twice.second.push_back(second[i] ? second[i]->name() : "");
  }
  twice.model = std::move(made.model);
  return twice;
}

// Returns what is wrong; "" if the second gradients are right.
std::string check_twice(const OpCase& row, const std::vector<Tensor>& inputs) {
  Twice twice = differentiate_twice(row, inputs);
  if (twice.by.empty()) return "";
  std::mt19937_64 random(2718);
  TensorMap given;
  for (const Value* input : twice.model.graph->inputs()) {
    if (input->name()[0] != 'x') {
      given[input->name()] = drawn_like(Tensor(DType::kDouble, input->type().shape()), &random);
      continue;
    }
    const auto i = static_cast<size_t>(std::stoi(input->name().substr(1)));
    given[input->name()] = inputs[i].cast(type_in(row.inputs[i], inputs[i], DType::kDouble));
  }
  SessionOptions options;
  options.device = &Device::cpu();
  options.threads = 1;  // tiny tensors: threads would wait for each other
  Session session(std::move(twice.model), options);
  TensorMap found;
  for (const auto& [name, tensor] : session.run("predict", given)) found[name] = tensor.clone();
  const auto loss_at = [&](const std::string& name, const Tensor& along, double step) {
    TensorMap changed = given;
    changed[name] = moved(given.at(name), along, step);
    const TensorMap& outputs = session.run("predict", changed);
    double sum = 0;
    for (size_t k = 0; k < twice.first.size(); ++k)
      sum += product(given.at(concat("v", k)), outputs.at(twice.first[k]));
    return sum;
  };
  std::string wrong;
  for (size_t i = 0; i < twice.by.size(); ++i) {
    const std::string& name = twice.by[i];
    const Tensor along = drawn_like(given.at(name), &random);
    const auto quotient = [&](double step) {
      const double near = loss_at(name, along, step) - loss_at(name, along, -step);
      const double far = loss_at(name, along, 2 * step) - loss_at(name, along, -2 * step);
      return (8 * near - far) / (12 * step);
    };
    const double expected = quotient(kStep), closer = quotient(kStep / 2);
    // The first gradient has no derivative at a jump (a tie of Max), nor at the end of where it is defined (0 to a
    // power).
    if (!std::isfinite(expected) || std::abs(closer) > 1.5 * std::abs(expected) + 1) continue;
    const double computed = twice.second[i].empty() ? 0 : product(found.at(twice.second[i]), along);
    const double norm =
        twice.second[i].empty() ? 0 : std::sqrt(product(found.at(twice.second[i]), found.at(twice.second[i])));
    const double size = std::max({std::abs(expected), std::abs(computed), 1e-3 * norm, 1e-4});
    if (!(std::abs(expected - computed) <= kTolerance * size))
      wrong += concat(" by ", name, ": ", computed, " instead of ", expected, ";");
  }
  return wrong;
}

TEST(SecondOrder, GradientsOfEveryOperatorHaveGradientsAsTheTableSays) {
  std::map<std::string, bool> has;  // by operator: all of its cases
  int checked = 0;
  for (const OpCase& row : all_cases()) {
    if (!row.domain.empty() || !row.gradient || !row.no_derivative.empty()) continue;
    const auto inputs = draw_inputs(row);
    const bool refused_before = find_without_gradient(row.op, /*second_order=*/true) != nullptr;
    try {
      const std::string wrong = check_twice(row, inputs);
      if (!refused_before && !wrong.empty()) ADD_FAILURE() << testing::PrintToString(row) << wrong;
      has.emplace(row.op, true).first->second &= wrong.empty();
    } catch (const Error& error) {
      has[row.op] = false;
      if (!refused_before) ADD_FAILURE() << row.op << ": " << error.what();
    }
    ++checked;
  }
  for (const auto& [op, yes] : has)
    EXPECT_EQ(yes, find_without_gradient(op, /*second_order=*/true) == nullptr) << op << " has a second gradient";
  EXPECT_GT(checked, 300);
}

// What would be wrong where a factor is 0 is refused, whatever the factors are.
TEST(SecondOrder, GradientsOfScatteredProductsAreRefused) {
  int refused = 0;
  for (const OpCase& row : all_cases()) {
    if (!row.op.starts_with("Scatter") || testing::PrintToString(row).find("reduction=mul") == std::string::npos)
      continue;
    try {
      differentiate_twice(row, draw_inputs(row));
      ADD_FAILURE() << testing::PrintToString(row);
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr("has no gradient where a factor is 0; gather the factors"));
      ++refused;
    }
  }
  EXPECT_EQ(refused, 3);
}

}  // namespace
}  // namespace onnx_train::second_order_test
