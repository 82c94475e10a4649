// ONNX's own node tests on our kernels. tests/kernels/make_node_tests.py writes them; node_ops.txt lists for each
// operator how many of its cases pass, and fewer than that is a failure. UPDATE_GOLDEN=1 rewrites the list.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/paths.h"

namespace onnx_train::node_test {
namespace {

const std::filesystem::path kFolder = node_tests_folder();
const std::filesystem::path kSupported = source_folder() / "tests/kernels/node_ops.txt";

struct NodeCase {
  std::string name, op;
  double rtol, atol;
};

std::vector<NodeCase> read_cases() {
  std::vector<NodeCase> cases;
  std::ifstream file(kFolder / "cases.txt");
  for (NodeCase c; file >> c.name >> c.op >> c.rtol >> c.atol;) cases.push_back(c);
  return cases;
}

std::vector<onnx::TensorProto> read_tensors(const std::filesystem::path& folder, const std::string& kind) {
  std::vector<onnx::TensorProto> tensors;
  for (int i = 0;; ++i) {
    std::ifstream file(folder / concat(kind, "_", i, ".pb"), std::ios::binary);
    if (!file) return tensors;
    tensors.emplace_back();
    if (!tensors.back().ParseFromIstream(&file)) fail(folder.string(), ": ", kind, " ", i, " is no tensor");
  }
}

// "" when the results are those that ONNX expects.
std::string compare(const Tensor& got, const Tensor& want, const NodeCase& c) {
  if (got.dtype() != want.dtype() || got.shape() != want.shape()) {
    return concat(name(got.dtype()), to_string(got.shape()), " instead of ", name(want.dtype()),
                  to_string(want.shape()));
  }
  for (int64_t i = 0; i < got.size(); ++i) {
    const double a = got.at(i), b = want.at(i);
    if (a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= c.atol + c.rtol * std::abs(b)) continue;
    return concat("element ", i, " is ", a, " instead of ", b);
  }
  return "";
}

// How a case is run: its inputs as such, all of them as constants, and imported with these, as `onnx-train` reads a
// file.
enum class Form { kInputs, kConstants, kImported };

std::vector<Tensor> run(onnx::ModelProto proto, const std::vector<onnx::TensorProto>& inputs, Form form) {
  const bool as_constants = form != Form::kInputs;
  onnx::GraphProto& graph = *proto.mutable_graph();
  TensorMap given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const std::string& input = graph.input(static_cast<int>(i)).name();
    if (!as_constants) {
      given[input] = from_proto(inputs[i]);
      continue;
    }
    onnx::TensorProto& constant = *graph.add_initializer();
    constant = inputs[i];
    constant.set_name(input);
  }
  if (as_constants) graph.clear_input();
  Model model = form == Form::kImported ? import_model(std::move(proto)) : from_proto(std::move(proto));
  if (form != Form::kImported) infer_types(model.graph.get());
  std::vector<std::string> names;
  for (const Value* output : model.graph->outputs()) names.push_back(output->name());
  Session session(std::move(model));
  const TensorMap& outputs = session.run("predict", given);
  std::vector<Tensor> results;
  for (const std::string& output : names) results.push_back(outputs.at(output).clone());
  return results;
}

struct Outcome {
  bool ran = false;
  std::string problem;  // why it did not run, or what is wrong with the result
};

// Shapes, axes and the like are inputs in these models, but a plan must know them: what cannot be planned with them
// as inputs is run once more with all inputs as constants. Some operators are others after importing.
Outcome run_case(const NodeCase& c) {
  Outcome outcome;
  std::vector<Tensor> results;
  const std::filesystem::path folder = kFolder / c.name;
  const auto inputs = read_tensors(folder, "input");
  for (const Form form : {Form::kInputs, Form::kConstants, Form::kImported}) {
    try {
      results = run(load_proto((folder / "model.onnx").string()), inputs, form);
      outcome.ran = true;
      break;
    } catch (const std::exception& error) {
      outcome.problem = error.what();
    }
  }
  if (!outcome.ran) return outcome;
  outcome.problem.clear();
  const auto wanted = read_tensors(folder, "output");
  for (size_t i = 0; i < wanted.size() && outcome.problem.empty(); ++i) {
    outcome.problem = compare(results[i], from_proto(wanted[i]), c);
  }
  return outcome;
}

// ---- Backward

bool is_differentiable(const Value* value) {
  return value->dtype() == DType::kFloat || value->dtype() == DType::kDouble;
}

bool has_float(const std::vector<onnx::TensorProto>& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const onnx::TensorProto& t) {
    return t.data_type() == onnx::TensorProto::FLOAT || t.data_type() == onnx::TensorProto::DOUBLE;
  });
}

// Which inputs stay inputs, by which it is differentiated; the others are constants.
enum class Kept { kAll, kFloats, kFirst };

