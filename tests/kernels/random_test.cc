#include <gtest/gtest.h>

#include <algorithm>
#include <array>

#include "kernels/math/philox.h"
#include "onnx_passes/functions/functions.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"

namespace onnx_train::random_test {
namespace {

// Random123's known answers for philox4x32, 10 rounds.
TEST(Philox, KnownAnswers) {
  const auto expect = [](Words4 counter, uint32_t key0, uint32_t key1, Words4 want) {
    const Words4 got = philox4x32_10(counter, key0, key1);
    EXPECT_EQ(got.w0, want.w0);
    EXPECT_EQ(got.w1, want.w1);
    EXPECT_EQ(got.w2, want.w2);
    EXPECT_EQ(got.w3, want.w3);
  };
  expect({0, 0, 0, 0}, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  const uint32_t ones = 0xffffffff;
  expect({ones, ones, ones, ones}, ones, ones, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  expect({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0,
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST(Philox, UniformStaysBelowOne) {
  EXPECT_EQ(uniform(0), 0.0f);
  EXPECT_LT(uniform(0xffffffff), 1.0f);
}

constexpr int64_t kSize = 1003;
constexpr int64_t kStream = 5;

// Dropout of `kSize` ones as a model with the inputs key and ratio.
Session dropout_session() {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const Var ones = b.constant(Tensor::full(DType::kFloat, {kSize}, 1));
  const Var key = b.var(graph.add_input("key", {DType::kUint64, Dims{2}}));
  const Var ratio = b.var(graph.add_input("ratio", {DType::kFloat, Dims{}}));
  const auto outputs = call(b, "Dropout", 2, {ones, key, ratio}, {{"stream", kStream}});
  graph.rename(outputs[0].value(), "y");
  graph.rename(outputs[1].value(), "mask");
  for (const Var& output : outputs) graph.add_output(output.value());
  return Session(std::move(model));
}

std::vector<bool> mask_of(Session& session, RandomKey key, float ratio) {
  const Tensor mask = session
                          .run("predict", {{"key", Tensor::of<uint64_t>({2}, {key.seed, key.counter})},
                                           {"ratio", Tensor::scalar(ratio)}})
                          .at("mask");
  return std::vector<bool>(mask.data<bool>(), mask.data<bool>() + kSize);
}

TEST(Dropout, KeepsWhatTheDefinitionKeeps) {
  Session session = dropout_session();
  const RandomKey key = {0xfedcba9876543210, 3};
  std::vector<bool> expected;
  for (int64_t i = 0; i < kSize; ++i) {
    const Words4 w = random_words(key, kStream, static_cast<uint64_t>(i / 4));
    expected.push_back(uniform(std::array{w.w0, w.w1, w.w2, w.w3}[static_cast<size_t>(i % 4)]) >= 0.25f);
  }
  EXPECT_EQ(mask_of(session, key, 0.25f), expected);
}

TEST(Dropout, TheMaskIsAFunctionOfTheKey) {
  Session session = dropout_session();
  const auto first = mask_of(session, {7, 0}, 0.5f);
  EXPECT_NE(mask_of(session, {7, 1}, 0.5f), first);
  EXPECT_NE(mask_of(session, {8, 0}, 0.5f), first);
  EXPECT_EQ(mask_of(session, {7, 0}, 0.5f), first);
  const auto kept = std::count(first.begin(), first.end(), true);
  EXPECT_NEAR(static_cast<double>(kept), kSize / 2.0, 80);
}

}  // namespace
}  // namespace onnx_train::random_test
