// What block attention reads: masks that constants determine, and queries, keys and values in one tensor.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <map>

#include "kernels/cuda/support/device.h"
#include "kernels/device.h"
#include "kernels/lowering/attention/block_attention.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/precision/mixed_precision.h"
#include "runtime/models/build_settings.h"
#include "runtime/session/session.h"
#include "tests/support/device_network.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/sessions.h"

namespace onnx_train::attention_layout_test {
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

Var mask_of(Builder& b, Computed kind, int64_t tokens = kTokens) {
  Tensor positions(DType::kInt64, {tokens, 1});
  for (int64_t i = 0; i < tokens; ++i) positions.set(i, static_cast<double>(i));
  const Var queries = b.constant(positions), keys = b.constant(positions.reshaped({1, tokens}));
  Var seen = keys <= queries;
  if (kind == Computed::kNothing) seen = keys <= b.scalar(DType::kInt64, tokens);
  if (kind == Computed::kBySamples) seen = keys <= b.constant(Tensor::of<int64_t>({2, 1, 1, 1}, {tokens / 2, tokens}));
  if (kind == Computed::kByInput)
    seen = b.op("And", {seen, b.var(b.graph().add_input("seen", {DType::kBool, Dims{2, 1, 1, tokens}}))});
  const Var samples = b.constant(Tensor::of<bool>({2, 1, 1, 1}, {true, true}));
  return where(b.op("And", {samples, seen}), b.scalar(DType::kFloat, 0), b.scalar(DType::kFloat, -kInfinity));
}

// y and the gradient of `qkv`, as exporters and gradient rules write them.
Model model_of(const Example& e) {
  Model model = empty_model();
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

// ---- Queries, keys and values by three products of one tensor

struct Network {
  bool transposed = true;  // weights of [out, in]
  bool has_bias = true, trains_input = true;
  bool reads_query = false;  // another node does
  const char* precision = "bf16";
};

constexpr int64_t kFewTokens = 20, kColumns = kHeads * kWidth, kClasses = 5;

// One layer of attention between a table of embeddings, or the input itself, and a classifier.
Model training_model(const Network& n) {
  Model model = empty_model();
  Builder b(model.graph.get());
  unsigned seed = 0;
  const auto weight = [&](const std::string& name, const Shape& shape) {
    return b.var(b.graph().add_initializer(name, random_tensor(DType::kFloat, shape, ++seed)));
  };
  const auto linear = [&](Var x, const std::string& name, int64_t out) {
    const int64_t in = x.type().shape().back();
    const Var w = weight(name, n.transposed ? Shape{out, in} : Shape{in, out});
    const Var y = matmul(x, n.transposed ? transpose(w, {1, 0}) : w);
    return n.has_bias ? y + weight(name + ".bias", {out}) : y;
  };
  const auto heads = [&](Var x) { return transpose(reshape(x, {2, kFewTokens, kHeads, kWidth}), {0, 2, 1, 3}); };
  Var x = b.var(b.graph().add_input("x", {DType::kFloat, Dims{2, kFewTokens, kColumns}}));
  if (n.trains_input) x = x + linear(x, "first", kColumns);
  const Var q = linear(x, "q", kColumns), k = linear(x, "k", kColumns), v = linear(x, "v", kColumns);
  const Var scores =
      matmul(heads(q), transpose(heads(k), {0, 1, 3, 2})) * 0.1 + mask_of(b, Computed::kCausal, kFewTokens);
  const Var mixed = matmul(b.op("Softmax", {scores}, {{"axis", -1}}), heads(v));
  Var y = x + reshape(transpose(mixed, {0, 2, 1, 3}), {2, kFewTokens, kColumns});
  if (n.reads_query) y = y + q;
  b.set_name("logits");
  b.graph().add_output(linear(reduce_sum(y, {1}, false), "last", kClasses).value());
  BuildOptions options;
  options.loss = "cross_entropy";
  options.precision = parse_precision(n.precision);
  build_training_model(&model, options);
  return model;
}

struct Trained {
  std::map<std::string, int> operators;
  std::vector<double> losses;
  std::map<std::string, Tensor> states;
};

Trained train(const Network& n, const std::vector<std::string>& without) {
  SessionOptions options = on(&cuda_device());
  options.plan.lowering.without = without;
  options.plan.lowering.without.push_back("fuse_elementwise");
  Session session(training_model(n), options);
  Tensor labels(DType::kInt64, {2});
  labels.set(1, 3);
  const TensorMap inputs = {{"x", random_tensor(DType::kFloat, {2, kFewTokens, kColumns}, 99)}, {"labels", labels}};
  Trained result;
  for (const PlanStep& step : session.plan("step", shapes_of(inputs)).steps()) {
    if (step.kernel) ++result.operators[step.node->op()];
  }
  for (int i = 0; i < 3; ++i) result.losses.push_back(session.run("step", inputs).at("loss").at(0));
  result.states = states_of(session);
  return result;
}

int products(const Trained& trained) {
  int count = 0;
  for (const char* op : {"MatMul", "Gemm", "TransposedMatMul"}) {
    if (trained.operators.contains(op)) count += trained.operators.at(op);
  }
  return count;
}

// Tensor cores round dq, dk and dv alike, and only sums of products have another order.
TEST(CudaMergeProjections, ThreeProductsBecomeOneInEachPass) {
  for (const Network& n : {Network{}, Network{.transposed = false}, Network{.has_bias = false},
                           Network{.trains_input = false}, Network{.precision = "fp16"}}) {
    SCOPED_TRACE(testing::Message() << n.transposed << n.has_bias << n.trains_input << n.precision);
    const Trained got = train(n, {}), wanted = train(n, {"merge_projections"});
    EXPECT_EQ(products(wanted) - products(got), n.trains_input ? 6 : 4);
    for (size_t i = 0; i < got.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], wanted.losses[i], 1e-3 * wanted.losses[i]);
    for (const auto& [name, state] : wanted.states) EXPECT_LT(relative_error(got.states.at(name), state), 2e-2) << name;
  }
}

TEST(CudaMergeProjections, LeavesProductsThatOtherNodesRead) {
  const Network n{.reads_query = true};
  EXPECT_EQ(products(train(n, {})), products(train(n, {"merge_projections"})));
}

}  // namespace
}  // namespace onnx_train::attention_layout_test
