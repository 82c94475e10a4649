#include "kernels/lowering/memory/recompute.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"
#include "tests/support/small_stack.h"
#include "tests/support/transformer.h"

namespace onnx_train::recompute_test {
namespace {

constexpr TransformerSizes kSizes = {
    .blocks = 3, .width = 32, .heads = 4, .tokens = 32, .vocabulary = 64, .dropout = 0.1f};
constexpr int64_t kBatch = 8;

TensorMap make_batch(int seed) {
  Tensor tokens(DType::kInt64, {kBatch, kSizes.tokens}), labels(DType::kInt64, {kBatch, kSizes.tokens});
  for (int64_t i = 0; i < tokens.size(); ++i) {
    tokens.data<int64_t>()[i] = (7 * i + seed) % kSizes.vocabulary;
    labels.data<int64_t>()[i] = (11 * i + 3 * seed) % kSizes.vocabulary;
  }
  return {{"tokens", tokens}, {"labels", labels}};
}

std::map<std::string, Shape> shapes() {
  return {{"tokens", {kBatch, kSizes.tokens}}, {"labels", {kBatch, kSizes.tokens}}};
}

Session open(size_t memory, const TransformerSizes& sizes = kSizes) {
  SessionOptions options;
  options.plan.memory = memory;
  return Session(make_training_transformer(sizes), options);
}

// The gradients must all be there at the end; what else the arena holds can be recomputed.
size_t gradient_bytes(Session& session) {
  size_t bytes = 0;
  for (const std::string& name : session.state().names()) {
    const size_t i = session.state().index(name);
    if (!name.starts_with("state/")) bytes += static_cast<size_t>(num_elements(session.state().shape(i))) * 4;
  }
  return bytes;
}

TEST(Recompute, HalfTheActivationsGiveTheSameLossesBitForBit) {
  Session whole = open(0);
  const size_t arena = whole.plan("step", shapes()).arena_bytes();
  const size_t gradients = gradient_bytes(whole);
  ASSERT_GT(arena, 2 * gradients);
  const size_t budget = gradients + (arena - gradients) / 2;
  Session half = open(budget);
  const Plan& plan = half.plan("step", shapes());
  EXPECT_LE(plan.arena_bytes(), budget);
  EXPECT_GT(plan.recomputation().nodes, 0u);
  std::printf("arena %zu, gradients %zu, budget %zu, planned %zu, %zu nodes twice\n", arena, gradients, budget,
              plan.arena_bytes(), plan.recomputation().nodes);
  for (int step = 0; step < 5; ++step) {
    const float a = whole.run("step", make_batch(step)).at("loss").data<float>()[0];
    const float b = half.run("step", make_batch(step)).at("loss").data<float>()[0];
    EXPECT_EQ(std::bit_cast<uint32_t>(a), std::bit_cast<uint32_t>(b)) << "step " << step << ": " << a << " and " << b;
  }
  for (const std::string& name : whole.state().names()) {
    const Tensor a = whole.state().get(name), b = half.state().get(name);
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.bytes()), 0) << name;
  }
}

void expect_the_same_loss_within_every_budget(const TransformerSizes& sizes) {
  Session whole = open(0, sizes);
  const size_t arena = whole.plan("step", shapes()).arena_bytes();
  const float expected = whole.run("step", make_batch(0)).at("loss").data<float>()[0];
  size_t met = 0;
  for (double share = 0.95; share > 0.25; share -= 0.05) {
    const auto budget = static_cast<size_t>(share * static_cast<double>(arena));
    Session session = open(budget, sizes);
    try {
      EXPECT_LE(session.plan("step", shapes()).arena_bytes(), budget);
    } catch (const Error&) {
      break;
    }
    ++met;
    EXPECT_EQ(session.run("step", make_batch(0)).at("loss").data<float>()[0], expected) << share;
  }
  EXPECT_GE(met, 8u);
}

TEST(Recompute, EveryBudgetThatIsMetGivesTheSameLoss) { expect_the_same_loss_within_every_budget(kSizes); }

// Weights so large that they are updated where their gradients are made: the fullest nodes are others then, and values
// are recomputed many times over.
TEST(Recompute, EveryBudgetThatIsMetGivesTheSameLossWithEarlyUpdates) {
  TransformerSizes sizes = kSizes;
  sizes.width = 128;
  sizes.blocks = 2;
  sizes.vocabulary = 1024;
  expect_the_same_loss_within_every_budget(sizes);
}

TEST(Recompute, ABudgetThatIsLargeEnoughChangesNothing) {
  Session whole = open(0), same = open(size_t{1} << 40);
  const Plan &a = whole.plan("step", shapes()), &b = same.plan("step", shapes());
  EXPECT_EQ(a.arena_bytes(), b.arena_bytes());
  EXPECT_EQ(a.steps().size(), b.steps().size());
  EXPECT_EQ(b.recomputation().nodes, 0u);
}

TEST(Recompute, ABudgetThatCannotBeMetIsRefusedWithTheLargestBuffers) {
  Session session = open(1000);
  try {
    session.plan("step", shapes());
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the budget is 1.0 KB. Take a smaller batch"));
    EXPECT_THAT(error.what(), testing::HasSubstr("buffers in use at node"));
    EXPECT_THAT(error.what(), testing::HasSubstr(" MB  "));
  }
}

