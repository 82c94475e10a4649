#include "runtime/session/roofline.h"

#include <algorithm>
#include <chrono>

#include "kernels/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/ir/error.h"
#include "runtime/session/session.h"

namespace onnx_train {
namespace {

// Sizes are doubled from the first to the last until a run takes so many seconds: on a GPU, a hundred times what
// starting a kernel takes. On a slow CPU the largest product would take minutes.
struct Sizes {
  int64_t first, last;
  double seconds;
};
constexpr int kFewest = 3, kMost = 10;  // runs, the best of which counts; as many as fit into
constexpr double kSeconds = 0.3;

// Rows, columns and inner size of a product. A CPU is at its best with 2,048.
Sizes product_sizes(const Device& device) {
  return device.uses_host_memory() ? Sizes{256, 2048, 0.1} : Sizes{256, 8192, 5e-3};
}
// Elements of each tensor of a sum. No cache holds the last.
Sizes sum_sizes(const Device& device) {
  constexpr int64_t kMi = int64_t{1} << 20;
  return device.uses_host_memory() ? Sizes{16 * kMi, 16 * kMi, 0} : Sizes{kMi, 64 * kMi, 5e-3};
}

// A product of bfloat16 operands has float32 sums and is a function in our domain.
Var product(Builder& b, const Var& x, const Var& y) {
  return x.dtype() == DType::kBFloat16 ? call_lowered(b, "MatMul", {x, y}) : matmul(x, y);
}

// A tensor in the device's memory.
class Operand {
 public:
  Operand(Device& device, DType dtype, const Shape& shape, double value) : device_(device) {
    const Tensor host = Tensor::full(dtype, shape, value);
    if (device.uses_host_memory()) {
      tensor_ = host;
      return;
    }
    data_ = device.allocate(host.bytes());
    const std::unique_ptr<Stream> stream = device.make_stream();
    stream->copy_from_host(data_, host.data(), host.bytes());
    stream->synchronize();
    tensor_ = Tensor::on_device(dtype, shape, data_);
  }
  ~Operand() {
    if (data_) device_.free(data_);
  }
  Operand(const Operand&) = delete;

  const Tensor& tensor() const { return tensor_; }

 private:
  Device& device_;
  void* data_ = nullptr;
  Tensor tensor_;
};

// Seconds that the product, or the sum, of two tensors of `shape` takes at best.
double best_time(const Session& measured, bool is_product, DType dtype, const Shape& shape) {
  Device& device = measured.device();
  Model model;
  model.context->opsets[""] = 21;
  Builder b(model.graph.get());
  const TensorType type{dtype, Dims(shape.begin(), shape.end())};
  const Var x = b.var(model.graph->add_input("x", type)), y = b.var(model.graph->add_input("y", type));
  model.graph->add_output((is_product ? product(b, x, y) : x + y).value());
  SessionOptions options;
  options.device = &device;
  options.plan.arithmetic = measured.arithmetic();
  Session session(std::move(model), options);
  const Operand left(device, dtype, shape, 0.3), right(device, dtype, shape, 0.7);
  const TensorMap inputs{{"x", left.tensor()}, {"y", right.tensor()}};
  session.run(Entry::kPredict, inputs);
  Plan& plan = session.plan(Entry::kPredict, shapes_of(inputs));
  double best = 0, spent = 0;
  for (int run = 0; run < kFewest || (run < kMost && spent < kSeconds); ++run) {
    plan.set_profiling(true);
    session.run(Entry::kPredict, inputs);
    double time = 0;
    for (const PlanStep& step : plan.steps()) time += 1e-3 * step.last_milliseconds;
    best = run == 0 ? time : std::min(best, time);
    spent += time;
  }
  return best;
}

// The highest rate of `work(size)` in a second among sizes that are doubled as long as runs are short.
template <typename Work, typename Time>
double best_rate(const Sizes& sizes, const Work& work, const Time& time) {
  double best = 0;
  for (int64_t size = sizes.first; size <= sizes.last; size *= 2) {
    const double seconds = time(size);
    if (seconds > 0) best = std::max(best, work(size) / seconds);
    if (seconds >= sizes.seconds) break;
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

Roofline measure_products(const Session& session, const std::set<DType>& types) {
  const Device& device = session.device();
  Roofline roofline;
  for (const DType dtype : types) {
    try {
      roofline.flops_per_second[dtype] = best_rate(
          product_sizes(device), [](int64_t n) { return 2.0 * static_cast<double>(n * n * n); },
          [&](int64_t n) {
            return best_time(session, true, dtype, {n, n});
          });
    } catch (const Error&) {
      // No kernel: what has such products runs as something else.
    }
  }
  return roofline;
}

Roofline measure_roofline(const Session& session, const std::set<DType>& types) {
  const Device& device = session.device();
  Roofline roofline = measure_products(session, types);
  // A small sum may be read from a cache: only the largest counts.
  const Sizes sizes = sum_sizes(device);
  for (int64_t size = sizes.first; size <= sizes.last; size *= 2) {
    const double seconds = best_time(session, false, DType::kFloat, {size});
    if (seconds > 0) roofline.bytes_per_second = 3.0 * static_cast<double>(size) * sizeof(float) / seconds;
    if (seconds >= sizes.seconds) break;
  }
  return roofline;
}

}  // namespace onnx_train
