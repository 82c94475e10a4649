// Attention of float32 on tensor cores, which `tf32` allows, against float64 on the CPU.
//
// An operand that is rounded to TF32 changes by a part of at most u = 2^-11. Where queries, keys, values and dy are
// TF32 numbers, only probabilities and the gradients of scores are rounded: each term of a sum y = Σ p v changes by a
// part of u, so y by at most u Σ |p v|, which is at most u times the largest |v|. Terms of the gradients have either
// sign, and so have their errors: both add up like the root of their number, and the largest error is at most u times
// the largest gradient. What is rounded nowhere, and what operands that are no TF32 numbers are rounded to, is compared
// exactly.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/cuda/support/device.h"
#include "onnx_passes/functions/functions.h"
#include "runtime/session/session.h"
#include "tests/op_cases/make_case.h"
#include "tests/support/device_network.h"
#include "tests/support/forms.h"
#include "tests/support/run_node.h"
#include "tests/support/scoped_variable.h"

namespace onnx_train::cuda_attention_test {
namespace {

constexpr double kRounding = 0x1p-11, kFloatSums = 1e-5;
constexpr int64_t kWidest = 128;  // rows that tensor cores take

float to_tf32(float x) {
  if (!std::isfinite(x)) return x;
  return std::bit_cast<float>((std::bit_cast<uint32_t>(x) + 0x1000u) & ~0x1fffu);
}

struct Results {
  std::vector<Tensor> outputs;
  std::string forms;
};

Results run(const OpCase& row, const std::vector<Tensor>& inputs, DType precision, Device* device, bool tf32) {
  Case made = make_case(row, inputs, precision, false);
  std::vector<std::string> names;
  for (const Value* output : made.outputs) names.push_back(output->name());
  TensorMap given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (row.inputs[i].absent) continue;
    given[concat("x", i)] = inputs[i].cast(type_in(row.inputs[i], inputs[i], precision));
  }
  SessionOptions options = on(device);
  options.plan.arithmetic.tf32 = tf32;
  Session session(std::move(made.model), options);
  Results results{.outputs = {}, .forms = forms_of(session.plan("predict", shapes_of(given)))};
  const TensorMap& outputs = session.run("predict", given);
  for (const std::string& name : names) results.outputs.push_back(outputs.at(name).clone());
  return results;
}

void expect_within(const Tensor& got, const Tensor& want, double tolerance, const char* what) {
  ASSERT_EQ(got.shape(), want.shape());
  for (int64_t i = 0; i < got.size(); ++i) {
    const double a = got.at(i), b = want.at(i);
    if (a == b || (std::isnan(a) && std::isnan(b))) continue;
    ASSERT_LE(std::abs(a - b), tolerance) << what << ", element " << i << ": " << a << " instead of " << b;
  }
}

// FNV-1a, by which runs in different orders of threads are compared.
std::string hash_of(const std::vector<Tensor>& tensors) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const Tensor& tensor : tensors) {
    for (size_t i = 0; i < tensor.bytes(); ++i)
      hash = (hash ^ static_cast<const uint8_t*>(tensor.data())[i]) * 0x100000001b3u;
  }
  return concat(hash);
}

bool is_forward(const OpCase& row) { return row.op == "BlockAttention"; }

int64_t widest_row(const OpCase& row) {
  int64_t most = 0;
  for (const OpInput& input : row.inputs) {
    if (input.shape.size() == 4) most = std::max(most, input.shape.back());
  }
  return most;
}

// The rows of our two operators that have elements.
std::vector<OpCase> rows() {
  std::vector<OpCase> rows;
  for (OpCase& row : all_cases()) {
    if (row.op.starts_with("BlockAttention") && row.inputs[0].shape[0] != 0) rows.push_back(std::move(row));
  }
  return rows;
}

