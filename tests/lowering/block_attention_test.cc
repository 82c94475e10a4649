// The pass alone, by what it finds and what it leaves; and the kernels in whole steps, against the nodes it replaces.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>

#include "kernels/device.h"
#include "kernels/host.h"
#include "kernels/lowering/attention/block_attention.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/gradients/gradient.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "runtime/session/session.h"
#include "tests/support/allocations.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train::block_attention_test {
namespace {

constexpr double kTolerance = 1e-6;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// An attention, [2, tokens, 3, 16] from q, k and v to y, written as exporters do.
struct Example {
  int64_t tokens = 300;
  double scale_q = 1, scale_k = 1, scale = 1;  // of q, of k, or behind their product
  Tensor added = {}, selecting = {};           // masks
  bool keeps_true = true;                      // whether the second keeps scores where it is true
  double fill = -kInfinity;
  bool guarded = false, trains = true;
  bool reads_scores = false, reads_probabilities = false, trains_mask = false, drops = false;
};

Var times(Var x, double factor) { return factor == 1 ? x : x * factor; }

Var scores_of(const Example& e, Var q, Var k, std::vector<Value*>* with_respect_to) {
  Builder& b = q.builder();
  Var scores = times(matmul(times(transpose(q, {0, 2, 1, 3}), e.scale_q), times(transpose(k, {0, 2, 3, 1}), e.scale_k)),
                     e.scale);
  if (!e.added.empty()) {
    Value* mask = b.graph().add_input("mask", {DType::kFloat, Dims(e.added.shape().begin(), e.added.shape().end())});
    if (e.trains_mask) with_respect_to->push_back(mask);
    scores = scores + b.var(mask);
  }
  if (!e.selecting.empty()) {
    const Dims dims(e.selecting.shape().begin(), e.selecting.shape().end());
    const Var mask = b.var(b.graph().add_input("mask", {DType::kBool, dims}));
    const Var fill = b.scalar(DType::kFloat, e.fill);
    scores = e.keeps_true ? where(mask, scores, fill) : where(mask, fill, scores);
  }
  return scores;
}

// Its outputs are y and, when it trains, the gradients of q, k and v.
Model model_of(const Example& e) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const TensorType type{DType::kFloat, Dims{2, e.tokens, 3, 16}};
  std::vector<Value*> inputs;
  for (const char* name : {"q", "k", "v"}) inputs.push_back(graph.add_input(name, type));
  const Var v = b.var(inputs[2]);
  const Var scores = scores_of(e, b.var(inputs[0]), b.var(inputs[1]), &inputs);
  Var p = b.op("Softmax", {scores}, {{"axis", -1}});
  if (e.reads_scores) graph.add_output(scores.value());
  if (e.reads_probabilities) graph.add_output(reduce_sum(p, {3}).value());
  if (e.guarded) p = where(b.op("IsNaN", {p}), b.scalar(DType::kFloat, 0), p);
  if (e.drops) p = p * b.var(graph.add_input("dropped", {DType::kFloat, Dims{2, 3, e.tokens, e.tokens}}));
  const Var mixed = matmul(p, transpose(v, {0, 2, 1, 3}));
  b.set_name("y");
  Value* y = transpose(mixed, {0, 2, 1, 3}).value();
  graph.add_output(y);
  if (!e.trains) return model;
  Value* dy = graph.add_input("dy", type);
  for (Value* gradient : add_gradients(&graph, std::vector<Value*>{y}, {dy}, inputs)) graph.add_output(gradient);
  return model;
}

std::map<std::string, int> operators_of(const Graph& graph) {
  std::map<std::string, int> count;
  for (const Node* node = graph.first(); node; node = node->next()) ++count[node->op()];
  return count;
}

std::map<std::string, int> lowered(const Example& e) {
  Model model = model_of(e);
  infer_types(model.graph.get());
  fold_transposes(model);
  block_attention(model, 256);
  return operators_of(*model.graph);
}

Tensor causal_mask(DType dtype, int64_t tokens, double seen, double hidden) {
  Tensor mask(dtype, {tokens, tokens});
  for (int64_t i = 0; i < mask.size(); ++i) mask.set(i, i % tokens <= i / tokens ? seen : hidden);
  return mask;
}

