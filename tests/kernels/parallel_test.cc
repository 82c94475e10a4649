#include "kernels/cpu/support/parallel.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "kernels/device.h"
#include "kernels/host.h"
#include "onnx_passes/ir/error.h"
#include "tests/support/error_of.h"

namespace onnx_train::cpu::parallel_test {
namespace {

constexpr int64_t kItems = 1000;

class Parallel : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { set_num_threads(GetParam()); }
  void TearDown() override { set_num_threads(before_); }

  // What f(i) says that it throws for some i < kItems; empty when all are done.
  template <typename F>
  static std::string error_of(const F& f) {
    return onnx_train::error_of([&] {
      parallel_for(kItems, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) f(i);
      });
    });
  }

 private:
  const int before_ = num_threads();
};

TEST_P(Parallel, TheCallerGetsAnErrorOfAnyItem) {
  for (const int64_t bad : {int64_t{0}, kItems / 2, kItems - 1}) {
    EXPECT_EQ(error_of([&](int64_t i) {
                if (i == bad) fail("item ", i, " is bad");
              }),
              "item " + std::to_string(bad) + " is bad");
  }
}

TEST_P(Parallel, OfSeveralErrorsTheCallerGetsThatOfTheFirstItem) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    EXPECT_EQ(error_of([](int64_t i) {
                if (i % 100 == 7) fail("item ", i, " is bad");
              }),
              "item 7 is bad");
  }
}

TEST_P(Parallel, ThePoolWorksAfterAnError) {
  error_of([](int64_t i) { fail("item ", i, " is bad"); });
  std::vector<int64_t> done(kItems);
  EXPECT_EQ(error_of([&](int64_t i) { done[static_cast<size_t>(i)] += i; }), "");
  EXPECT_EQ(std::accumulate(done.begin(), done.end(), int64_t{0}), kItems * (kItems - 1) / 2);
  EXPECT_EQ(num_threads(), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Threads, Parallel, testing::Values(1, 2, 3));

}  // namespace
}  // namespace onnx_train::cpu::parallel_test
