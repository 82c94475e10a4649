// Element-wise chains as exporters spell them, through plans with and without fuse_elementwise: time of one run. The
// shapes are those of a GPT of width 768 (512 tokens), and one with rows of two.
#include <benchmark/benchmark.h>

#include <string>

#include "onnx_passes/io/loading.h"
#include "runtime/session/session.h"
#include "tests/support/run_node.h"

namespace onnx_train {
namespace {

struct Chain {
  const char* name;
  const char* signature;  // "(float[512,3072] x) => (float[512,3072] y) <float half = {0.5}>"
  const char* nodes;
};

constexpr Chain kChains[] = {
    {"gelu_erf",
     "(float[512,3072] x) => (float[512,3072] y) <float root = {0.70710677}, float one = {1}, float half = {0.5}>",
     "a = Mul(x, root) b = Erf(a) c = Add(b, one) d = Mul(x, c) y = Mul(d, half)"},
    {"gelu_tanh",
     "(float[512,3072] x) => (float[512,3072] y) <float three = {3}, float k = {0.044715}, float s = {0.7978846}, "
     "float one = {1}, float half = {0.5}>",
     "a = Pow(x, three) b = Mul(a, k) c = Add(x, b) d = Mul(c, s) e = Tanh(d) f = Add(e, one) g = Mul(x, half) "
     "y = Mul(g, f)"},
    {"silu", "(float[512,3072] x) => (float[512,3072] y)", "a = Sigmoid(x) y = Mul(x, a)"},
    {"layer_norm",
     "(float[512,768] x, float[768] w, float[768] b) => (float[512,768] y) <int64[1] last = {-1}, float small = "
     "{1e-5}>",
     "m = ReduceMean(x, last) c = Sub(x, m) q = Mul(c, c) v = ReduceMean(q, last) u = Add(v, small) d = Sqrt(u) "
     "n = Div(c, d) g = Mul(n, w) y = Add(g, b)"},
    {"softmax", "(float[24,256,256] x) => (float[24,256,256] y) <int64[1] last = {-1}>",
     "m = ReduceMax(x, last) c = Sub(x, m) e = Exp(c) s = ReduceSum(e, last) y = Div(e, s)"},
    {"dropout_residual",
     "(float[512,768] dy, bool[512,768] mask, float[512,768] r) => (float[512,768] y) "
     "<float keep = {0.9}, float zero = {0}>",
     "a = Div(dy, keep) b = Where(mask, a, zero) y = Add(r, b)"},
    {"bias_relu", "(float[512,3072] x, float[3072] b) => (float[512,3072] y)", "a = Add(x, b) y = Relu(a)"},
    {"rows_of_two", "(float[262144,2] x, float[2] b, float[2] w) => (float[262144,2] y)",
     "a = Add(x, b) y = Mul(a, w)"},
    {"sigmoid_gradient", "(float[512,3072] p, float[512,3072] dy) => (float[512,3072] y) <float one = {1}>",
     "a = Sub(one, p) b = Mul(p, a) y = Mul(b, dy)"},
    {"bias_gradient",
     "(float[512,3072] p, float[512,3072] dy) => (float[512,3072] y, float[3072] s) "
     "<float one = {1}, int64[1] first = {0}>",
     "a = Sub(one, p) b = Mul(p, a) y = Mul(b, dy) s = ReduceSum<keepdims = 0>(y, first)"},
};

void run(benchmark::State& state, const Chain& chain, bool fuses) {
  const std::string text =
      std::string("<ir_version: 10, opset_import: [\"\" : 21]>\ng ") + chain.signature + " { " + chain.nodes + " }";
  SessionOptions options;
  if (!fuses) options.plan.lowering.without = {"fuse_elementwise"};
  Session session(from_text(text), options);
  TensorMap inputs;
  int64_t bytes = 0;
  for (const Value* input : session.model().graph->inputs()) {
    const Shape shape = input->type().shape();
    Tensor tensor = random_tensor(DType::kFloat, shape, 1);
    if (input->dtype() == DType::kBool) tensor = tensor.cast(DType::kBool);
    bytes += static_cast<int64_t>(tensor.bytes());
    inputs[input->name()] = tensor;
  }
  session.run(Entry::kPredict, inputs);
  for (auto _ : state) session.run(Entry::kPredict, inputs);
  state.SetBytesProcessed(state.iterations() * bytes);
}

const bool kRegistered = [] {
  for (const Chain& chain : kChains) {
    for (bool fuses : {true, false}) {
      const std::string name = std::string("chain/") + chain.name + (fuses ? "/fused" : "/separate");
      benchmark::RegisterBenchmark(name.c_str(), [&chain, fuses](benchmark::State& state) {
        run(state, chain, fuses);
      })->UseRealTime();
    }
  }
  return true;
}();

}  // namespace
}  // namespace onnx_train
