// The cache of values that are expensive to make: cuDNN's graphs, shared by all sessions of a process.
#include "kernels/cuda/support/recently_used.h"

#include <gtest/gtest.h>

#include <future>
#include <stdexcept>

namespace onnx_train::cuda::recently_used_test {
namespace {

TEST(CudaRecentlyUsed, TheLeastRecentlyUsedValueGoesFirst) {
  RecentlyUsed<int, int> squares;
  int made = 0;
  const auto find = [&](int key) { return squares.find(key, 3, [&] { return ++made, key * key; }); };
  for (const int key : {1, 2, 3, 1, 4}) EXPECT_EQ(find(key), key * key);  // drops 2
  EXPECT_EQ(squares.size(), 3u);
  EXPECT_EQ(made, 4);
  for (const int key : {1, 3, 4}) find(key);
  EXPECT_EQ(made, 4);
  find(2);
  EXPECT_EQ(made, 5);
  EXPECT_EQ(squares.size(), 3u);
}

TEST(CudaRecentlyUsed, AValueIsMadeBesideAnother) {
  RecentlyUsed<int, int> values;
  std::promise<void> is_begun, may_end;
  auto slow = std::async(std::launch::async, [&] {
    return values.find(1, 8, [&] {
      is_begun.set_value();
      may_end.get_future().wait();
      return 1;
    });
  });
  is_begun.get_future().wait();
  EXPECT_EQ(values.find(2, 8, [] { return 2; }), 2);
  auto same = std::async(std::launch::async, [&] { return values.find(1, 8, [] { return 3; }); });
  may_end.set_value();
  EXPECT_EQ(slow.get(), 1);
  EXPECT_EQ(same.get(), 1);
}

TEST(CudaRecentlyUsed, WhatCouldNotBeMadeIsTriedAgain) {
  RecentlyUsed<int, int> values;
  EXPECT_THROW(values.find(1, 8, []() -> int { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(values.find(1, 8, [] { return 7; }), 7);
}

}  // namespace
}  // namespace onnx_train::cuda::recently_used_test
