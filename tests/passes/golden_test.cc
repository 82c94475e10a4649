#include <gtest/gtest.h>

#include "tests/support/golden.h"

namespace onnx_train::golden_test {
namespace {

class Golden : public testing::TestWithParam<std::string> {};

TEST_P(Golden, ThePassesOfTheFileMakeWhatFollows) { expect_golden(GetParam()); }

INSTANTIATE_TEST_SUITE_P(Files, Golden, testing::ValuesIn(golden_names()), [](const auto& name) { return name.param; });

TEST(GoldenFiles, AreFound) { EXPECT_GE(golden_names().size(), 29u); }

}  // namespace
}  // namespace onnx_train::golden_test
