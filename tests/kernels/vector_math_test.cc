// The error of our float functions against libm in double, in units in the last place of the float result, over
// floats of all sizes; and their values at NaN, infinities and zeros.
#include "kernels/math/vector_math.h"

#include <gtest/gtest.h>

#include <vector>

#include "kernels/cpu/support/simd.h"

namespace onnx_train::vector_math_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// |value - exact| in units in the last place of `exact` as a float; denormals count in the smallest float.
double ulps(float value, double exact) {
  const auto rounded = static_cast<float>(exact);
  if (value == rounded || (std::isnan(value) && std::isnan(exact))) return 0;
  if (std::isinf(value) || std::isnan(value) || std::isinf(rounded)) return 1e9;
  int exponent = 0;
  std::frexp(std::fmax(std::fabs(exact), std::numeric_limits<float>::min()), &exponent);
  return std::fabs(value - exact) / std::ldexp(1.0, exponent - 24);
}

template <typename Run, typename F, typename Exact>
double max_ulps(Run run, F f, Exact exact, float low, float high) {
  std::vector<float> x, y;
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 97 * 16) {
    const float value = std::bit_cast<float>(static_cast<uint32_t>(bits));
    if (value >= low && value <= high) x.push_back(value);
  }
  y.resize(x.size());
  const auto n = static_cast<int64_t>(x.size());
  const float* in = x.data();
  float* out = y.data();
  const auto loop = [=] {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) out[i] = f(in[i]);
  };
  run(loop);
  double worst = 0;
  for (size_t i = 0; i < x.size(); ++i) worst = std::fmax(worst, ulps(y[i], exact(static_cast<double>(x[i]))));
  return worst;
}

// `run` calls a loop as one of the machine codes that `vectorized` chooses from.
template <typename Run>
void expect_small_errors(Run run) {
  const auto error = [&](auto f, float low, float high) { return max_ulps(run, f, f, low, high); };
  EXPECT_LT(error([](auto x) { return math::exp(x); }, -kInf, kInf), 1.0);
  EXPECT_LT(error([](auto x) { return math::expm1(x); }, -kInf, kInf), 1.5);
  EXPECT_LT(error([](auto x) { return math::log(x); }, -0.0f, kInf), 1.0);
  EXPECT_LT(error([](auto x) { return math::tanh(x); }, -kInf, kInf), 2.5);
  EXPECT_LT(error([](auto x) { return math::sigmoid(x); }, -87.0f, kInf), 2.5);
  EXPECT_LT(error([](auto x) { return math::erf(x); }, -kInf, kInf), 2.5);
  EXPECT_LT(error([](auto x) { return math::log1p_of_fraction(x); }, 0.0f, 1.0f), 1.5);
}

TEST(VectorMath, ErrorIsSmall) {
  expect_small_errors([](const auto& loop) { loop(); });
}

#if defined(__x86_64__)
TEST(VectorMath, ErrorIsSmallWithAvx2) {
  if (cpu::isa() < cpu::Isa::kAvx2) GTEST_SKIP() << "this machine has no AVX2";
  expect_small_errors([](const auto& loop) { cpu::run_avx2(loop); });
}

TEST(VectorMath, ErrorIsSmallWithAvx512) {
  if (cpu::isa() < cpu::Isa::kAvx512) GTEST_SKIP() << "this machine has no AVX-512";
  expect_small_errors([](const auto& loop) { cpu::run_avx512(loop); });
}
#endif

TEST(VectorMath, SpecialValues) {
  EXPECT_EQ(math::exp(-kInf), 0.0f);
  EXPECT_EQ(math::exp(kInf), kInf);
  EXPECT_EQ(math::log(0.0f), -kInf);
  EXPECT_EQ(math::log(kInf), kInf);
  EXPECT_TRUE(std::isnan(math::log(-1.0f)));
  EXPECT_EQ(math::tanh(kInf), 1.0f);
  EXPECT_EQ(math::erf(-kInf), -1.0f);
  EXPECT_EQ(math::sigmoid(-kInf), 0.0f);
  EXPECT_TRUE(std::signbit(math::tanh(-0.0f)));
  using Function = float (*)(float);
  for (Function f : {Function{math::exp}, Function{math::expm1}, Function{math::log}, Function{math::tanh},
                     Function{math::sigmoid}, Function{math::erf}}) {
    EXPECT_TRUE(std::isnan(f(kNaN)));
  }
}

}  // namespace
}  // namespace onnx_train::vector_math_test
