// Choices between forms of a computation: the faster one runs, and stays chosen.
#include "kernels/cuda/choices/fastest.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "kernels/choices/cache.h"
#include "kernels/cuda/support/device.h"
#include "kernels/cuda/support/stream.h"
#include "kernels/functions/functions.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/model.h"
#include "tests/cuda_on_host/runtime.h"
#include "tests/support/empty_model.h"
#include "tests/support/scoped_variable.h"

namespace onnx_train::cuda::fastest_test {
namespace {

// y = x
Model copy_of(int64_t elements) {
  Model model = from_text(concat(R"(<ir_version: 10, opset_import: ["" : 21]>
    copy (float[)",
                                 elements, R"(] x) => (float[)", elements, R"(] y) { y = Identity (x) })"));
  infer_types(model.graph.get());
  return model;
}

// A form that copies `times` times, and counts its runs.
Form copies(const std::string& name, int times, size_t bytes, int* runs, size_t workspace = 0) {
  Prepared prepared = {[=](const Launch& launch) {
    ++*runs;
    for (int i = 0; i < times; ++i) launch.stream->copy({launch.outputs[0], launch.inputs[0], bytes});
  }};
  prepared.workspace = workspace;
  return {name, [=] { return std::optional(prepared); }};
}

class CudaFastest : public testing::Test {
 protected:
  CudaFastest()
      : folder_(testing::TempDir() + "choices"),
        timed_("ONNX_TRAIN_TIMED_CHOICES", "1000"),  // seconds, for a busy machine
        cache_("ONNX_TRAIN_CACHE", folder_) {
    std::filesystem::remove_all(folder_);
  }

  // Returns the form chosen among `slow`, the rule, and `fast`.
  std::string choose(int64_t elements, int slow, int fast, size_t workspace = 0) {
    const Model model = copy_of(elements);
    const NodeSpec spec(*model.graph->first(), {Tensor()}, 1);
    const size_t bytes = static_cast<size_t>(elements) * sizeof(float);
    const std::vector<Form> forms = {copies("slow", slow, bytes, &runs_),
                                     copies("fast", fast, bytes, &runs_, workspace),
                                     {"refused", [] { return std::optional<Prepared>(); }}};
    const DeviceScope scope(cuda_device());
    return fastest(spec, "a library", forms).form;
  }

  // What the files of all choices hold.
  std::string choices() const {
    std::string text;
    for (const auto& file : std::filesystem::directory_iterator(folder_ + "/cuda"))
      text += std::string(std::istreambuf_iterator(std::ifstream(file.path()).rdbuf()), {});
    return text;
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
  gpu_host::set_memory_bytes(size_t{1} << 20);
  EXPECT_EQ(choose(50003, 40, 1, size_t{1} << 20), "slow") << "too little memory";
  gpu_host::set_memory_bytes(size_t{4} << 30);
  EXPECT_EQ(runs_, 0);
  EXPECT_EQ(choose(50003, 40, 1), "fast");
  EXPECT_EQ(choose(50007, 40, 1, size_t{64} << 20), "slow") << "a large workspace";
}

TEST_F(CudaFastest, ChoicesThatTakeTooLongAreCutShortAndMadeAgainWithMoreTime) {
  {
    const ScopedVariable limit("ONNX_TRAIN_TIMED_CHOICES", "1e-9");
    EXPECT_EQ(choose(50004, 40, 1), "slow, chosen when 1e-09 s of choices were over");
    EXPECT_EQ(choose(50004, 40, 1), "slow, chosen when 1e-09 s of choices were over") << "the same bits again";
  }
  EXPECT_EQ(runs_, 0);
  EXPECT_EQ(choose(50004, 40, 1), "fast");
  const ScopedVariable limit("ONNX_TRAIN_TIMED_CHOICES", "1e-9");
  EXPECT_EQ(choose(50004, 40, 1), "fast") << "a choice that was not cut short";
}

TEST_F(CudaFastest, AFormCanBeDemanded) {
  for (const auto& [value, form] : {std::pair("form=0", "slow"), {"form=1", "fast"}, {"form=7", "fast"}}) {
    const ScopedVariable demanded("ONNX_TRAIN_TIMED_CHOICES", value);
    EXPECT_EQ(choose(50005, 1, 1), form);
  }
  const ScopedVariable wrong("ONNX_TRAIN_TIMED_CHOICES", "fast");
  EXPECT_THROW(choose(50005, 1, 1), Error);
}

// Arithmetic on zeros takes less power than on other numbers.
TEST_F(CudaFastest, FormsAreTimedOnNoise) {
  const Model model = copy_of(50006);
  const NodeSpec spec(*model.graph->first(), {Tensor()}, 1);
  std::vector<float> seen(50006);
  const auto look = [&](const Launch& launch) {
    launch.stream->copy_to_host(seen.data(), launch.inputs[0], seen.size() * sizeof(float));
    launch.stream->synchronize();
  };
  const DeviceScope scope(cuda_device());
  bool is_first = true;
  const auto prepare = [&] {
    return std::optional<Prepared>(Prepared{[&](const Launch& launch) {
      if (std::exchange(is_first, false)) look(launch);  // before the graph is recorded
    }});
  };
  fastest(spec, "a library", {{"one", prepare}, {"two", prepare}});
  double sum = 0, squares = 0;
  for (const float x : seen) {
    EXPECT_LE(std::abs(x), 1);
    sum += x;
    squares += double{x} * x;
  }
  EXPECT_NEAR(sum / 50006, 0, 0.01);
  EXPECT_NEAR(squares / 50006, 1.0 / 3, 0.01);
}

TEST_F(CudaFastest, AFormWithOtherResultsIsNotChosen) {
  const Model model = copy_of(50008);
  const NodeSpec spec(*model.graph->first(), {Tensor()}, 1);
  const size_t bytes = 50008 * sizeof(float);
  const Form lazy = {"writes nothing", [] { return std::optional<Prepared>(Prepared{[](const Launch&) {}}); }};
  const Form late = {
      "starts at the second element", [=] {
        return std::optional<Prepared>(Prepared{[=](const Launch& launch) {
          launch.stream->copy({launch.outputs[0], static_cast<const float*>(launch.inputs[0]) + 1, bytes - 4});
        }});
      }};
  const DeviceScope scope(cuda_device());
  EXPECT_EQ(fastest(spec, "a library", {copies("slow", 40, bytes, &runs_), lazy, late}).form, "slow");
}

// Each algorithm of the host takes longer than the next, the first 25 times as long as the last. What a busy machine
// measures is in the file of the choice.
TEST_F(CudaFastest, AProductHasTheAlgorithmWithTheLeastTime) {
  gpu_host::let_products_have_algorithms(4);
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    product (float[192, 200] a, float[200, 208] b) => (float[192, 208] y) { y = MatMul (a, b) })");
  infer_types(model.graph.get());
  const NodeSpec spec(*model.graph->first(), {Tensor(), Tensor()}, 1);
  const DeviceScope scope(cuda_device());
  const std::string form = prepare(*find_kernel(cuda_device(), spec), spec).form;
  gpu_host::let_products_have_algorithms(1);
  EXPECT_NE(form, "algorithm 0");
  std::istringstream choice(choices());
  std::map<double, std::string> by_time;
  std::string line;
  std::getline(choice, line);
  EXPECT_TRUE(line.ends_with(form)) << line;  // after a checksum
  while (by_time.size() < 4 && std::getline(choice, line)) {
    const size_t end = line.find(" ms ");
    ASSERT_NE(end, std::string::npos) << line;
    by_time[std::stod(line)] = line.substr(end + 4);
  }
  ASSERT_EQ(by_time.size(), 4);
  EXPECT_EQ(by_time.begin()->second, form);
}

TEST_F(CudaFastest, AProductOf8BitsHasAnAlgorithmThatIsFasterThanTheFirst) {
  gpu_host::let_products_have_algorithms(4);
  Model model = empty_model();
  Builder b(model.graph.get());
  const auto input = [&](const char* name, DType type, const Dims& dims) {
    return b.var(model.graph->add_input(name, {type, dims}));
  };
  const Node& node =
      *call_lowered(b, "ScaledMatMul",
                    {input("a", DType::kFloat8E4M3FN, {192, 208}), input("b", DType::kFloat8E5M2, {192, 208}),
                     input("s", DType::kFloat, {}), input("t", DType::kFloat, {})},
                    {{"to", static_cast<int>(DType::kFloat)}})
           .value()
           ->producer();
  const NodeSpec spec(node, std::vector<Tensor>(4), 1);
  const DeviceScope scope(cuda_device());
  EXPECT_NE(prepare(*find_kernel(cuda_device(), spec), spec).form, "algorithm 0");
  gpu_host::let_products_have_algorithms(1);
}

// Recurrent weights as large as noise would make the roundings of a form grow to other results.
TEST_F(CudaFastest, TheFormsOfARecurrentOperatorAgree) {
  const ScopedVariable processors("GPU_HOST_PROCESSORS", "16");
  Model model = from_text(R"(<ir_version: 10, opset_import: ["" : 21]>
    recurrent (float[24, 3, 8] x, float[1, 192, 8] w, float[1, 192, 48] r, int32[3] lengths) => (float[24, 1, 3, 48] y) {
      y = LSTM <hidden_size = 48> (x, w, r, , lengths)
    })");
  infer_types(model.graph.get());
  const NodeSpec spec(*model.graph->first(), std::vector<Tensor>(5), 1);
  const DeviceScope scope(cuda_device());
  prepare(*find_kernel(cuda_device(), spec), spec);
  EXPECT_NE(choices().find(" ms step by step\n"), std::string::npos) << choices();
  EXPECT_NE(choices().find(" ms one kernel of "), std::string::npos) << choices();
}

// The gradients of scale and bias are summed in as many pieces as blocks run at a time.
TEST_F(CudaFastest, ANormalizationHasAsManyPiecesAsTheDeviceHasMultiprocessors) {
  const auto workspace_with = [](const char* count) {
    const ScopedVariable processors("GPU_HOST_PROCESSORS", count);
    Model model = empty_model();
    Builder b(model.graph.get());
    const auto input = [&](const char* name, const Dims& dims) {
      return b.var(model.graph->add_input(name, {DType::kFloat, dims}));
    };
    const Var x = input("x", {4096, 64}), scale = input("scale", {64}), dy = input("dy", {4096, 64});
    const NodeSpec spec(*call(b, "LayerNormalizationGrad", 3, {x, scale, dy})[0].value()->producer(),
                        std::vector<Tensor>(3), 1);
    const DeviceScope scope(cuda_device());
    return prepare(*find_kernel(cuda_device(), spec), spec).workspace;
  };
  EXPECT_EQ(workspace_with("12"), 3 * workspace_with("4"));
}

TEST_F(CudaFastest, WhatIsKeptIsRead) {
  const CacheEntry entry = {"cuda", "kind", "key"};
  EXPECT_EQ(keep_cached(entry, "content"), "content");
  EXPECT_EQ(read_cached(entry), "content");
  EXPECT_EQ(keep_cached(entry, "of a later process"), "content");
  EXPECT_EQ(read_cached(entry), "content");
  EXPECT_EQ(read_cached({"cuda", "kind", "other"}), std::nullopt);
  EXPECT_EQ(read_cached({"cuda", "other", "key"}), std::nullopt);
  EXPECT_EQ(read_cached({"other", "kind", "key"}), std::nullopt);
  for (const auto& file : std::filesystem::directory_iterator(folder_ + "/cuda"))
    std::filesystem::resize_file(file.path(), std::filesystem::file_size(file.path()) - 1);
  EXPECT_EQ(read_cached(entry), std::nullopt) << "a truncated file";
  EXPECT_EQ(keep_cached(entry, "anew"), "anew");
  EXPECT_EQ(read_cached(entry), "anew");
}

}  // namespace
}  // namespace onnx_train::cuda::fastest_test
