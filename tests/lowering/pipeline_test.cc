// The table of lowering passes: its order, its folders, and training without any one of them.
#include "kernels/lowering/pipeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <set>
#include <sstream>

#include "kernels/device.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/passes.h"
#include "runtime/session/session.h"
#include "tests/support/paths.h"
#include "tests/support/run_node.h"
#include "tests/support/transformer.h"

namespace onnx_train::pipeline_test {
namespace {

using Table = std::vector<LoweringPass>;

const LoweringOptions kOff = {.on = false, .without = {}};

// Each need of a pass that no earlier pass has the name of.
std::string unmet_needs(const Table& table) {
  std::string unmet;
  std::set<std::string> earlier;
  for (const LoweringPass& pass : table) {
    for (const char* need : pass.needs) {
      if (!earlier.count(need)) unmet += concat(pass.name, " needs ", need, "\n");
    }
    earlier.insert(pass.name);
  }
  return unmet;
}

// The positions at which the table has a pass of this name.
std::vector<size_t> places_of(const Table& table, const std::string& name) {
  std::vector<size_t> places;
  for (size_t i = 0; i < table.size(); ++i) {
    if (table[i].name == name) places.push_back(i);
  }
  return places;
}

TEST(LoweringTable, EachNeedIsAPass) {
  for (const LoweringPass& pass : lowering_table()) {
    for (const char* need : pass.needs) EXPECT_FALSE(places_of(lowering_table(), need).empty()) << need;
  }
}

TEST(LoweringTable, EachPassRunsAfterWhatItNeeds) { EXPECT_EQ(unmet_needs(lowering_table()), ""); }

TEST(LoweringTable, APassBeforeWhatItNeedsIsFound) {
  const Table& table = lowering_table();
  int swapped = 0;
  for (size_t i = 0; i < table.size(); ++i) {
    for (const std::string need : table[i].needs) {
      const std::vector<size_t> places = places_of(table, need);
      if (places.size() > 1) continue;  // another pass of the name may still run before
      Table other = table;
      std::swap(other[i], other[places[0]]);
      EXPECT_NE(unmet_needs(other).find(concat(table[i].name, " needs ", need)), std::string::npos);
      ++swapped;
    }
  }
  EXPECT_GT(swapped, 30);
}

TEST(LoweringTable, ThePassesOfAPhaseFollowEachOther) {
  std::set<std::string> begun;
  std::string phase;
  for (const LoweringPass& pass : lowering_table()) {
    const bool begins = pass.phase != phase;
    EXPECT_TRUE(!begins || begun.insert(pass.phase).second) << pass.phase << " begins again";
    phase = pass.phase;
  }
}

TEST(LoweringTable, EachPassIsInTheFolderOfItsPhase) {
  const std::filesystem::path root = source_folder() / "kernels/lowering";
  std::map<std::string, std::string> folders;  // by the name of a function
  const std::regex definition(R"(^(?:bool|Recomputation) (\w+)\(Model& model.*\{)");
  for (const auto& entry : std::filesystem::recursive_directory_iterator(root)) {
    if (entry.path().extension() != ".cc") continue;
    std::ifstream file(entry.path());
    for (std::string line; std::getline(file, line);) {
      std::smatch found;
      if (std::regex_search(line, found, definition)) folders[found[1]] = entry.path().parent_path().filename();
    }
  }
  for (const LoweringPass& pass : lowering_table()) {
    // What keeps the graph in order runs in later phases, too.
    if (pass.name == std::string("remove_dead_nodes")) continue;
    EXPECT_EQ(folders[pass.name], pass.phase) << pass.name;
  }
}

// What docs/lowering.md says of the numbers of a pass: the last cell of the row that names it.
std::string documented_numbers(const std::string& pass) {
  std::ifstream page(source_folder() / "docs/lowering.md");
  for (std::string line; std::getline(page, line);) {
    const size_t end = line.rfind(" |"), begin = line.rfind("| ", end == line.npos ? end : end - 1);
    const size_t name = line.find(concat("`", pass, "`"));
    if (line.starts_with("| ") && name != line.npos && name < begin) return line.substr(begin + 2, end - begin - 2);
  }
  return "no row";
}

TEST(LoweringTable, TheDocumentationSaysWhichPassesLeaveTheBits) {
  for (const LoweringPass& pass : lowering_table()) {
    const std::string said = documented_numbers(pass.name), numbers = pass.numbers;
    EXPECT_NE(said, "no row") << pass.name;
    EXPECT_EQ(said.starts_with(kEqualInBits), !numbers.empty()) << pass.name << ": " << said;
    EXPECT_EQ(said.find("grad_norm") != said.npos, numbers == kEqualButNorm) << pass.name << ": " << said;
  }
}

TEST(LoweringTable, WhatEveryPlanNeedsCannotBeLeftOut) {
  const std::set<std::string> optional = optional_passes(Device::cpu());
  for (const char* needed : {"fold_constants", "expand_functions", "remove_dead_nodes"}) {
    EXPECT_FALSE(optional.count(needed)) << needed;
    EXPECT_THROW(lowering_passes(Device::cpu(), {.without = {needed}}), Error);
  }
  EXPECT_THROW(lowering_passes(Device::cpu(), {.without = {"merge_casts"}}), Error);  // a pass of GPUs
  for (const Pass& pass : lowering_passes(Device::cpu(), kOff)) EXPECT_FALSE(optional.count(pass.name));
  EXPECT_EQ(lowering_passes(Device::cpu(), {.without = {"fold-transposes"}}).size() + 1,
            lowering_passes(Device::cpu(), {}).size());
}

// ---- Training without a pass

struct Network {
  std::string name;
  Model model;
  TensorMap batch;
  double tolerance;  // of losses, relative
};

Model built(Model model, Precision precision, const std::string& loss, const std::vector<std::string>& freeze = {}) {
  BuildOptions options;
  options.precision = precision;
  options.loss = loss;
  options.optimizer = "sgd";
  options.freeze = freeze;
  build_training_model(&model, options);
  return model;
}

Network transformer(Precision precision, int64_t samples, const TransformerSizes& sizes, double tolerance) {
  const Shape shape = {samples, sizes.tokens};
  Tensor tokens(DType::kInt64, shape), labels(DType::kInt64, shape);
  for (int64_t i = 0; i < tokens.size(); ++i) {
    tokens.set(i, static_cast<double>(i * 7 % sizes.vocabulary));
    labels.set(i, static_cast<double>(i * 5 % sizes.vocabulary));
  }
  return {concat("transformer of ", sizes.tokens, " tokens"),
          built(make_transformer(sizes), precision, "cross_entropy", {"*mask"}),
          {{"tokens", tokens}, {"labels", labels}},
          tolerance};
}

// x to y in bfloat16; all other inputs of the text are weights.
Network rounded(const std::string& name, const char* text) {
  Model model = from_text(text);
  Graph& graph = *model.graph;
  unsigned seed = 1;
  for (Value* input : std::vector<Value*>(graph.inputs())) {
    if (input->name() == "x") continue;
    const std::string weight_name = input->name();
    Tensor tensor = random_tensor(DType::kFloat, input->type().shape(), ++seed);
    for (int64_t i = 0; weight_name == "variance" && i < tensor.size(); ++i) tensor.set(i, tensor.at(i) + 1.5);
    Value* weight = graph.add_initializer(graph.unique_name("weight"), tensor);
    graph.replace(input, weight);
    graph.remove_input(input);
    graph.rename(weight, weight_name);
  }
  infer_types(&graph);
  const auto random = [&](const char* value, unsigned number) {
    return random_tensor(DType::kFloat, graph.find(value)->type().shape(), number);
  };
  TensorMap batch = {{"x", random("x", 77)}, {"labels", random("y", 78)}};
  return {name, built(std::move(model), Precision::kBfloat16, "mse"), std::move(batch), 2e-3};
}

std::vector<Network> networks() {
  std::vector<Network> networks;
  networks.push_back(transformer(Precision::kBfloat16, 2, {.blocks = 1, .tokens = 8, .vocabulary = 64}, 2e-3));
  // Enough tokens for attention to run block by block.
  networks.push_back(transformer(Precision::kFloat32, 1, {.blocks = 1, .tokens = 256, .vocabulary = 512}, 1e-5));
  networks.push_back(rounded("images", R"(<ir_version: 10, opset_import: ["" : 21]>
      g (float[4, 4, 12, 12] x, float[8, 4, 3, 3] w, float[8] scale, float[8] shift, float[8] mean, float[8] variance,
         float[8, 8, 3, 3] w2) => (float[4, 8, 12, 12] y) {
        zeros = Constant<value = float[8] {0, 0, 0, 0, 0, 0, 0, 0}>()
        c = Conv<pads = [1, 1, 1, 1]>(x, w, zeros)
        n = BatchNormalization(c, scale, shift, mean, variance)
        r = Relu(n)
        y = Conv<pads = [1, 1, 1, 1]>(r, w2)
      })"));
  networks.push_back(rounded("recurrence", R"(<ir_version: 10, opset_import: ["" : 21]>
      g (float[6, 4, 8] x, float[1, 64, 8] w, float[1, 64, 16] r) => (float[6, 1, 4, 16] y) {
        y = LSTM<hidden_size = 16>(x, w, r)
      })"));
  return networks;
}

// The losses of three steps. Adds to `changing` the passes that changed the plan's graph.
std::vector<double> losses(const Network& network, const LoweringOptions& lowering,
                           std::set<std::string>* changing = nullptr) {
  SessionOptions options;
  options.device = &Device::cpu();
  options.plan.lowering = lowering;
  Session session(clone(network.model), options);
  std::vector<double> found;
  for (int i = 0; i < 3; ++i) found.push_back(session.run("step", network.batch).at("loss").at(0));
  for (const PassTiming& pass : session.plan("step", shapes_of(network.batch)).passes()) {
    if (changing && pass.changed) changing->insert(pass.name);
  }
  return found;
}

TEST(LoweringTable, TrainingIsTheSameWithoutAnyOnePass) {
  std::set<std::string> changing;
  for (const Network& network : networks()) {
    const std::vector<double> expected = losses(network, {}, &changing);
    EXPECT_NE(expected[0], expected[2]) << network.name << " does not learn";
    const auto expect_near = [&](const std::vector<double>& found, const std::string& variant) {
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NEAR(found[i], expected[i], network.tolerance * std::abs(expected[i])) << network.name << variant;
      }
    };
    for (const std::string& pass : optional_passes(Device::cpu())) {
      expect_near(losses(network, {.without = {pass}}), ", without " + pass);
    }
    expect_near(losses(network, kOff), ", without all");
  }
  // The others have tests of their own, or need what these networks or some processors do not have.
  for (const char* pass :
       {"drop_zero_biases", "round_once", "fuse_batch_normalization", "channels_last", "fold_transposes",
        "block_attention", "sparse_updates", "assign_types", "narrow_storage", "fuse_elementwise", "merge_updates"}) {
    EXPECT_TRUE(changing.count(pass)) << pass << " has nothing to change";
  }
}

}  // namespace
}  // namespace onnx_train::pipeline_test
