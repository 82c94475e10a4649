#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tools/opt/pass_registry.h"

namespace onnx_train {
namespace {

constexpr const char* kSeparator = "\n---\n";
constexpr const char* kWritten = "UPDATE_GOLDEN=1 writes it -->\n\n";

// Beside the program, where scripts/gpu_pack puts it, or in the source tree.
std::filesystem::path golden_folder() {
  std::error_code error;
  const auto packed = std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / "golden";
  return std::filesystem::is_directory(packed, error) ? packed : source_folder() / "tests/golden";
}

std::string read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file) << path << " cannot be read";
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Compares what is after the separator with `made`, or writes it there.
void expect_after(const std::string& separator, const std::string& path, const std::string& text,
                  const std::string& made) {
  const size_t cut = text.find(separator);
  if (std::getenv("UPDATE_GOLDEN")) {
    std::ofstream(path) << text.substr(0, cut) << separator << made;
    return;
  }
  ASSERT_NE(cut, std::string::npos) << path << " has no result yet; run with UPDATE_GOLDEN=1";
  EXPECT_EQ(made, text.substr(cut + separator.size())) << path << "; UPDATE_GOLDEN=1 accepts the change";
}

}  // namespace

void expect_reference(const std::string& page, const std::string& reference) {
  const std::string path = source_folder() / "docs" / page, text = read(path);
  ASSERT_NE(text.find(kWritten), std::string::npos) << path;
  expect_after(kWritten, path, text, reference);
}

namespace {

// `rewrite` infers the model's types and runs passes.
void expect_rewritten(const std::string& name, const std::function<void(const std::string& text, Model*)>& rewrite) {
  const std::string path = golden_folder() / (name + ".txt");
  const std::string text = read(path);
  Model model = from_text(text.substr(0, text.find(kSeparator)));
  rewrite(text, &model);
  model.context->functions.erase_if([](const auto& f) { return f->domain() == kDomain; });
  expect_after(kSeparator, path, text, to_text(model));
}

}  // namespace

void expect_golden(const std::string& name, const std::vector<Pass>& passes) {
  expect_rewritten(name, [&](const std::string&, Model* model) {
    infer_types(model->graph.get());
    for (const Pass& pass : passes) pass.run(*model);
  });
}

std::vector<std::string> golden_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_folder())) {
    if (read(entry.path()).starts_with("# passes: ")) names.push_back(entry.path().stem());
  }
  std::sort(names.begin(), names.end());
  return names;
}

void expect_golden(const std::string& name) {
  expect_rewritten(name, [](const std::string& text, Model* model) {
    PassSettings settings;
    read_header(text, pass_options(&settings));
    run_passes(model, settings);
  });
}

}  // namespace onnx_train
