// Kernels that move, pick and reduce elements: results that do not depend on threads, sums that keep their digits,
// indices out of range, and the bodies of GatherGrad and SliceGrad.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/device.h"
#include "kernels/host.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "tests/support/run_node.h"

namespace onnx_train::movement_test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<float> floats(const Tensor& tensor) { return {tensor.data<float>(), tensor.data<float>() + tensor.size()}; }

bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

// Runs f with one thread and with four.
template <typename F>
std::pair<Tensor, Tensor> with_threads(F&& f) {
  const int before = num_threads();
  set_num_threads(1);
  Tensor one = f();
  set_num_threads(4);
  Tensor four = f();
  set_num_threads(before);
  return {one, four};
}

TEST(Movement, ReductionsDoNotDependOnThreads) {
  const std::vector<std::pair<Shape, std::vector<int64_t>>> cases = {
      {{1000003}, {0}}, {{40, 3000}, {1}}, {{3000, 70}, {0}}, {{50, 3, 400}, {0, 2}}, {{7, 90, 5, 11}, {1, 3}},
  };
  for (const auto& [shape, axes] : cases) {
    const Tensor x = random_tensor(DType::kFloat, shape);
    for (const char* op : {"ReduceSum", "ReduceMean", "ReduceL2", "ReduceMax"}) {
      const auto [one, four] = with_threads([&, &axes = axes] { return run_node(op, {x, Tensor::ints(axes)})[0]; });
      EXPECT_TRUE(same_bytes(one, four)) << op << ' ' << to_string(shape);
    }
  }
}

TEST(Movement, ScatteredSumsDoNotDependOnThreads) {
  const Tensor rows = random_tensor(DType::kFloat, {5000, 96});
  Tensor indices(DType::kInt64, {5000});
  for (int64_t i = 0; i < 5000; ++i) indices.data<int64_t>()[i] = i * i % 17;
  const auto [one, four] = with_threads([&] {
    return run_node("GatherGrad", {rows, indices, Tensor::ints({20, 96})}, {{"axis", 0}}, 1, kDomain)[0];
  });
  EXPECT_TRUE(same_bytes(one, four));
}

TEST(Movement, SumsOfAMillionKeepTheirDigits) {
  const int64_t n = 1 << 20;
  for (const Shape& shape : {Shape{n}, Shape{n, 1}, Shape{n / 4, 4}}) {
    const Tensor x = Tensor::full(DType::kFloat, shape, 0.1);
    const Tensor y = run_node("ReduceSum", {x, Tensor::ints({0})}, {{"keepdims", 0}})[0];
    const double exact = static_cast<double>(0.1f) * static_cast<double>(shape[0]);
    for (int64_t i = 0; i < y.size(); ++i) EXPECT_NEAR(y.at(i), exact, exact * 1e-7) << to_string(shape);
  }
  const Tensor sums = run_node("CumSum", {Tensor::full(DType::kFloat, {n}, 0.1), Tensor::scalar<int64_t>(0)})[0];
  EXPECT_NEAR(sums.at(n - 1), static_cast<double>(0.1f) * n, 0.01);
}

TEST(Movement, ReductionsOfNothing) {
  const Tensor nothing(DType::kFloat, {0, 2});
  const auto reduce = [&](const char* op) { return run_node(op, {nothing, Tensor::ints({0})}, {{"keepdims", 0}})[0]; };
  EXPECT_THAT(floats(reduce("ReduceSum")), ElementsAre(0, 0));
  EXPECT_THAT(floats(reduce("ReduceProd")), ElementsAre(1, 1));
  EXPECT_THAT(floats(reduce("ReduceMax")), ElementsAre(-HUGE_VALF, -HUGE_VALF));
  EXPECT_THAT(floats(reduce("ReduceMin")), ElementsAre(HUGE_VALF, HUGE_VALF));
  EXPECT_THAT(floats(reduce("ReduceLogSumExp")), ElementsAre(-HUGE_VALF, -HUGE_VALF));
  EXPECT_TRUE(std::isnan(reduce("ReduceMean").at(0)));
  const Tensor integers(DType::kInt32, {0, 2});
  EXPECT_EQ(run_node("ReduceMean", {integers, Tensor::ints({0})})[0].at(0), 0);
}

TEST(Movement, NotANumberPassesThroughExtrema) {
  const Tensor x = Tensor::of<float>({2, 3}, {1, NAN, 2, 3, 4, 5});
  for (const char* op : {"ReduceMax", "ReduceMin"}) {
    const Tensor y = run_node(op, {x, Tensor::ints({1})}, {{"keepdims", 0}})[0];
    EXPECT_TRUE(std::isnan(y.at(0))) << op;
    EXPECT_FALSE(std::isnan(y.at(1))) << op;
  }
}

