// What block attention reads: masks that constants determine, and queries, keys and values in one tensor.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>

#include "kernels/device.h"
#include "kernels/lowering/block_attention.h"
#include "kernels/lowering/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/ir/inference.h"
#include "runtime/session.h"
#include "tests/run_node.h"

namespace onnx_train {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr int64_t kTokens = 260, kHeads = 3, kWidth = 16;

// What hides the keys that a query does not see, and is computed in the graph.
enum class Computed {
  kCausal,     // a comparison of positions, for each batch element
  kNothing,    // of constants, and hides nothing
  kBySamples,  // of constants that differ between batch elements
  kByInput
};

struct Example {
  Computed mask = Computed::kCausal;
  int64_t split_axis = 2;                    // of [2, tokens, 3 heads width] or, with 1, of [2, 3 tokens, heads width]
  std::array<int, 3> order = {0, 1, 2};      // which outputs of the Split are q, k and v
  std::array<int64_t, 3> sizes = {1, 1, 1};  // of the outputs, in units of the heads; the first ones are used
};

Var mask_of(Builder& b, Computed kind) {
  Tensor positions(DType::kInt64, {kTokens, 1});
  for (int64_t i = 0; i < kTokens; ++i) positions.set(i, static_cast<double>(i));
  const Var queries = b.constant(positions), keys = b.constant(positions.reshaped({1, kTokens}));
  Var seen = keys <= queries;
  if (kind == Computed::kNothing) seen = keys <= b.scalar(DType::kInt64, kTokens);
  if (kind == Computed::kBySamples)
    seen = keys <= b.constant(Tensor::of<int64_t>({2, 1, 1, 1}, {kTokens / 2, kTokens}));
  if (kind == Computed::kByInput)
    seen = b.op("And", {seen, b.var(b.graph().add_input("seen", {DType::kBool, Dims{2, 1, 1, kTokens}}))});
  const Var samples = b.constant(Tensor::of<bool>({2, 1, 1, 1}, {true, true}));
  return where(b.op("And", {samples, seen}), b.scalar(DType::kFloat, 0), b.scalar(DType::kFloat, -kInfinity));
}

// y and the gradient of `qkv`, as exporters and gradient rules write them.
Model model_of(const Example& e) {
  Model model;
  model.shell().set_ir_version(10);
  model.context->opsets[""] = 21;
  Graph& graph = *model.graph;
  Builder b(&graph);
  const int64_t columns = kHeads * kWidth, units = e.sizes[0] + e.sizes[1] + e.sizes[2];
  const bool by_columns = e.split_axis == 2;
  Value* qkv = graph.add_input(
      "qkv", {DType::kFloat, by_columns ? Dims{2, kTokens, units * columns} : Dims{2, units * kTokens, columns}});
  std::vector<int64_t> sizes;
  for (const int64_t size : e.sizes) sizes.push_back(size * (by_columns ? columns : kTokens));
  const std::vector<Var> parts = b.ops("Split", 3, {b.var(qkv), b.ints(sizes)}, {{"axis", e.split_axis}});
  const auto heads = [&](int i) {
    Var part = parts[static_cast<size_t>(e.order[static_cast<size_t>(i)])];
    if (e.sizes[1] != 1) part = slice(part, 0, columns, 2);
    return transpose(reshape(part, {2, kTokens, kHeads, kWidth}), {0, 2, 1, 3});
  };
  const Var scores = matmul(heads(0), transpose(heads(1), {0, 1, 3, 2})) * 0.25 + mask_of(b, e.mask);
  Var p = b.op("Softmax", {scores}, {{"axis", -1}});
  p = where(b.op("IsNaN", {p}), b.scalar(DType::kFloat, 0), p);
  b.set_name("y");
  Value* y = transpose(matmul(p, heads(2)), {0, 2, 1, 3}).value();
  graph.add_output(y);
  Value* dy = graph.add_input("dy", {DType::kFloat, Dims{2, kTokens, kHeads, kWidth}});
  for (Value* gradient : add_gradients(&graph, std::vector<Value*>{y}, {dy}, {qkv})) graph.add_output(gradient);
  return model;
}

TensorMap inputs_of(const Example& e) {
  const bool by_columns = e.split_axis == 2;
  const int64_t units = e.sizes[0] + e.sizes[1] + e.sizes[2], columns = kHeads * kWidth;
  TensorMap inputs = {{"qkv", random_tensor(DType::kFloat, by_columns ? Shape{2, kTokens, units * columns}
                                                                      : Shape{2, units * kTokens, columns})},
                      {"dy", random_tensor(DType::kFloat, {2, kTokens, kHeads, kWidth}, 2)}};
  if (e.mask == Computed::kByInput) {
    Tensor seen(DType::kBool, {2, 1, 1, kTokens});
    for (int64_t i = 0; i < kTokens; ++i) seen.set(i, i > 5);  // and nothing of the second: all of its rows are hidden
    inputs["seen"] = seen;
  }
  return inputs;
}

struct Step {
  std::map<std::string, int> operators;
  std::map<std::string, Tensor> results;
  std::vector<Shape> masks;  // of both attentions; empty where there is none
};

Step run(const Example& e, const std::vector<std::string>& without) {
  SessionOptions options;
  options.plan.lowering.without = without;
  options.plan.lowering.without.push_back("fuse_elementwise");
  Session session(model_of(e), options);
  const TensorMap inputs = inputs_of(e);
  Step result;
  for (const auto& [name, tensor] : session.run("predict", inputs)) result.results[name] = tensor.clone();
  const Plan& plan = session.plan("predict", shapes_of(inputs));
  for (const PlanStep& step : plan.steps()) {
    ++result.operators[step.node->op()];
    const bool backward = step.node->op() == "BlockAttentionGrad";
    if (!backward && step.node->op() != "BlockAttention") continue;
    const Value* mask = step.node->input(backward ? 7 : 3);
    result.masks.push_back(mask ? mask->type().shape() : Shape{});
  }
  return result;
}

void expect_same_bits(const Step& got, const Step& wanted) {
  for (const auto& [name, tensor] : wanted.results)
    EXPECT_EQ(std::memcmp(got.results.at(name).data<float>(), tensor.data<float>(), tensor.bytes()), 0) << name;
}

TEST(SimplifyMasks, OneOfConstantsIsKnownWhenThePlanIsMade) {
  const Step got = run({}, {}), computed = run({}, {"simplify_masks"});
  EXPECT_EQ(got.masks, std::vector<Shape>(2, {kTokens, kTokens}));
  for (const char* op : {"And", "Where", "LessOrEqual"}) EXPECT_EQ(got.operators.count(op), 0u) << op;
  EXPECT_EQ(computed.masks, std::vector<Shape>(2, {2, 1, kTokens, kTokens}));
  expect_same_bits(got, computed);
}

TEST(SimplifyMasks, OneThatHidesNothingGoes) {
  const Example e{.mask = Computed::kNothing};
  const Step got = run(e, {});
  EXPECT_EQ(got.masks, std::vector<Shape>(2));
  expect_same_bits(got, run(e, {"simplify_masks"}));
}

TEST(SimplifyMasks, LeavesMasksThatDifferBetweenSamplesOrDependOnAnInput) {
  for (const Computed kind : {Computed::kBySamples, Computed::kByInput}) {
    const Step got = run({.mask = kind}, {}), wanted = run({.mask = kind}, {"simplify_masks"});
    EXPECT_EQ(got.masks[0][0], 2);
    EXPECT_EQ(got.masks, wanted.masks);
    expect_same_bits(got, wanted);
  }
}

Model lowered(const Example& e, bool makes_finite) {
  Model model = model_of(e);
  infer_types(model.graph.get());
  fold_transposes(model);
  block_attention(model, 256);
  simplify_masks(model, makes_finite);
  return model;
}

TEST(SimplifyMasks, MakesThemFiniteWhereRowsAreGuarded) {
  const Example e{.mask = Computed::kByInput};
  for (const bool finite : {false, true}) {
    const Model model = lowered(e, finite);
    EXPECT_EQ(count_nodes(model, "Max"), finite);  // one for the forward and the backward pass
    for (const Node* node = model.graph->first(); node; node = node->next()) {
      if (node->op() != "BlockAttention") continue;
      EXPECT_EQ(node->attr("hidden", 0.0f), finite ? -1e29f : -kInfinity);
    }
  }
}

TEST(PackAttention, NeitherSplitsNorConcatenates) {
  for (const Computed mask : {Computed::kCausal, Computed::kByInput}) {
    const Step got = run({.mask = mask}, {}), wanted = run({.mask = mask}, {"pack_attention"});
    for (const char* op : {"Split", "Concat"}) {
      EXPECT_EQ(got.operators.count(op), 0u) << op;
      EXPECT_EQ(wanted.operators.at(op), 1) << op;
    }
    expect_same_bits(got, wanted);
  }
}

TEST(PackAttention, LeavesOtherPartsAlone) {
  const Example swapped{.order = {1, 0, 2}}, by_tokens{.split_axis = 1}, unequal{.sizes = {1, 2, 1}};
  for (const Example& e : {swapped, by_tokens, unequal}) {
    const Step got = run(e, {});
    EXPECT_EQ(got.operators.at("Split"), 1);
    EXPECT_EQ(got.operators.at("BlockAttention"), 1);
    expect_same_bits(got, run(e, {"pack_attention"}));
  }
}

}  // namespace
}  // namespace onnx_train
