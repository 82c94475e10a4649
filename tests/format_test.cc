#include "runtime/format.h"

#include <gtest/gtest.h>

#include <cmath>

namespace onnx_train {
namespace {

TEST(Format, BytesCountsAndTimes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.5 KiB");
  EXPECT_EQ(format_bytes(1024 * 1024 - 1), "1.0 MiB");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(842496), "842.5k");
  EXPECT_EQ(format_count(124439808), "124.4M");
  EXPECT_EQ(format_duration(7), "0:07");
  EXPECT_EQ(format_duration(3661), "1:01:01");
  EXPECT_EQ(format_duration(NAN), "?");
  EXPECT_EQ(format_number(0.00001), "1.000e-05");
  EXPECT_EQ(format_number(2.30258), "2.303");
}

TEST(Format, ANanHasNoSign) {
  for (const auto& format : {format_number, format_exact, format_bytes, format_count, format_percent}) {
    EXPECT_EQ(format(-NAN), "nan");
    EXPECT_EQ(format(-INFINITY), "-inf");
    EXPECT_EQ(format(INFINITY), "inf");
  }
}

TEST(Format, TextIsWrappedBetweenWords) {
  EXPECT_EQ(wrap("one two three four five six seven eight nine ten", 36, 4),
            "    one two three four five six\n    seven eight nine ten");
  const std::string word(50, 'x');
  EXPECT_EQ(wrap("a " + word + " b", 40, 0), "a\n" + word + "\nb");
  EXPECT_EQ(wrap("", 40, 2), "  ");
}

TEST(Format, TheLastColumnOfATableIsWrappedWhereAWidthIsGiven) {
  TextTable table("lw");
  table.add({"operators", "Gemm 12, Relu 11, Conv 10, Add 9, Mul 8, Reshape 7"});
  EXPECT_EQ(table.text(0, 45), "operators  Gemm 12, Relu 11, Conv 10, Add 9,\n           Mul 8, Reshape 7\n");
  EXPECT_EQ(table.text(0), "operators  Gemm 12, Relu 11, Conv 10, Add 9, Mul 8, Reshape 7\n");
}

TEST(Format, TablesAlign) {
  TextTable table("lr");
  table.add({"a", "1"});
  table.add({"größe", "100"});
  table.add({"rest"});
  EXPECT_EQ(table.text(1), " a        1\n größe  100\n rest\n");
}

}  // namespace
}  // namespace onnx_train