TEST(Movement, LogSumExpOfExtremes) {
  const Tensor x = Tensor::of<float>({3, 2}, {1000, 1000, -HUGE_VALF, -HUGE_VALF, -HUGE_VALF, 3});
  const auto y = floats(run_node("ReduceLogSumExp", {x, Tensor::ints({1})}, {{"keepdims", 0}})[0]);
  EXPECT_FLOAT_EQ(y[0], 1000 + std::log(2.0f));
  EXPECT_EQ(y[1], -HUGE_VALF);
  EXPECT_FLOAT_EQ(y[2], 3);
}

// The message of the error that running a node throws; its first output must be untouched.
std::string failure(const std::string& op, const std::vector<Tensor>& inputs, const Attrs& attrs = {},
                    const std::string& domain = "") {
  try {
    PreparedNode node(op, inputs, attrs, 1, domain);
    const Tensor before = node.outputs()[0].clone();
    try {
      node.run();
    } catch (const Error&) {
      EXPECT_TRUE(same_bytes(before, node.outputs()[0])) << op;
      throw;
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Movement, IndicesOutOfRangeAreNamedBeforeAnythingIsWritten) {
  const Tensor x = random_tensor(DType::kFloat, {4, 3}), row = random_tensor(DType::kFloat, {2, 3});
  const Tensor bad = Tensor::ints({0, 4}), negative = Tensor::ints({0, -5});
  const Tensor bad_column = bad.reshaped({2, 1}), updates = random_tensor(DType::kFloat, {2, 1});
  const char* wanted = "index 4 is outside of an axis of size 4; it must be in [-4, 3]";
  EXPECT_THAT(failure("Gather", {x, bad}), HasSubstr(wanted));
  EXPECT_THAT(failure("Gather", {x, negative}), HasSubstr("index -5"));
  EXPECT_THAT(failure("Gather", {x, bad.cast(DType::kInt32)}), HasSubstr(wanted));
  EXPECT_THAT(failure("GatherGrad", {row, bad, Tensor::ints({4, 3})}, {{"axis", 0}}, kDomain), HasSubstr(wanted));
  EXPECT_THAT(failure("GatherElements", {x, bad_column}), HasSubstr(wanted));
  EXPECT_THAT(failure("GatherND", {x, bad_column}), HasSubstr(wanted));
  EXPECT_THAT(failure("ScatterElements", {x, bad_column, updates}), HasSubstr(wanted));
  EXPECT_THAT(failure("ScatterND", {x, bad_column, row}), HasSubstr(wanted));
  EXPECT_THAT(failure("ReverseSequence", {x, Tensor::ints({1, 5, 2})}), HasSubstr("sequence 1 has length 5"));
}

TEST(Movement, OperandsThatDoNotFitAreRefused) {
  const Tensor x = random_tensor(DType::kFloat, {4, 3}), indices = Tensor::of<int64_t>({5, 1}, {0, 0, 0, 0, 0});
  EXPECT_THAT(failure("GatherElements", {x, indices}, {{"axis", 1}}), HasSubstr("do not fit"));
  EXPECT_THAT(failure("GatherND", {x, Tensor::of<int64_t>({1, 3}, {0, 0, 0})}), HasSubstr("GatherND"));
  EXPECT_THAT(failure("ScatterND", {x, Tensor::of<int64_t>({1, 1}, {0}), x}), HasSubstr("ScatterND"));
  EXPECT_THAT(failure("GatherGrad", {x, Tensor::ints({0, 1}), Tensor::ints({4, 3})}, {{"axis", 0}}, kDomain),
              HasSubstr("GatherGrad"));
  EXPECT_THAT(failure("TopK", {x, Tensor::ints({9})}, {{"axis", 0}}), HasSubstr("TopK"));
}

TEST(Movement, TransposesOfEveryOrder) {
  const Shape shape = {3, 20, 2, 17};
  const Tensor x = random_tensor(DType::kFloat, shape);
  std::vector<int64_t> order = {0, 1, 2, 3};
  do {
    const Tensor y = run_node("Transpose", {x}, {{"perm", order}})[0];
    std::vector<int64_t> strides = {20 * 2 * 17, 2 * 17, 17, 1};
    for (int64_t i = 0; i < y.size(); ++i) {
      int64_t rest = i, from = 0;
      for (size_t k = 4; k-- > 0;) {
        from += rest % y.shape()[k] * strides[static_cast<size_t>(order[k])];
        rest /= y.shape()[k];
      }
      ASSERT_EQ(y.data<float>()[i], x.data<float>()[from]) << to_string(order) << " element " << i;
    }
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(Movement, TiesOfTopKGoToTheFirst) {
  const Tensor x = Tensor::of<float>({5}, {1, 3, 3, NAN, 3});
  const auto y = run_node("TopK", {x, Tensor::ints({3})}, {}, 2);
  EXPECT_THAT(y[1].to_ints(), ElementsAre(3, 1, 2));
  const auto smallest = run_node("TopK", {x, Tensor::ints({2})}, {{"largest", 0}}, 2);
  EXPECT_THAT(smallest[1].to_ints(), ElementsAre(0, 1));
}

}  // namespace
}  // namespace onnx_train::movement_test
