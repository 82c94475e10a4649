#include "tools/report/roofline.h"

#include <algorithm>
#include <chrono>

#include "kernels/functions/functions.h"
#include "onnx_passes/ir/builder.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session.h"

namespace onnx_train {
namespace {

constexpr int64_t kProduct = 2048;             // rows, columns and inner size
constexpr int64_t kAdded = int64_t{16} << 20;  // elements
constexpr int kFewest = 3, kMost = 10;         // runs, the best of which counts; as many as fit into
constexpr double kSeconds = 0.3;

// A product of bfloat16 operands has float32 sums and is a function in our domain.
Var product(Builder& b, const Var& x, const Var& y) {
  return x.dtype() == DType::kBFloat16 ? call_lowered(b, "MatMul", {x, y}) : matmul(x, y);
}

// Seconds that the product, or the sum, of two tensors of `shape` takes at best.
double best_time(Device& device, bool is_product, DType dtype, const Shape& shape) {
  Model model;
  model.context->opsets[""] = 21;
  Builder b(model.graph.get());
  const TensorType type{dtype, Dims(shape.begin(), shape.end())};
  const Var x = b.var(model.graph->add_input("x", type)), y = b.var(model.graph->add_input("y", type));
  model.graph->add_output((is_product ? product(b, x, y) : x + y).value());
  SessionOptions options;
  options.device = &device;
  Session session(std::move(model), options);
  const TensorMap inputs{{"x", Tensor::full(dtype, shape, 0.3)}, {"y", Tensor::full(dtype, shape, 0.7)}};
  session.run("predict", inputs);
  double best = 0, spent = 0;
  for (int run = 0; run < kFewest || (run < kMost && spent < kSeconds); ++run) {
    const auto start = std::chrono::steady_clock::now();
    session.run("predict", inputs);
    const double time = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best = run == 0 ? time : std::min(best, time);
    spent += time;
  }
  return best;
}

}  // namespace

double Roofline::arithmetic_milliseconds(const NodeCost& cost) const {
  double seconds = 0;
  for (const auto& [dtype, flops] : cost.flops) {
    const auto rate = flops_per_second.find(dtype);
    if (rate != flops_per_second.end()) seconds += flops / rate->second;
  }
  return 1000 * seconds;
}

double Roofline::least_milliseconds(const NodeCost& cost) const {
  const double moving = bytes_per_second > 0 ? 1000 * cost.bytes / bytes_per_second : 0;
  return std::max(arithmetic_milliseconds(cost), moving);
}

Roofline measure_roofline(Device& device, const std::set<DType>& types) {
  Roofline roofline;
  for (const DType dtype : types) {
    try {
      const double flops = 2.0 * kProduct * kProduct * kProduct;
      roofline.flops_per_second[dtype] = flops / best_time(device, true, dtype, {kProduct, kProduct});
    } catch (const Error&) {
      // No kernel: what has such products runs as something else.
    }
  }
  const double bytes = 3.0 * kAdded * static_cast<double>(sizeof(float));
  roofline.bytes_per_second = bytes / best_time(device, false, DType::kFloat, {kAdded});
  return roofline;
}

}  // namespace onnx_train