Example causal(double hidden = -kInfinity, bool guarded = false) {
  return {.scale_q = 0.25, .added = causal_mask(DType::kFloat, 300, 0, hidden), .guarded = guarded};
}

// All that the pass is to find, with masks of different kinds.
std::vector<Example> examples() {
  const Tensor seen = causal_mask(DType::kBool, 300, 1, 0), hidden = causal_mask(DType::kBool, 300, 0, 1);
  Tensor padding(DType::kFloat, {2, 1, 1, 300}), unseen = causal_mask(DType::kFloat, 300, 0, -kInfinity);
  for (int64_t i = 0; i < padding.size(); ++i) padding.set(i, i % 300 >= 100 + 130 * (i / 300) ? -1e9 : 0);
  for (int64_t i = 0; i < 300; ++i) unseen.set(7 * 300 + i, -kInfinity);  // a query that sees nothing
  Tensor finite = unseen.clone();
  for (int64_t i = 0; i < finite.size(); ++i) finite.set(i, std::max(finite.at(i), -3.4028234663852886e38));
  return {
      {},
      {.scale_q = 0.25},
      {.scale_k = 0.25},
      {.scale = 0.25},
      {.scale_q = 0.5, .scale_k = 0.5},
      {.scale_q = 0.5, .scale = 0.5},
      causal(),
      causal(-1e9),
      causal(-3.4028234663852886e38, true),
      causal(-2),  // hides nothing
      {.scale = 0.25, .added = padding},
      {.selecting = seen},
      {.scale_q = 0.25, .selecting = hidden, .keeps_true = false, .fill = -1e9},
      {.added = unseen},
      {.added = unseen, .guarded = true},
      {.added = finite, .guarded = true},
  };
}

TEST(BlockAttention, FindsWhatExportersWrite) {
  int number = 0;
  for (Example e : examples()) {
    SCOPED_TRACE(number++);
    auto count = lowered(e);
    EXPECT_EQ(count["BlockAttention"], 1);
    EXPECT_EQ(count["BlockAttentionGrad"], 1);
    EXPECT_EQ(count["TransposedMatMul"] + count["MatMul"] + count["Softmax"] + count["SoftmaxGrad"], 0);
    e.trains = false;
    count = lowered(e);
    EXPECT_EQ(count["BlockAttention"], 1);
    EXPECT_EQ(count["TransposedMatMul"] + count["MatMul"] + count["Softmax"], 0);
  }
}

TEST(BlockAttention, LeavesNothingBesideItsCallsInAnAttentionOfHeads) {
  auto count = lowered(causal(-kInfinity, true));
  EXPECT_EQ(count.size(), 2u);  // scale, guard and the gradients' transposes are inside
}

TEST(BlockAttention, LeavesAloneWhatSomebodyElseReads) {
  Example scores = causal(), probabilities = causal(), mask = causal(), dropout = causal();
  scores.reads_scores = probabilities.reads_probabilities = mask.trains_mask = dropout.drops = true;
  for (Example e : {scores, probabilities, mask, dropout}) {
    EXPECT_EQ(lowered(e)["BlockAttention"], 0);
    e.trains = e.trains_mask;
    EXPECT_EQ(lowered(e)["BlockAttention"], 0);
  }
}

TEST(BlockAttention, IsForManyKeysOnly) {
  Example e{.tokens = 255};
  EXPECT_EQ(lowered(e)["BlockAttention"], 0);
  e.tokens = 256;
  EXPECT_EQ(lowered(e)["BlockAttention"], 1);
}

TensorMap inputs_of(const Example& e) {
  TensorMap inputs;
  for (const char* name : {"q", "k", "v", "dy"}) {
    if (e.trains || std::string(name) != "dy") {
      inputs[name] = random_tensor(DType::kFloat, {2, e.tokens, 3, 16}, static_cast<unsigned>(name[0]));
    }
  }
  if (!e.added.empty()) inputs["mask"] = e.added;
  if (!e.selecting.empty()) inputs["mask"] = e.selecting;
  return inputs;
}