TEST(Recompute, IsLeftOutWithLowering) {
  SessionOptions options;
  options.plan.memory = 1000;
  options.plan.lowering.without = {"recompute"};
  Session session(make_training_transformer(kSizes), options);
  EXPECT_THROW(session.plan("step", shapes()), Error);
}

// c waits while d, e and f are computed; from a, which is an input, it can be had again.
Model make_waiting_model() {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const auto named = [&](const char* name) { b.set_name(name); };
  const Var a = b.var(graph.add_input("a", {DType::kFloat, Dims{1, 4096}}));
  named("c");
  const Var c = exp(a);
  named("d");
  const Var d = -c;
  named("e");
  const Var e = expand(d, b.ints({16, 4096}));
  named("f");
  const Var f = reduce_sum(e, {0});
  named("y");
  graph.add_output((f + c).value());
  return model;
}

TEST(Recompute, AValueThatWaitsIsComputedAgain) {
  Model model = make_waiting_model();
  Graph& graph = *model.graph;
  const Recomputation done = recompute(model, 17 * 4096 * 4);
  EXPECT_EQ(done.nodes, 1u);
  EXPECT_EQ(done.before, 18u * 4096 * 4);
  EXPECT_EQ(done.after, 17u * 4096 * 4);
  ASSERT_TRUE(graph.find("recompute/c"));
  EXPECT_EQ(graph.find("recompute/c")->uses().size(), 1u);
  EXPECT_EQ(graph.find("recompute/c")->uses()[0].node->op(), "Add");
}

// An exchange that has begun reads c until it is awaited.
TEST(Recompute, WhatACollectiveReadsStaysUntilItIsAwaited) {
  Model model = make_waiting_model();
  Graph& graph = *model.graph;
  Builder b(&graph, graph.find("d")->producer());
  const Var c = b.var(graph.find("c"));
  const Var sum = call(b, "AllReduce", {b.var(graph.find("a")), c, b.scalar(DType::kInt64, 1)});
  Builder at_end(&graph, graph.find("y")->producer());
  graph.find("y")->producer()->set_input(1, call(at_end, "Await", {sum, c}).value());
  recompute(model, 17 * 4096 * 4);
  EXPECT_FALSE(graph.find("recompute/c"));
}

// The result of a graph without states, planned within a budget; its recomputation.
Recomputation run_within(const Model& model, size_t memory, const TensorMap& inputs, Tensor* result) {
  SessionOptions options;
  options.plan.memory = memory;
  options.plan.lowering.without = {"fuse_elementwise", "order_nodes"};
  Session session(clone(model), options);
  *result = session.run("predict", inputs).at("y").clone();
  return session.plan("predict", {{"a", inputs.at("a").shape()}}).recomputation();
}

constexpr size_t kRow = 4096 * sizeof(float);

// Many views of a value that waits: the reader after the peak takes the last of as many views of the copy.
TEST(Recompute, AnyNumberOfViewsMovesToTheCopy) {
  constexpr int kViews = 20000;
  Model model = make_waiting_model();
  Graph& graph = *model.graph;
  Builder b(&graph, graph.find("d")->producer());
  Var v = b.var(graph.find("c"));
  for (int i = 0; i < kViews; ++i) v = reshape(v, b.ints(i % 2 ? Shape{1, 4096} : Shape{4096, 1}));
  graph.find("y")->producer()->set_input(1, v.value());
  Recomputation done;
  with_small_stack(size_t{256} << 10, [&] { done = recompute(model, 17 * kRow); });
  EXPECT_EQ(done.nodes, 1u);
  EXPECT_EQ(done.after, 17 * kRow);
  const Value* read = graph.find("y")->producer()->input(1);
  int views = 0;
  for (; read->producer()->is("Reshape"); read = read->producer()->input(0)) ++views;
  EXPECT_EQ(views, kViews);
  EXPECT_EQ(read, graph.find("recompute/c"));
}

// x[i + 1] = tanh(x[i]), then readers of x[n], x[n - 1], .., x[1] with a peak before each: what is copied for a late
// reader is wanted by an earlier one, too, and is hoisted with all the copies that it reads.
Model make_chain_of_readers(int length) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  std::vector<Var> x = {b.var(graph.add_input("a", {DType::kFloat, Dims{1, 4096}}))};
  for (int i = 0; i < length; ++i) x.push_back(tanh(x.back()));
  Var sum = x.back();
  for (int i = length; i > 0; --i) {
    sum = reduce_sum(expand(sum, b.ints({4, 4096})), {0});
    sum = sum * x[static_cast<size_t>(i)];
  }
  b.set_name("y");
  graph.add_output((sum + x[1]).value());
  return model;
}

TEST(Recompute, ALongChainIsRecomputedInPieces) {
  constexpr int kLength = 300;
  const Model model = make_chain_of_readers(kLength);
  const TensorMap inputs = {{"a", random_tensor(DType::kFloat, {1, 4096}, 1)}};
  Tensor expected, found;
  run_within(model, 0, inputs, &expected);
  for (size_t rows : {200, 100, 60, 40}) {
    Recomputation done;
    with_small_stack(size_t{2} << 20, [&] { done = run_within(model, rows * kRow, inputs, &found); });
    EXPECT_GT(done.nodes, 0u);
    EXPECT_LE(done.after, rows * kRow);
    std::printf("%zu rows: %zu nodes twice\n", rows, done.nodes);
    EXPECT_EQ(std::memcmp(found.data(), expected.data(), expected.bytes()), 0) << rows;
  }
}

}  // namespace
}  // namespace onnx_train::recompute_test
