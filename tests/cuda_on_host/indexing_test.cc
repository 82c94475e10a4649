// Operators on indices and along axes on the CUDA backend, compared with the CPU in cases so large that sorts have
// several blocks, sums several tiles and lines several turns. Numbers are small integers, so results have equal bits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cuda/support/device.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"
#include "tests/op_cases/make_case.h"

namespace onnx_train::indexing_test {
namespace {

// Pseudorandom numbers below `end`.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : state_(seed) {}
  int64_t below(int64_t end) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((state_ >> 33) % static_cast<uint64_t>(end));
  }

 private:
  uint64_t state_;
};

Tensor numbers(DType dtype, Shape shape, int64_t low, int64_t high, uint64_t seed = 1) {
  Tensor tensor(dtype, std::move(shape));
  Numbers random(seed);
  for (int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, static_cast<double>(low + random.below(high - low)));
  return tensor;
}

Tensor floats(Shape shape) { return numbers(DType::kFloat, std::move(shape), -8, 8); }

// Small integers with many equal ones, some negative zeros and some NaNs.
Tensor unordered(DType dtype, Shape shape) {
  Tensor tensor = numbers(dtype, std::move(shape), -20, 20);
  for (int64_t i = 0; i < tensor.size(); ++i) {
    if (tensor.at(i) == 0 && i % 2 == 0) tensor.set(i, -0.0);
    if (i % 37 == 5) tensor.set(i, std::numeric_limits<double>::quiet_NaN());
  }
  return tensor;
}

OpInput given(Tensor tensor, bool constant = false) {
  const DType dtype = tensor.dtype();
  return {.value = std::move(tensor), .dtype = dtype, .constant = constant};
}

OpInput known(const std::vector<int64_t>& values) { return given(Tensor::ints(values), true); }

std::vector<Tensor> run_on(Device& device, const OpCase& row) {
  const std::vector<Tensor> inputs = draw_inputs(row);
  Case made = make_case(row, inputs, DType::kFloat, false);
  TensorMap tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!row.inputs[i].constant) tensors[made.inputs[i]->name()] = inputs[i];
  }
  std::vector<std::string> names;
  for (const Value* output : made.outputs) names.push_back(output->name());
  SessionOptions options;
  options.device = &device;
  Session session(std::move(made.model), options);
  const TensorMap& results = session.run("predict", tensors);
  std::vector<Tensor> outputs;
  for (const std::string& output : names) outputs.push_back(results.at(output).clone());
  return outputs;
}

void expect_equal_on_both(const OpCase& row) {
  const auto expected = run_on(Device::cpu(), row), actual = run_on(cuda_device(), row);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(actual[i].bytes(), expected[i].bytes()) << row.op;
    EXPECT_EQ(std::memcmp(actual[i].data(), expected[i].data(), expected[i].bytes()), 0) << row.op << " output " << i;
  }
}