// Runs the gradients of a case for output gradients of 1. Throws Error where there are none.
void run_backward(onnx::ModelProto proto, const std::vector<onnx::TensorProto>& inputs,
                  const std::vector<onnx::TensorProto>& results, Kept kept, bool imported) {
  onnx::GraphProto& graph = *proto.mutable_graph();
  const auto given = graph.input();
  graph.clear_input();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const auto& input = given[static_cast<int>(i)];
    if (kept == Kept::kAll || (kept == Kept::kFloats && has_float({inputs[i]})) || (kept == Kept::kFirst && i == 0)) {
      *graph.add_input() = input;
      continue;
    }
    onnx::TensorProto& constant = *graph.add_initializer();
    constant = inputs[i];
    constant.set_name(input.name());
  }
  TensorMap values;
  for (size_t i = 0; i < inputs.size(); ++i) values[given[static_cast<int>(i)].name()] = from_proto(inputs[i]);
  Model model = imported ? import_model(std::move(proto)) : from_proto(std::move(proto));
  if (!imported) infer_types(model.graph.get());
  Graph* g = model.graph.get();
  std::vector<Value*> outputs, dy, by;
  for (Value* input : g->inputs()) {
    if (is_differentiable(input)) by.push_back(input);
  }
  for (size_t i = 0; i < g->outputs().size(); ++i) {
    Value* output = g->outputs()[i];
    if (!is_differentiable(output)) continue;
    outputs.push_back(output);
    dy.push_back(g->add_input(concat("dy", dy.size()), output->type()));
    values[dy.back()->name()] = Tensor::full(output->dtype(), from_proto(results.at(i)).shape(), 1);
  }
  g->set_outputs({});
  if (outputs.empty() || by.empty()) fail("nothing to differentiate");
  std::vector<std::string> names;
  for (Value* gradient : add_gradients(g, outputs, dy, by)) {
    if (!gradient) continue;
    g->add_output(gradient);
    names.push_back(gradient->name());
  }
  if (names.empty()) return;  // it is zero
  TensorMap fed;
  for (const Value* input : g->inputs()) fed[input->name()] = values.at(input->name());
  Session session(std::move(model));
  session.run("predict", fed);
}

std::string why_not_backward(const NodeCase& c) {
  const std::filesystem::path folder = kFolder / c.name;
  const auto inputs = read_tensors(folder, "input"), results = read_tensors(folder, "output");
  std::string problem;
  for (const bool imported : {false, true}) {
    for (const Kept kept : {Kept::kAll, Kept::kFloats, Kept::kFirst}) {
      try {
        run_backward(load_proto((folder / "model.onnx").string()), inputs, results, kept, imported);
        return "";
      } catch (const std::exception& error) {
        if (problem.empty()) problem = error.what();
      }
    }
  }
  return problem;
}

std::map<std::string, int> read_supported() {
  std::map<std::string, int> supported;
  std::ifstream file(kSupported);
  std::string op;
  for (int count; file >> op >> count;) supported[op] = count;
  return supported;
}

void write_supported(const std::map<std::string, int>& passed) {
  std::ofstream file(kSupported);
  for (const auto& [op, count] : passed) file << op << ' ' << count << '\n';
}

TEST(NodeTests, OfOnnxPass) {
  const auto cases = read_cases();
  ASSERT_FALSE(cases.empty()) << "no cases in " << kFolder << "; they are written by: .deps/venv/bin/python "
                              << "tests/kernels/make_node_tests.py " << kFolder.string();
  std::map<std::string, int> passed;
  std::map<std::string, std::string> without;  // operator -> why one of its cases does not run
  int count = 0;
  for (const NodeCase& c : cases) {
    const Outcome outcome = run_case(c);
    if (!outcome.ran) {
      without.emplace(c.op, outcome.problem);
      if (std::getenv("NODE_TESTS_VERBOSE")) std::cout << c.name << ": " << outcome.problem << '\n';
    } else if (outcome.problem.empty()) {
      ++count;
      ++passed[c.op];
    } else {
      ADD_FAILURE() << c.name << ": " << outcome.problem;
    }
  }
  std::cout << count << " of " << cases.size() << " of ONNX's node tests pass, of " << passed.size()
            << " operators. Not run, all or some cases of:";
  for (const auto& [op, problem] : without) std::cout << ' ' << op;
  std::cout << '\n';
  if (std::getenv("UPDATE_GOLDEN")) return write_supported(passed);
  ASSERT_FALSE(read_supported().empty()) << kSupported << " names no operator";
  for (const auto& [op, expected] : read_supported()) {
    EXPECT_GE(passed[op], expected) << op << " passed " << expected << " cases before: " << without[op];
  }
}

TEST(NodeTests, OfOnnxHaveGradients) {
  int count = 0, of = 0;
  std::set<std::string> without;
  for (const NodeCase& c : read_cases()) {
    const std::filesystem::path folder = kFolder / c.name;
    if (!has_float(read_tensors(folder, "input")) || !has_float(read_tensors(folder, "output"))) continue;
    ++of;
    const std::string problem = why_not_backward(c);
    count += problem.empty();
    if (problem.empty()) continue;
    without.insert(c.op);
    if (std::getenv("NODE_TESTS_VERBOSE")) std::cout << c.name << ": " << problem << '\n';
  }
  std::cout << count << " of " << of << " of ONNX's node tests with floats run backward. Not all of:";
  for (const std::string& op : without) std::cout << ' ' << op;
  std::cout << '\n';
  EXPECT_GE(count, of * 0.98);
}

}  // namespace
}  // namespace onnx_train::node_test
