// Choices between forms of a computation: the faster one runs, and stays chosen.
#include "kernels/cuda/support/fastest.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <limits>
#include <optional>

#include "kernels/cuda/device.h"
#include "kernels/cuda/support/cache.h"
#include "kernels/cuda/support/stream.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "tests/cuda_on_host/runtime.h"

namespace onnx_train::cuda {
namespace {

// Sets a variable of the environment while it lives.
class ScopedVariable {
 public:
  ScopedVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    setenv(name, value.c_str(), 1);
  }
  ~ScopedVariable() { before_ ? setenv(name_, before_->c_str(), 1) : unsetenv(name_); }
  ScopedVariable(const ScopedVariable&) = delete;

 private:
  const char* const name_;
  std::optional<std::string> before_;
};

// y = x
Model copy_of(int64_t elements) {
  Model model = from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
    copy (float[)",
                                 elements, R"(] x) => (float[)", elements, R"(] y) { y = Identity (x) })"));
  infer_types(model.graph.get());
  return model;
}

// A form that copies `times` times, and counts its runs.
Form copies(const std::string& name, int times, size_t bytes, int* runs) {
  return {name, {[=](const Launch& launch) {
            ++*runs;
            for (int i = 0; i < times; ++i) launch.stream->copy({launch.outputs[0], launch.inputs[0], bytes});
          }}};
}

class CudaFastest : public testing::Test {
 protected:
  CudaFastest()
      : folder_(testing::TempDir() + "choices"),
        timed_("ONNX_TRAIN_TIMED_CHOICES", "on"),
        cache_("ONNX_TRAIN_CACHE", folder_) {
    std::filesystem::remove_all(folder_);
  }

  // Returns the form chosen among `slow`, the rule, and `fast`.
  std::string choose(int64_t elements, int slow, int fast, size_t workspace = 0) {
    const Model model = copy_of(elements);
    const NodeSpec spec(*model.graph->first(), {Tensor()}, 1);
    const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
    std::vector<Form> forms = {copies("slow", slow, bytes, &runs_), copies("fast", fast, bytes, &runs_)};
    forms[1].prepared.workspace = workspace;
    const DeviceScope scope(cuda_device());
    return fastest(spec, "a library", std::move(forms)).form;
  }

  const std::string folder_;
  const ScopedVariable timed_, cache_;
  int runs_ = 0;
};

TEST_F(CudaFastest, TheFasterFormIsChosenOnce) {
  EXPECT_EQ(choose(50001, 40, 1), "fast");
  EXPECT_GT(runs_, 2);
  runs_ = 0;
  EXPECT_EQ(choose(50001, 40, 1), "fast");
  EXPECT_EQ(choose(50001, 1, 40), "fast") << "the same node";
  EXPECT_EQ(runs_, 0);
  EXPECT_EQ(choose(50002, 1, 40), "slow") << "another shape";
  EXPECT_FALSE(std::filesystem::is_empty(folder_ + "/cuda"));
}

TEST_F(CudaFastest, TheRuleHoldsWhereNothingIsTimed) {
  {
    const ScopedVariable off("ONNX_TRAIN_TIMED_CHOICES", "off");
    EXPECT_EQ(choose(50003, 40, 1), "slow");
  }
  EXPECT_EQ(choose(50003, 40, 1, std::numeric_limits<size_t>::max() / 2), "slow") << "too little memory";
  EXPECT_EQ(runs_, 0);
  EXPECT_EQ(choose(50003, 40, 1), "fast");
}

// The host's last algorithm takes a 25th of the time of the first.
TEST_F(CudaFastest, AProductHasTheFastestAlgorithm) {
  gpu_host::let_products_have_algorithms(4);
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    product (float[192, 200] a, float[200, 208] b) => (float[192, 208] y) { y = MatMul (a, b) })");
  infer_types(model.graph.get());
  const NodeSpec spec(*model.graph->first(), {Tensor(), Tensor()}, 1);
  const DeviceScope scope(cuda_device());
  EXPECT_EQ(prepare(*find_kernel(cuda_device(), spec), spec).form, "algorithm 3");
  gpu_host::let_products_have_algorithms(1);
}

TEST_F(CudaFastest, WhatIsKeptIsRead) {
  write_cached("kind", "key", "content");
  EXPECT_EQ(read_cached("kind", "key"), "content");
  EXPECT_EQ(read_cached("kind", "other"), std::nullopt);
  EXPECT_EQ(read_cached("other", "key"), std::nullopt);
  for (const auto& file : std::filesystem::directory_iterator(folder_ + "/cuda"))
    std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) - 1);
  EXPECT_EQ(read_cached("kind", "key"), std::nullopt) << "a truncated file";
}

}  // namespace
}  // namespace onnx_train::cuda