std::string refusal_on(Device& device, const OpCase& row) {
  try {
    run_on(device, row);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

void expect_refused_on_both(const OpCase& row) {
  const std::string expected = refusal_on(Device::cpu(), row);
  EXPECT_NE(expected, "") << row.op;
  EXPECT_EQ(refusal_on(cuda_device(), row), expected);
}

TEST(CudaIndexing, AGradientOfAnEmbeddingAddsRowsOfEqualIndices) {
  for (const int64_t rows : {1, 50, 3000}) {
    for (const int64_t width : {1, 8}) {
      for (const DType dtype : {DType::kFloat, DType::kDouble}) {
        const Tensor indices = numbers(DType::kInt64, {4500}, -rows, rows);
        expect_equal_on_both({.op = "AddGatherGrad",
                              .inputs = {given(numbers(dtype, {rows, width}, -8, 8)),
                                         given(numbers(dtype, {4500, width}, -8, 8)), given(indices)},
                              .domain = kDomain});
      }
    }
  }
  for (const int64_t inner : {3, 4}) {
    expect_equal_on_both({.op = "GatherGrad",
                          .inputs = {given(floats({5, 700, inner})), given(numbers(DType::kInt32, {700}, -70, 70)),
                                     known({5, 70, inner})},
                          .attrs = {{"axis", 1}},
                          .domain = kDomain});
  }
}

TEST(CudaIndexing, TheSumOfManyRowsHasOneOrder) {
  Tensor dy = numbers(DType::kFloat, {6000, 12}, 1, 1000000);
  for (int64_t i = 0; i < dy.size(); ++i) dy.set(i, 1 / dy.at(i));
  const OpCase row{.op = "AddGatherGrad",
                   .inputs = {given(floats({40, 12})), given(dy), given(numbers(DType::kInt64, {6000}, 0, 40))},
                   .domain = kDomain};
  const Tensor first = run_on(cuda_device(), row)[0], second = run_on(cuda_device(), row)[0];
  EXPECT_EQ(std::memcmp(first.data(), second.data(), first.bytes()), 0);
  const Tensor expected = run_on(Device::cpu(), row)[0];
  for (int64_t i = 0; i < first.size(); ++i) EXPECT_NEAR(first.at(i), expected.at(i), 1e-5);
}

TEST(CudaIndexing, ScatteredElementsCombineInOrder) {
  for (const char* reduction : {"none", "add", "mul", "max", "min"}) {
    const bool multiplies = std::string(reduction) == "mul";
    const Tensor updates = multiplies ? numbers(DType::kFloat, {5000}, -1, 2) : unordered(DType::kFloat, {5000});
    const Attrs attrs = {{"reduction", reduction}};
    // One long line is sorted; short lines and rows of tuples follow.
    expect_equal_on_both({.op = "ScatterElements",
                          .inputs = {given(unordered(DType::kFloat, {900})),
                                     given(numbers(DType::kInt64, {5000}, -900, 900)), given(updates)},
                          .attrs = attrs});
    expect_equal_on_both(
        {.op = "ScatterElements",
         .inputs = {given(unordered(DType::kDouble, {3, 5, 40})), given(numbers(DType::kInt32, {3, 9, 30}, -5, 5)),
                    given(numbers(DType::kDouble, {3, 9, 30}, -2, 3))},
         .attrs = {{"reduction", reduction}, {"axis", 1}}});
    expect_equal_on_both(
        {.op = "ScatterND",
         .inputs = {given(unordered(DType::kFloat, {6, 7, 4})), given(numbers(DType::kInt64, {1250, 2}, -6, 6)),
                    given(updates.reshaped({1250, 4}))},
         .attrs = attrs});
    expect_equal_on_both(
        {.op = "ScatterND",
         .inputs = {given(numbers(DType::kInt8, {50, 3}, -100, 100)), given(numbers(DType::kInt64, {600, 1}, -50, 50)),
                    given(numbers(DType::kInt8, {600, 3}, -3, 3))},
         .attrs = attrs});
  }
}

TEST(CudaIndexing, RowsOfEqualIndicesBecomeOne) {
  for (const int64_t size : {3, 40, 1'000'000}) {
    for (const int64_t width : {3, 8}) {
      expect_equal_on_both({.op = "CoalesceRows",
                            .inputs = {given(floats({5000, width})), given(numbers(DType::kInt64, {5000}, -size, size)),
                                       known({size, width})},
                            .num_outputs = 2,
                            .domain = kDomain});
    }
  }
}

TEST(CudaIndexing, GathersReadWhatIndicesName) {
  const Tensor many = numbers(DType::kInt64, {20000}, -9, 9);
  for (const int64_t inner : {1, 3, 16}) {
    for (const DType dtype : {DType::kFloat, DType::kInt8, DType::kBool}) {
      const Tensor x = numbers(dtype, {2, 9, inner}, 0, 2);
      expect_equal_on_both({.op = "Gather", .inputs = {given(x), given(many)}, .attrs = {{"axis", 1}}});
    }
  }
  expect_equal_on_both({.op = "GatherND",
                        .inputs = {given(floats({2, 9, 9, 2})), given(many.reshaped({2, 5000, 2}))},
                        .attrs = {{"batch_dims", 1}}});
  expect_equal_on_both({.op = "GatherElements",
                        .inputs = {given(floats({4, 9, 600})), given(many.reshaped({4, 10, 500}))},
                        .attrs = {{"axis", 1}}});
}

TEST(CudaIndexing, TheLargestAndSmallestAreInOrder) {
  for (const int64_t k : {1, 16, 150}) {
    for (const int64_t largest : {0, 1}) {
      for (const DType dtype : {DType::kFloat, DType::kInt64, DType::kUint8}) {
        const Tensor x = is_float(dtype) ? unordered(dtype, {3, 300, 2}) : numbers(dtype, {3, 300, 2}, 0, 100);
        expect_equal_on_both({.op = "TopK",
                              .inputs = {given(x), known({k})},
                              .attrs = {{"axis", 1}, {"largest", largest}},
                              .num_outputs = 2});
      }
      expect_equal_on_both({.op = "TopK",
                            .inputs = {given(unordered(DType::kFloat, {4200})), known({k})},
                            .attrs = {{"largest", largest}},
                            .num_outputs = 2});
    }
  }
}

TEST(CudaIndexing, TheIndexOfAnExtremumIsTheFirstOrTheLast) {
  for (const char* op : {"ArgMax", "ArgMin"}) {
    for (const int64_t last : {0, 1}) {
      for (const Shape& shape : {Shape{3, 1500}, Shape{4100, 5}, Shape{40, 60}}) {
        for (const int64_t axis : {0, 1}) {
          const Attrs attrs = {{"axis", axis}, {"select_last_index", last}};
          expect_equal_on_both({.op = op, .inputs = {given(unordered(DType::kFloat, shape))}, .attrs = attrs});
          expect_equal_on_both({.op = op, .inputs = {given(numbers(DType::kInt16, shape, -9, 9))}, .attrs = attrs});
        }
      }
    }
  }
  for (const Shape& shape : {Shape{4, 2000}, Shape{3000, 4}, Shape{5, 50}}) {
    expect_equal_on_both({.op = "Hardmax", .inputs = {given(unordered(DType::kFloat, shape))}});
    expect_equal_on_both({.op = "Hardmax", .inputs = {given(unordered(DType::kFloat, shape))}, .attrs = {{"axis", 0}}});
  }
}

TEST(CudaIndexing, CumulativeSumsAndProductsContinueFromTurnToTurn) {
  for (const Shape& shape : {Shape{2, 1100}, Shape{4100, 5}, Shape{3, 70}}) {
    for (const int64_t axis : {0, 1}) {
      for (const int64_t exclusive : {0, 1}) {
        for (const int64_t reverse : {0, 1}) {
          const Attrs attrs = {{"exclusive", exclusive}, {"reverse", reverse}};
          for (const DType dtype : {DType::kFloat, DType::kInt32, DType::kUint8}) {
            const Tensor x = numbers(dtype, shape, 0, 9);
            const OpInput along = given(Tensor::scalar<int64_t>(axis), true);
            expect_equal_on_both({.op = "CumSum", .inputs = {given(x), along}, .attrs = attrs});
            if (dtype == DType::kFloat || exclusive == reverse) continue;
            expect_equal_on_both({.op = "CumProd", .inputs = {given(x), along}, .attrs = attrs, .opset = 26});
          }
        }
      }
    }
  }
}

TEST(CudaIndexing, PadsAndTrianglesAndReversals) {
  for (const char* mode : {"constant", "reflect", "edge", "wrap"}) {
    expect_equal_on_both({.op = "Pad",
                          .inputs = {given(floats({2, 3, 4, 5})), known({0, 0, 3, -1, 0, 0, 2, 9})},
                          .attrs = {{"mode", mode}}});
    expect_equal_on_both(
        {.op = "Pad", .inputs = {given(floats({3, 4, 5})), known({7, 0, 0, 2, 0, 0})}, .attrs = {{"mode", mode}}});
  }
  for (const int64_t k : {-100, -2, 0, 3, 100}) {
    for (const int64_t upper : {0, 1}) {
      expect_equal_on_both({.op = "Trilu",
                            .inputs = {given(floats({3, 7, 5})), given(Tensor::scalar<int64_t>(k))},
                            .attrs = {{"upper", upper}}});
    }
  }
  expect_equal_on_both(
      {.op = "ReverseSequence", .inputs = {given(floats({30, 40, 3})), given(numbers(DType::kInt64, {40}, 0, 31))}});
}

TEST(CudaIndexing, TheFirstIndexOutOfRangeIsReported) {
  for (const int64_t place : {0, 8191, 8192, 19999}) {
    Tensor indices = numbers(DType::kInt64, {20000}, -9, 9), narrow = indices.cast(DType::kInt32);
    indices.set(place, 9);
    narrow.set(place, -10);
    if (place + 1 < indices.size()) indices.set(place + 1, 77);
    const OpInput x = given(floats({9, 9}));
    expect_refused_on_both({.op = "Gather", .inputs = {x, given(indices)}});
    expect_refused_on_both({.op = "Gather", .inputs = {x, given(narrow)}});
    expect_refused_on_both({.op = "GatherND", .inputs = {x, given(indices.reshaped({10000, 2}))}});
    expect_refused_on_both(
        {.op = "ScatterND", .inputs = {x, given(indices.reshaped({10000, 2})), given(floats({10000}))}});
    expect_refused_on_both(
        {.op = "GatherElements", .inputs = {given(floats({9, 10})), given(indices.reshaped({2000, 10}))}});
    expect_refused_on_both(
        {.op = "ScatterElements",
         .inputs = {given(floats({9, 10})), given(indices.reshaped({2000, 10})), given(floats({2000, 10}))}});
  }
  for (const int64_t wrong : {-1, 31}) {
    Tensor lengths = numbers(DType::kInt64, {40}, 0, 31);
    lengths.set(17, static_cast<double>(wrong));
    expect_refused_on_both({.op = "ReverseSequence", .inputs = {given(floats({30, 40, 3})), given(lengths)}});
  }
}

}  // namespace
}  // namespace onnx_train::indexing_test