// The inputs of a row, of which those from `begin` to the one before `end` are rounded.
std::vector<Tensor> inputs_of(const OpCase& row, size_t begin, size_t end) {
  std::vector<Tensor> all = draw_inputs(row);
  for (size_t i = begin; i < end; ++i) {
    for (int64_t e = 0; e < all[i].size(); ++e) all[i].set(e, to_tf32(static_cast<float>(all[i].at(e))));
  }
  return all;
}

// Query, key and value are inputs 0 to 2, or 1 to 3 after dy in a gradient.
size_t first_operand(const OpCase& row) { return is_forward(row) ? 0 : 1; }
size_t end_of_operands(const OpCase& row) { return first_operand(row) + 3; }

// Returns the results, which are within what rounding factors changes.
Results expect_rounded_factors(const OpCase& row) {
  const std::vector<Tensor> operands = inputs_of(row, 0, end_of_operands(row));
  Results got = run(row, operands, DType::kFloat, &cuda_device(), true);
  const Results exact = run(row, operands, DType::kDouble, &Device::cpu(), false),
                single = run(row, operands, DType::kFloat, &cuda_device(), false);
  EXPECT_EQ(single.forms, "");
  for (size_t i = 0; i < exact.outputs.size(); ++i) {
    const bool is_statistic = is_forward(row) && i > 0;
    // The values, which a packed input holds, too.
    const Tensor& bound = is_forward(row) && i == 0 ? operands[row.inputs[2].absent ? 0 : 2] : exact.outputs[i];
    const double size = largest(bound);
    const double tolerance = (is_statistic ? 0 : kRounding * size) + kFloatSums * std::max(size, 1e-3);
    expect_within(got.outputs[i], exact.outputs[i], tolerance, "against float64");
    expect_within(got.outputs[i], single.outputs[i], tolerance, "against float32");
  }
  return got;
}

class TensorCoreAttention : public testing::TestWithParam<OpCase> {};

TEST_P(TensorCoreAttention, RoundsFactors) {
  const Results results = expect_rounded_factors(GetParam());
  EXPECT_EQ(results.forms, widest_row(GetParam()) <= kWidest ? "TF32\n" : "");
  RecordProperty("hash", hash_of(results.outputs));
}

TEST_P(TensorCoreAttention, ComputesWithRoundedOperands) {
  const OpCase& row = GetParam();
  if (widest_row(row) > kWidest) GTEST_SKIP() << "rows of more than 128 elements are computed in float32";
  const std::vector<Tensor> drawn = inputs_of(row, 0, 0),
                            rounded = inputs_of(row, first_operand(row), end_of_operands(row));
  const Results got = run(row, drawn, DType::kFloat, &cuda_device(), true),
                want = run(row, rounded, DType::kFloat, &cuda_device(), true);
  EXPECT_EQ(hash_of(got.outputs), hash_of(want.outputs));
}

// Other GPUs than those for data centres have 99 KB: gradients take smaller tiles there, and float32 units for rows of
// more than 64. On a GPU the variable changes nothing.
TEST(AttentionTiles, OfLessSharedMemoryAreRight) {
  const ScopedVariable less("GPU_HOST_SHARED_BYTES", "101376");
  int number = 0;
  for (const OpCase& row : rows()) {
    const int64_t queries = row.inputs[0].shape[1], width = widest_row(row);
    if (queries != 150 && (width <= 64 || width > kWidest)) continue;  // one tile, or none
    SCOPED_TRACE(testing::Message() << row.op << " " << number++);
    const Results results = expect_rounded_factors(row);
    if (is_forward(row) || width <= 64) {
      EXPECT_EQ(results.forms, "TF32\n");
    }
  }
}

std::string name_of(const testing::TestParamInfo<OpCase>& info) { return concat(info.param.op, "_", info.index); }

INSTANTIATE_TEST_SUITE_P(All, TensorCoreAttention, testing::ValuesIn(rows()), name_of);

}  // namespace
}  // namespace onnx_train::cuda_attention_test
