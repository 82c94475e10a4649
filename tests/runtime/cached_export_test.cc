#include "runtime/models/cached_export.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/error_of.h"
#include "tests/support/small_decoder.h"

namespace onnx_train::cached_export_test {
namespace {

TEST(CachedExport, ReadsATextAsTheModelItIsMadeOf) {
  for (const char* sizes : {"batch, length", "batch, 16", "1, 16", "3, length"}) {
    Model model = from_text(small_decoder(kCausal, sizes));
    EXPECT_EQ(add_compared_cache(&model), 2) << sizes;
  }
}

TEST(CachedExport, IsRefusedIfItsLogitsAreOthers) {
  Model model = from_text(small_decoder(counting_few()));
  EXPECT_THAT(error_of([&] { add_compared_cache(&model); }), testing::HasSubstr("are not those without"));
}

}  // namespace
}  // namespace onnx_train::cached_export_test
