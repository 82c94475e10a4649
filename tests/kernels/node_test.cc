// ONNX's own node tests on our kernels. tests/kernels/make_node_tests.py writes them; node_ops.txt lists for each
// operator how many of its cases pass, and fewer than that is a failure. UPDATE_GOLDEN=1 rewrites the list.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>
#include <sstream>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/loading.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/session.h"

namespace onnx_train {
namespace {

const std::filesystem::path kFolder = ONNX_TRAIN_NODE_TESTS;
const std::filesystem::path kSupported =
    std::filesystem::path(ONNX_TRAIN_SOURCE_DIR) / "tests" / "kernels" / "node_ops.txt";

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

std::vector<Tensor> run(onnx::ModelProto proto, const std::vector<onnx::TensorProto>& inputs, bool as_constants) {
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
  Model model = from_proto(std::move(proto));
  infer_types(model.graph.get());
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
// as inputs is run once more with all inputs as constants.
Outcome run_case(const NodeCase& c) {
  Outcome outcome;
  std::vector<Tensor> results;
  const std::filesystem::path folder = kFolder / c.name;
  const auto inputs = read_tensors(folder, "input");
  for (bool as_constants : {false, true}) {
    try {
      results = run(load_proto((folder / "model.onnx").string()), inputs, as_constants);
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

}  // namespace
}  // namespace onnx_train
