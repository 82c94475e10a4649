#include "runtime/support/fingerprint.h"

#include <gtest/gtest.h>

#include <set>

#include "onnx_passes/ir/onnx.h"
#include "tests/support/golden.h"

namespace onnx_train::fingerprint_test {
namespace {

TEST(Fingerprint, DiffersWhereNameTypeShapeOrContentsDo) {
  const Tensor a = Tensor::of<float>({2, 2}, {1, 2, 3, 4});
  const std::set<std::string> all = {
      fingerprint({{"x", a}}),
      fingerprint({{"y", a}}),
      fingerprint({{"x", Tensor::of<float>({4}, {1, 2, 3, 4})}}),
      fingerprint({{"x", Tensor::of<float>({2, 2}, {1, 2, 3, 5})}}),
      fingerprint({{"x", Tensor::of<double>({2}, {1, 2})}}),
      fingerprint({{"x", a}, {"y", a}}),
      fingerprint({{"x", Tensor(DType::kFloat, {0, 2})}}),
      fingerprint(std::vector<NamedTensor>()),
  };
  EXPECT_EQ(all.size(), 8u);
  EXPECT_EQ(fingerprint({{"x", a}}), fingerprint({{"x", a.clone()}}));
}

TEST(Fingerprint, OfALargeTensorReadsBlocksAtEqualDistances) {
  constexpr size_t kBlock = 64 << 10, kSampled = 4 * kBlock;
  Tensor large(DType::kUint8, {static_cast<int64_t>(10 * kBlock + 17)});
  const std::string before = fingerprint({{"x", large}}, kSampled);
  const auto changed = [&](size_t at) {
    Tensor other = large.clone();
    other.data<uint8_t>()[at] = 1;
    return fingerprint({{"x", other}}, kSampled) != before;
  };
  EXPECT_TRUE(changed(0));
  EXPECT_TRUE(changed(10 * kBlock + 16));  // the last byte
  EXPECT_TRUE(changed((9 * kBlock + 17) / 3));
  EXPECT_FALSE(changed(2 * kBlock));  // between two blocks
}

TEST(Fingerprint, OfAModelIsThatOfItsNodesAndWeights) {
  const auto model = [](const std::string& op, int weight) {
    return from_text("<ir_version: 10, opset_import: [\"\" : 21]> net (float[2] x) => (float[2] y) <float[2] w = {1, " +
                     std::to_string(weight) + "}> { y = " + op + "(x, w) }");
  };
  const std::string one = fingerprint(model("Add", 2));
  EXPECT_EQ(fingerprint(model("Add", 2)), one);
  EXPECT_NE(fingerprint(model("Add", 3)), one);
  EXPECT_NE(fingerprint(model("Mul", 2)), one);
}

}  // namespace
}  // namespace onnx_train::fingerprint_test
