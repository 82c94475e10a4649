#include <gtest/gtest.h>

#include "kernels/math/philox.h"

namespace onnx_train {
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

}  // namespace
}  // namespace onnx_train
