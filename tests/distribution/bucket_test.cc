// Small tensors travel together, and their values are those that travel alone.
#include "onnx_passes/distribution/bucket_collectives.h"

#include <gtest/gtest.h>

#include <string>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train::bucket_test {
namespace {

// Sums and gathers of three types, with what reads one of them in between.
Model collectives(bool reads_between) {
  Model model = empty_model();
  Builder b(model.graph.get());
  const auto input = [&](const char* name, DType dtype, Shape shape) {
    return b.var(model.graph->add_input(name, {dtype, Dims(shape.begin(), shape.end())}));
  };
  const auto output = [&](const char* name, Var v) {
    model.graph->add_output(v.value());
    model.graph->rename(v.value(), name);
    return v;
  };
  const Var da = input("da", DType::kFloat, {3}), db = input("db", DType::kFloat, {2, 2}),
            dc = input("dc", DType::kFloat, {}), active = input("active", DType::kInt64, {});
  const Var a = output("next_a", call(b, "AllReduce", {input("a", DType::kFloat, {3}), da, active}));
  if (reads_between) output("negative", -a);
  output("next_b", call(b, "AllReduce", {input("b", DType::kFloat, {2, 2}), db, active}));
  output("all_a", call(b, "AllGather", {da}, {{"ranks", 2}}));
  output("all_e", call(b, "AllGather", {input("e", DType::kDouble, {1})}, {{"ranks", 2}}));
  output("next_c", call(b, "AllReduce", {input("c", DType::kFloat, {}), dc, active}));
  output("all_c", call(b, "AllGather", {dc}, {{"ranks", 2}}));
  output("root", call(b, "Broadcast", {da}, {{"root", 1}}));
  output("read", tanh(a));
  return model;
}

TensorMap inputs() {
  TensorMap values;
  for (const auto& [name, shape] :
       std::map<std::string, Shape>{{"a", {3}}, {"b", {2, 2}}, {"c", {}}, {"da", {3}}, {"db", {2, 2}}, {"dc", {}}}) {
    values[name] = random_tensor(DType::kFloat, shape, static_cast<unsigned>(values.size()));
  }
  values["e"] = random_tensor(DType::kDouble, {1});
  values["active"] = Tensor::full(DType::kInt64, {}, 1);
  return values;
}

void expect_same_values(const Model& before, const Model& after, const TensorMap& given = inputs()) {
  Session one(clone(before), {}), other(clone(after), {});
  const TensorMap expected = one.run("predict", given), values = other.run("predict", given);
  ASSERT_EQ(values.size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    EXPECT_EQ(values.at(name).shape(), tensor.shape()) << name;
    EXPECT_EQ(relative_error(values.at(name), tensor), 0) << name;
  }
}

TEST(Buckets, OneOfEachKindAndType) {
  const Model alone = collectives(false);
  Model model = clone(alone);
  bucket_collectives(&model);
  EXPECT_EQ(count_nodes(model, "AllReduce", kDomain), 1);
  EXPECT_EQ(count_nodes(model, "AllGather", kDomain), 2);  // one of the double
  EXPECT_EQ(count_nodes(model, "Broadcast", kDomain), 1);
  expect_same_values(alone, model);
}

TEST(Buckets, AResultIsThereWhereItIsRead) {
  const Model alone = collectives(true);
  Model model = clone(alone);
  bucket_collectives(&model);
  EXPECT_EQ(count_nodes(model, "AllReduce", kDomain), 2);
  expect_same_values(alone, model);
}

TEST(Buckets, TheyAreNotLargerThanAsked) {
  const Model alone = collectives(false);
  Model model = clone(alone);
  bucket_collectives(&model, "", 7 * sizeof(float));
  EXPECT_EQ(count_nodes(model, "AllReduce", kDomain), 2);
  EXPECT_EQ(count_nodes(model, "AllGather", kDomain), 3);
  expect_same_values(alone, model);
}

// More tensors than inference reads sizes of.
TEST(Buckets, ManyTensorsArePlanned) {
  Model alone = empty_model();
  Builder b(alone.graph.get());
  const Var active = b.var(alone.graph->add_input("active", {DType::kInt64, Dims{}}));
  TensorMap values = {{"active", Tensor::full(DType::kInt64, {}, 1)}};
  for (int i = 0; i < 150; ++i) {
    const std::string name = concat("x", i);
    const Var x = b.var(alone.graph->add_input(name, {DType::kFloat, Dims{i % 3 + 1}}));
    alone.graph->add_output(call(b, "AllReduce", {x, x, active}).value());
    values[name] = random_tensor(DType::kFloat, {i % 3 + 1}, static_cast<unsigned>(i));
  }
  Model model = clone(alone);
  bucket_collectives(&model);
  EXPECT_EQ(count_nodes(model, "AllReduce", kDomain), 3);
  expect_same_values(alone, model, values);
}

TEST(Buckets, WhatIsLargeOrOfUnknownSizeGoesAlone) {
  Model model = empty_model();
  Builder b(model.graph.get());
  const Var active = b.var(model.graph->add_input("active", {DType::kInt64, Dims{}}));
  int count = 0;
  for (const Dims& dims : {Dims{300000}, Dims{"N"}, Dims{3}}) {
    const Var x = b.var(model.graph->add_input("x" + std::to_string(count++), {DType::kFloat, dims}));
    model.graph->add_output(call(b, "AllReduce", {x, x, active}).value());
  }
  bucket_collectives(&model);
  EXPECT_EQ(count_nodes(model, "AllReduce", kDomain), 3);
}

}  // namespace
}  // namespace onnx_train::bucket_test
