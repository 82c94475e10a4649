#include "onnx_passes/adapt/put_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "tests/support/error_of.h"

namespace onnx_train::put_weights_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Tensor numbers(Shape shape, float first) {
  Tensor tensor(DType::kFloat, std::move(shape));
  std::iota(tensor.data<float>(), tensor.data<float>() + tensor.size(), first);
  return tensor;
}

// A weight with numbers from `first` on, which are from `now` on after training.
TrainedWeight counted(const std::string& name, const Shape& shape, float first, float now) {
  return {{name}, numbers(shape, first), numbers(shape, now)};
}

TrainedWeight filled(const std::string& name, const Shape& shape, float before, float now) {
  return {{name}, Tensor::full(DType::kFloat, shape, before), Tensor::full(DType::kFloat, shape, now)};
}

ModelMessage message_of(const std::string& graph) {
  return to_message(from_text(R"(<ir_version: 10, opset_import: ["" : 21]> served )" + graph));
}

Tensor contents(const ModelMessage& message, const std::string& name) {
  const Model model = from_message(message);
  return contents_of(*model.graph->find(name));
}

std::vector<double> elements(const Tensor& tensor) {
  std::vector<double> all;
  for (int64_t i = 0; i < tensor.size(); ++i) all.push_back(tensor.at(i));
  return all;
}

TEST(PutWeights, AWeightIsFoundUnderAnotherNameTransposedAndInFloat16) {
  ModelMessage message = message_of(R"((float[N,2] x) => (float[N,3] y)
    <float[2,3] transposed = {1,3,5,2,4,6}, float16[3] bias = {18176,18432,18560}, float[3] other = {1,2,4}>
    { a = MatMul(x, transposed)  b = Cast<to = 1>(bias)  c = Add(a, b)  y = Mul(c, other) })");
  const PutWeights put =
      put_weights({counted("fc.weight", {3, 2}, 1, 11), counted("fc.bias", {3}, 7, 17)}, "served", &message);
  EXPECT_THAT(put.missing, ElementsAre());
  EXPECT_EQ(put.weights, 2u);
  EXPECT_EQ(put.tensors, 2u);
  EXPECT_THAT(put.how, ElementsAre("'transposed' is 'fc.weight', transposed"));
  EXPECT_THAT(elements(contents(message, "transposed")), ElementsAre(11, 13, 15, 12, 14, 16));
  EXPECT_EQ(contents(message, "bias").dtype(), DType::kFloat16);
  EXPECT_THAT(elements(contents(message, "bias")), ElementsAre(17, 18, 19));
  EXPECT_THAT(elements(contents(message, "other")), ElementsAre(1, 2, 4));
}

TEST(PutWeights, ConstantsAndSubgraphsHoldWeights) {
  ModelMessage message = message_of(R"((float[2] x, bool c) => (float[2] y) {
    w = Constant<value = float[2] {3,4}>()
    z = Mul(x, w)
    y = If(c) <
      then_branch = t () => (float[2] a) <float[2] b = {5,6}> { a = Add(z, b) },
      else_branch = e () => (float[2] d) { k = Constant<value = float[2] {8,9}>()  d = Add(z, k) }
    >
  })");
  const std::vector<TrainedWeight> weights = {counted("scale", {2}, 3, 30), counted("then", {2}, 5, 50),
                                              counted("else", {2}, 8, 80)};
  const PutWeights put = put_weights(weights, "served", &message);
  EXPECT_THAT(put.missing, ElementsAre());
  EXPECT_EQ(put.tensors, 3u);
  const std::string text = to_text(from_message(message));
  for (const char* numbers : {"{30,31}", "{50,51}", "{80,81}"}) EXPECT_THAT(text, HasSubstr(numbers)) << text;
}

TEST(PutWeights, AWeightIsFoundInPartsAndAsAPart) {
  ModelMessage message = message_of(R"((float[N,2] x) => (float[N,6] y)
    <float[2] q = {1,2}, float[2] k = {3,4}, float[2] v = {5,6}, float[2,6] packed = {11,12,21,22,31,32,13,14,23,24,33,34}>
    { a = MatMul(x, packed)  b = Concat<axis = 0>(q, k, v)  y = Add(a, b) })");
  const std::vector<TrainedWeight> weights = {counted("qkv.bias", {6}, 1, 101),
                                              counted("q.weight", {2, 2}, 11, 111),
                                              counted("v.weight", {2, 2}, 31, 131),
                                              {{"k.weight"}, numbers({2, 2}, 21), numbers({2, 2}, 21)}};
  const PutWeights put = put_weights(weights, "served", &message);
  EXPECT_THAT(put.missing, ElementsAre());
  EXPECT_EQ(put.weights, 3u);
  EXPECT_THAT(elements(contents(message, "q")), ElementsAre(101, 102));
  EXPECT_THAT(elements(contents(message, "v")), ElementsAre(105, 106));
  EXPECT_THAT(elements(contents(message, "packed")),
              ElementsAre(111, 112, 21, 22, 131, 132, 113, 114, 23, 24, 133, 134));
}

constexpr const char* kTwoBiases = R"((float[N,2] x) => (float[N,2] y)
    <float[2] a = {0,0}, float[2] b = {0,0}> { z = Add(x, a)  y = Add(z, b) })";

TEST(PutWeights, NamesDecideBetweenWeightsThatHadOneValue) {
  ModelMessage message = message_of(kTwoBiases);
  const std::vector<TrainedWeight> weights = {filled("m.a", {2}, 0, 1), filled("m.b", {2}, 0, 2)};
  EXPECT_THAT(put_weights(weights, "served", &message).missing, ElementsAre());
  EXPECT_THAT(elements(contents(message, "a")), ElementsAre(1, 1));
  EXPECT_THAT(elements(contents(message, "b")), ElementsAre(2, 2));
}

