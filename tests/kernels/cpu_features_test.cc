// ONNX_TRAIN_ISA and oneDNN's level. tests/kernels/isa_test.sh runs these tests with the variable set.
#include "kernels/cpu/support/cpu_features.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "kernels/device.h"

namespace onnx_train::cpu::cpu_features_test {
namespace {

TEST(CpuFeatures, IsaIsTheOneThatTheVariableNames) {
  const char* wanted = std::getenv("ONNX_TRAIN_ISA");
  if (!wanted) GTEST_SKIP() << "ONNX_TRAIN_ISA is not set";
  Device::cpu();
  EXPECT_EQ(name_of(isa()), wanted);
}

TEST(CpuFeatures, LevelsAreNamedInTheirOrder) {
  EXPECT_EQ(name_of(Isa::kScalar), "scalar");
  EXPECT_EQ(name_of(Isa::kNeon), "neon");
  EXPECT_EQ(name_of(Isa::kAvx2), "avx2");
  EXPECT_EQ(name_of(Isa::kAmx), "amx");
  EXPECT_LT(Isa::kAvx512, Isa::kAvx512Bf16);
}

}  // namespace
}  // namespace onnx_train::cpu::cpu_features_test
