// Products and convolutions of one version of oneDNN, without us: bench/onednn_versions.py compiles it once for each.
// Standard input has a line for each computation, and standard output its milliseconds, the fastest of many:
//
//   product M K N TRANSPOSED_A TRANSPOSED_B TYPE          y[M,N] = a[M,K] b[K,N], in these layouts
//   conv KIND BATCH CHANNELS SIZE FILTERS KERNEL STRIDE TYPE   square images channels last, filters as oneDNN likes
//   them
//
// TYPE is f32 or bf16. KIND is forward, input or weight. "-" stands for what a version cannot compute.
#include <dnnl.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <functional>
#include <iostream>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using dnnl::memory;
using Clock = std::chrono::steady_clock;
using Run = std::function<void()>;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

memory::data_type type_of(const std::string& text) {
  return text == "bf16" ? memory::data_type::bf16 : memory::data_type::f32;
}

double milliseconds(const Run& run) {
  constexpr double kSeconds = 0.3;
  for (int i = 0; i < 3; ++i) run();
  double fastest = 1e9;
  const auto begin = Clock::now();
  for (int i = 0; i < 5 || Clock::now() - begin < std::chrono::duration<double>(kSeconds); ++i) {
    const auto start = Clock::now();
    run();
    fastest = std::min(fastest, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return fastest;
}

memory filled(const memory::desc& desc) {
  memory result(desc, engine());
  std::memset(result.get_data_handle(), 0x3c, desc.get_size());  // small numbers in both types
  return result;
}

Run run_of(const dnnl::primitive_desc_base& desc, const std::vector<int>& arguments) {
  std::unordered_map<int, memory> operands;
  for (const int argument : arguments)
    operands.emplace(argument, filled(desc.query_md(dnnl::query::exec_arg_md, argument)));
  return [operands, primitive = dnnl::primitive(desc.get()), stream = dnnl::stream(engine())]() mutable {
    primitive.execute(stream, operands);
    stream.wait();
  };
}

memory::dims strides_of(int64_t rows, int64_t columns, bool transposed) {
  return transposed ? memory::dims{1, rows} : memory::dims{columns, 1};
}

Run product(int64_t m, int64_t k, int64_t n, bool ta, bool tb, memory::data_type type) {
  const dnnl::matmul::primitive_desc desc(engine(), {{m, k}, type, strides_of(m, k, ta)},
                                          {{k, n}, type, strides_of(k, n, tb)},
                                          {{m, n}, memory::data_type::f32, memory::format_tag::ab});
  return run_of(desc, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST});
}

Run convolution(const std::string& kind, int64_t batch, int64_t channels, int64_t size, int64_t filters, int64_t kernel,
                int64_t stride, memory::data_type type) {
  const int64_t padding = (kernel - 1) / 2, to = (size + 2 * padding - kernel) / stride + 1;
  const auto last = memory::format_tag::nhwc, any = memory::format_tag::any;
  const memory::desc x({batch, channels, size, size}, type, last), y({batch, filters, to, to}, type, last),
      w({filters, channels, kernel, kernel}, type, any);
  const memory::dims strides{stride, stride}, pads{padding, padding};
  const auto algorithm = dnnl::algorithm::convolution_direct;
  const dnnl::convolution_forward::primitive_desc forward(engine(), dnnl::prop_kind::forward_training, algorithm, x, w,
                                                          y, strides, pads, pads);
  if (kind == "forward") return run_of(forward, {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST});
  if (kind == "input") {
    const dnnl::convolution_backward_data::primitive_desc desc(engine(), algorithm, x, w, y, strides, pads, pads,
                                                               forward);
    return run_of(desc, {DNNL_ARG_DIFF_DST, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_SRC});
  }
  const dnnl::convolution_backward_weights::primitive_desc desc(engine(), algorithm, x, w, y, strides, pads, pads,
                                                                forward);
  return run_of(desc, {DNNL_ARG_SRC, DNNL_ARG_DIFF_DST, DNNL_ARG_DIFF_WEIGHTS});
}

Run read(const std::string& line) {
  std::istringstream words(line);
  std::string what, kind, type;
  words >> what;
  if (what == "product") {
    int64_t m = 0, k = 0, n = 0;
    bool ta = false, tb = false;
    words >> m >> k >> n >> ta >> tb >> type;
    return product(m, k, n, ta, tb, type_of(type));
  }
  int64_t batch = 0, channels = 0, size = 0, filters = 0, kernel = 0, stride = 0;
  words >> kind >> batch >> channels >> size >> filters >> kernel >> stride >> type;
  return convolution(kind, batch, channels, size, filters, kernel, stride, type_of(type));
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    try {
      std::printf("%.6f\n", milliseconds(read(line)));
    } catch (const std::exception&) {
      std::puts("-");
    }
    std::fflush(stdout);
  }
}
