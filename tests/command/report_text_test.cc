#include "runtime/support/report_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "onnx_passes/ir/error.h"

namespace onnx_train::report_text_test {
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

TEST(Format, WrappedTextHangsAndKeepsOptionsWithTheirValues) {
  EXPECT_EQ(wrap("one two three four five six", 16, 2, 2), "  one two three\n    four five\n    six");
  EXPECT_EQ(wrap("make it dynamic: --batch dynamic", 24, 0), "make it dynamic:\n--batch dynamic");
  EXPECT_EQ(wrap("loss 1  eval 2  best", 16, 0), "loss 1  eval 2\nbest");  // runs of spaces stay
  EXPECT_EQ(wrap("however long", 0, 2), "  however long");
}

TEST(Format, WrappedCommandsCanBeCopied) {
  const std::string command = concat("onnx-train build ", shell_quoted("my model's.onnx"), " -o train.onnx --loss ",
                                     shell_quoted("0.7*cross_entropy(logits, labels) + mse(aux, target)"));
  EXPECT_THAT(command, testing::HasSubstr(R"('my model'\''s.onnx')"));
  for (const size_t width : {30u, 60u, 90u}) {
    std::string text = wrap_command(command, width, 2);
    for (size_t at; (at = text.find(" \\\n")) != std::string::npos;) {
      text.replace(at, text.find_first_not_of(' ', at + 3) - at, " ");
    }
    EXPECT_EQ(text, "  " + command) << width;
  }
  EXPECT_EQ(wrap_command("onnx-train check model.onnx", 20, 0), "onnx-train check \\\n    model.onnx");
}

TEST(Format, LongNamesAreShortenedInTheirMiddle) {
  EXPECT_EQ(shorten("encoder.layers.0.weight", 11), "encod\u2026eight");
  EXPECT_EQ(shorten("größe", 5), "größe");
  EXPECT_EQ(shorten("größer", 5), "gr\u2026er");
  EXPECT_EQ(shorten("abc", 1), "\u2026");
}

TEST(Format, NoTableIsWiderThanItsWidthAndNoNumberIsCut) {
  TextTable table("rwwrlr");
  table.add({"#", "operator", "outputs", "bytes", "kernel", "ms"});
  const std::string name(70, 'x');
  table.add(
      {"0", "Gemm of bfloat16", "y float[batch,10], " + name + " float[3]", "1234.5 KiB", "oneDNN gemm", "12.345"});
  table.add({"1", name, "a\nb", "7 B", name, "0.5"});
  for (const size_t width : {20u, 30u, 40u, 60u, 80u, 120u, 300u}) {
    const std::string text = table.text(2, width);
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) EXPECT_LE(text_columns(line), width) << line;
    for (const char* number : {"1234.5", "12.345", "0.5"}) EXPECT_THAT(text, testing::HasSubstr(number)) << width;
  }
  const std::string plain = table.text(2, 0);
  EXPECT_EQ(std::count(plain.begin(), plain.end(), '\n'), 3);  // a row is a line
  EXPECT_THAT(plain, testing::HasSubstr(name));
}

TEST(Format, TablesAlign) {
  TextTable table("lr");
  table.add({"a", "1"});
  table.add({"größe", "100"});
  table.add({"rest"});
  EXPECT_EQ(table.text(1), " a        1\n größe  100\n rest\n");
}

}  // namespace
}  // namespace onnx_train::report_text_test
