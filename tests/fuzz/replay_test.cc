// The harnesses of libFuzzer on the inputs in corpus/, among them all that have found a fault, and on damaged forms of
// these. Without a sanitizer this finds crashes, other exceptions than Error, and harnesses that do not compile.
#include <gtest/gtest.h>

#include <fstream>
#include <vector>

#include "tests/fuzz/harness.h"
#include "tests/support/paths.h"

namespace onnx_train::replay_test {
namespace {

using Bytes = std::vector<uint8_t>;

class FuzzHarness : public testing::TestWithParam<fuzz::Harness> {};

std::vector<Bytes> corpus_of(const std::string& name) {
  std::vector<Bytes> inputs;
  for (const auto& entry : std::filesystem::directory_iterator(source_folder() / "tests/fuzz/corpus" / name)) {
    std::ifstream file(entry.path(), std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return inputs;
}

TEST_P(FuzzHarness, TakesItsCorpusAndDamagedFormsOfIt) {
  constexpr size_t kForms = 24;
  const fuzz::Harness& harness = GetParam();
  const std::vector<Bytes> inputs = corpus_of(harness.name);
  ASSERT_FALSE(inputs.empty());
  harness.run({});
  for (const Bytes& input : inputs) {
    harness.run(input);
    for (size_t i = 1; i < kForms; ++i) {
      const size_t at = input.size() * i / kForms;
      harness.run(fuzz::Input(input).first(at));
      Bytes flipped = input;
      if (at < flipped.size()) flipped[at] = static_cast<uint8_t>(flipped[at] ^ (1u << i % 8));
      harness.run(flipped);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, FuzzHarness, testing::ValuesIn(fuzz::kHarnesses),
                         [](const auto& harness) { return std::string(harness.param.name); });

}  // namespace
}  // namespace onnx_train::replay_test
