// One rank with a communicator of NCCL, whose functions are in the captured graph: the only test of the library itself
// that one GPU allows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "kernels/cuda/support/device.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "runtime/distribution/simulated_ranks.h"
#include "runtime/session/session.h"
#include "tests/support/empty_model.h"
#include "tests/support/run_node.h"

namespace onnx_train::cuda {
void* nccl_function(const char* name);  // collective/nccl.h, which includes NCCL's header
}

namespace onnx_train::cuda_collectives_test {
namespace {

constexpr int64_t kSize = 1000;

// An AllReduce that runs beside Tanh, and what else ranks do together.
Model make_collectives(DType dtype) {
  Model model = empty_model();
  Graph& graph = *model.graph;
  Builder b(&graph);
  const Var x = b.var(graph.add_input("x", {dtype, Dims{kSize}}));
  const Var z = b.var(graph.add_input("z", {dtype, Dims{kSize}}));
  const Var active = b.scalar(DType::kInt64, 1);
  const auto output = [&](const char* name, const Var& value) {
    b.set_name(name);
    graph.add_output(b.op("Identity", {value}).value());
  };
  const Var sum = call(b, "AllReduce", {x, z, active});
  const Var beside = tanh(cast(x, DType::kFloat));
  output("sum", call(b, "Await", {sum, z}));
  output("beside", beside);
  output("reduced", call(b, "Reduce", {x, z, active}, {{"root", 0}}));
  output("broadcast", call(b, "Broadcast", {x}, {{"root", 0}}));
  output("gathered", call(b, "AllGather", {x}, {{"ranks", 1}}));
  return model;
}

class CudaCollectives : public testing::TestWithParam<DType> {};

TEST_P(CudaCollectives, OneRankRunsThemInACapturedGraph) {
  if (!cuda::nccl_function("ncclGetVersion")) GTEST_SKIP() << "libnccl.so.2 cannot be loaded";
  SimulatedRanks rank(1, {});
  cuda_device().connect(rank);
  SessionOptions options;
  options.device = &cuda_device();
  Session alone(make_collectives(GetParam()), options);
  options.topology.collectives = &rank;
  Session session(make_collectives(GetParam()), options);
  for (unsigned run = 0; run < 3; ++run) {
    const TensorMap inputs = {{"x", random_tensor(GetParam(), {kSize}, 2 * run)},
                              {"z", random_tensor(GetParam(), {kSize}, 2 * run + 1)}};
    const TensorMap results = session.run("predict", inputs);
    for (const auto& [name, expected] : alone.run("predict", inputs)) {
      const Tensor& found = results.at(name);
      ASSERT_EQ(found.bytes(), expected.bytes()) << name;
      EXPECT_EQ(std::memcmp(found.data(), expected.data(), found.bytes()), 0) << name << " in run " << run;
    }
  }
  rank.check();
}

INSTANTIATE_TEST_SUITE_P(Types, CudaCollectives,
                         testing::Values(DType::kFloat, DType::kDouble, DType::kBFloat16, DType::kFloat16),
                         [](const auto& type) { return name(type.param); });

}  // namespace
}  // namespace onnx_train::cuda_collectives_test