std::map<std::string, Tensor> run(const Example& e, bool blocks, int threads, const TensorMap& inputs) {
  const int before = num_threads();
  set_num_threads(threads);
  SessionOptions options;
  if (!blocks) options.plan.lowering.without = {"block_attention"};
  Session session(model_of(e), options);
  std::map<std::string, Tensor> results;
  for (const auto& [name, tensor] : session.run("predict", inputs)) results[name] = tensor.clone();
  EXPECT_EQ(operators_of(*session.plan("predict", shapes_of(inputs)).model().graph)["BlockAttention"], blocks ? 1 : 0);
  set_num_threads(before);
  return results;
}

// In norms; what is not finite (a NaN from one order of operations may be infinite in another) in the same places.
void expect_close(const Tensor& got, const Tensor& wanted, const std::string& what) {
  double difference = 0, norm = 0;
  for (int64_t i = 0; i < wanted.size(); ++i) {
    ASSERT_EQ(std::isfinite(got.at(i)), std::isfinite(wanted.at(i))) << what << ", element " << i;
    if (!std::isfinite(wanted.at(i))) continue;
    difference += std::pow(got.at(i) - wanted.at(i), 2);
    norm += std::pow(wanted.at(i), 2);
  }
  EXPECT_LE(std::sqrt(difference), kTolerance * std::sqrt(norm)) << what;
}

void expect_same_numbers(const Example& e, const TensorMap& inputs) {
  const auto wanted = run(e, false, 1, inputs), one = run(e, true, 1, inputs), two = run(e, true, 2, inputs);
  for (const auto& [name, tensor] : wanted) {
    expect_close(one.at(name), tensor, name);
    EXPECT_EQ(std::memcmp(one.at(name).data<float>(), two.at(name).data<float>(), tensor.bytes()), 0) << name;
  }
}

TEST(BlockAttention, ChangesNoNumbersAndNotABitWithTwoThreads) {
  int number = 0;
  for (const Example& e : examples()) {
    SCOPED_TRACE(number++);
    expect_same_numbers(e, inputs_of(e));
  }
}

// What a tile would have added must be zero for it to be skipped: numbers that are large or undefined prevent that.
TEST(BlockAttention, SkipsNoTileThatCounts) {
  const Example hides = causal(-1e9);
  TensorMap inputs = inputs_of(hides);
  for (const char* name : {"q", "k"}) {
    Tensor large = inputs[name].clone();
    for (int64_t i = 0; i < large.size(); ++i) large.set(i, 3e4 * large.at(i));  // the mask is no more than a hint
    inputs[name] = large;
  }
  const auto wanted = run(hides, false, 1, inputs), got = run(hides, true, 1, inputs);
  EXPECT_LT(relative_error(got.at("y"), wanted.at("y")), 1e-4);

  for (const char* name : {"q", "k", "v", "dy"}) {
    for (const double bad : {std::nan(""), static_cast<double>(kInfinity)}) {
      SCOPED_TRACE(name);
      TensorMap undefined = inputs_of(hides);
      Tensor tensor = undefined[name].clone();
      tensor.set(tensor.size() - 5, bad);  // of the last token: most queries do not see it
      undefined[name] = tensor;
      const auto expected = run(hides, false, 1, undefined), results = run(hides, true, 1, undefined);
      for (const auto& [output, values] : expected) expect_close(results.at(output), values, output);
    }
  }
}

TEST(BlockAttention, AllocatesNothingInAStep) {
  const Example e = causal();
  const TensorMap inputs = inputs_of(e);
  Session session(model_of(e));
  session.run("predict", inputs);
  const size_t allocations = count_allocations(), primitives = count_primitives();
  session.run("predict", inputs);
  EXPECT_EQ(count_allocations(), allocations);
  EXPECT_EQ(count_primitives(), primitives);
}

// No matrix of all scores: twice as many tokens need about twice the memory.
TEST(BlockAttention, MemoryGrowsWithTheNumberOfTokens) {
  const auto bytes = [](int64_t tokens, bool blocks) {
    SessionOptions options;
    if (!blocks) options.plan.lowering.without = {"block_attention"};
    const Example e{.tokens = tokens};
    Session session(model_of(e), options);
    Plan& plan = session.plan("predict", shapes_of(inputs_of(e)));
    return static_cast<double>(plan.arena_bytes() + plan.workspace_bytes());
  };
  EXPECT_LT(bytes(2048, true), 2.2 * bytes(1024, true));
  EXPECT_LT(10 * bytes(2048, true), bytes(2048, false));
}

}  // namespace
}  // namespace onnx_train::block_attention_test