TEST(PutWeights, EqualElementsWithoutANameAreNoWeightUnlessThereIsOneOfEach) {
  ModelMessage message = message_of(kTwoBiases);
  const PutWeights put = put_weights({filled("first", {2}, 0, 1), filled("second", {2}, 0, 2)}, "served", &message);
  EXPECT_THAT(put.missing,
              ElementsAre(HasSubstr("'first' float[2], whose elements were all equal before training, as those of 2"),
                          HasSubstr("'second'")));
  EXPECT_THAT(elements(contents(message, "a")), ElementsAre(0, 0));
  ModelMessage third = message_of(R"((float[N,2] x) => (float[N,2] y)
    <float[2] a = {0,0}, float[2] other = {0,0}> { z = Add(x, a)  y = Add(z, other) })");
  EXPECT_THAT(put_weights({filled("a", {2}, 0, 1)}, "served", &third).left,
              ElementsAre(HasSubstr("'other', whose elements are all those that 'a' had")));
  ModelMessage one = message_of(R"((float[N,2] x) => (float[N,2] y) <float[2] gamma = {1,1}> { y = Mul(x, gamma) })");
  EXPECT_THAT(put_weights({filled("norm.weight", {2}, 1, 3)}, "served", &one).missing, ElementsAre());
  EXPECT_THAT(elements(contents(one, "gamma")), ElementsAre(3, 3));
}

TEST(PutWeights, OneTensorIsNotTwoWeightsThatDifferNow) {
  const std::string graph = R"((float[N,2] x, int64[M] i) => (float[N,2] y, float[M,2] e)
    <float[2,2] table = {1,2,3,4}> { y = MatMul(x, table)  e = Gather(table, i) })";
  ModelMessage message = message_of(graph);
  const std::vector<TrainedWeight> unnamed = {counted("head", {2, 2}, 1, 5), counted("embedding", {2, 2}, 1, 1)};
  EXPECT_THAT(error_of([&] { put_weights(unnamed, "served", &message); }),
              HasSubstr("served: 'table' has the values that 'head', 'embedding' had before training"));
  const std::vector<TrainedWeight> named = {counted("table", {2, 2}, 1, 5), counted("embedding", {2, 2}, 1, 1)};
  EXPECT_THAT(error_of([&] { put_weights(named, "served", &message); }),
              HasSubstr("there is no tensor for 'embedding' beside 'table'"));
  EXPECT_THAT(elements(contents(message, "table")), ElementsAre(1, 2, 3, 4));
}

// The exporter has left one name of a tied weight, and a copy of it: modules of the nodes tell which is which.
TEST(PutWeights, ModulesThatReadAWeightDecideBeforeItsName) {
  ModelMessage message = message_of(R"((float[N,2] x, int64[M] i) => (float[N,2] y, float[M,2] e)
    <float[2,2] "head.weight" = {1,2,3,4}, float[2,2] "copy.weight" = {1,2,3,4}>
    { y = MatMul(x, "copy.weight")  e = Gather("head.weight", i) })");
  message.proto.mutable_graph()->mutable_node(0)->set_name("/head/MatMul");
  message.proto.mutable_graph()->mutable_node(1)->set_name("/wte/Gather");
  const std::vector<TrainedWeight> weights = {counted("head.weight", {2, 2}, 1, 5),
                                              counted("wte.weight", {2, 2}, 1, 1)};
  EXPECT_THAT(put_weights(weights, "served", &message).missing, ElementsAre());
  EXPECT_THAT(elements(contents(message, "head.weight")), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(elements(contents(message, "copy.weight")), ElementsAre(5, 6, 7, 8));
}

TEST(PutWeights, CopiesOfATiedWeightAllChange) {
  ModelMessage message = message_of(R"((float[N,2] x, int64[M] i) => (float[N,3] y, float[M,2] e)
    <float[3,2] table = {1,2,3,4,5,6}, float[2,3] head = {1,3,5,2,4,6}>
    { y = MatMul(x, head)  e = Gather(table, i) })");
  EXPECT_EQ(put_weights({counted("table", {3, 2}, 1, 11)}, "served", &message).tensors, 2u);
  EXPECT_THAT(elements(contents(message, "head")), ElementsAre(11, 13, 15, 12, 14, 16));
  EXPECT_THAT(elements(contents(message, "table")), ElementsAre(11, 12, 13, 14, 15, 16));
}

TEST(PutWeights, WhatIsNotThereOrDoesNotFitIsNamed) {
  ModelMessage message = message_of(R"((float[N,2] x) => (float[N,2] y) <float16[2] b = {15360,16384}>
    { c = Cast<to = 1>(b)  y = Add(x, c) })");
  const PutWeights put = put_weights({counted("gone", {3}, 1, 2)}, "served", &message);
  EXPECT_THAT(put.missing, ElementsAre("'gone' float[3]"));
  EXPECT_EQ(put.tensors, 0u);  // though b is a part of it
  EXPECT_THAT(error_of([&] { put_weights({counted("b", {2}, 1, 1e6f)}, "served", &message); }),
              HasSubstr("'b' is float16 there, and 1e+06, which it has now, is more than that holds"));
  EXPECT_THAT(elements(contents(message, "b")), ElementsAre(1, 2));
}

}  // namespace
}  // namespace onnx_train::put_weights_test
