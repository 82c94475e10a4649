#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/onnx.h"
#include "tests/support/golden.h"

namespace onnx_train {
namespace {

constexpr const char* kSeparator = "\n---\n";

// Beside the program, where scripts/gpu_pack puts it, or in the source tree.
std::filesystem::path golden_folder() {
  std::error_code error;
  const auto packed = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "golden";
  return std::filesystem::is_directory(packed, error) ? packed : ONNX_TRAIN_SOURCE_DIR "/tests/golden";
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path << " cannot be read";
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

void expect_golden(const std::string& name, const std::vector<Pass>& passes) {
  const std::string path = golden_folder() / (name + ".txt");
  const std::string text = read(path);
  const size_t cut = text.find(kSeparator);
  const std::string before = text.substr(0, cut);
  Model model = from_text(before);
  infer_types(model.graph.get());
  for (const Pass& pass : passes) pass.run(model);
  model.context->functions.erase_if([](const auto& f) { return f->domain() == kDomain; });
  const std::string after = to_text(model);
  if (std::getenv("UPDATE_GOLDEN")) {
    std::ofstream(path) << before << kSeparator << after;
    return;
  }
  ASSERT_NE(cut, std::string::npos) << path << " has no result yet; run with UPDATE_GOLDEN=1";
  EXPECT_EQ(after, text.substr(cut + std::string(kSeparator).size())) << path << "; UPDATE_GOLDEN=1 accepts the change";
}

}  // namespace onnx_train
