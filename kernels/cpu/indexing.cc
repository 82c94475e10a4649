// Gather and its relatives. Indices are checked before anything is written.
#include <cstring>

#include "kernels/cpu/around_axis.h"
#include "kernels/cpu/indices.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/scatter_rows.h"
#include "kernels/dispatch.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cpu {
namespace {

bool movable(DType dtype) { return dtype != DType::kString && dtype != DType::kUndefined; }

bool supports_gather(const NodeSpec& spec) { return movable(spec.in_type(0)) && is_index_type(spec.in_type(1)); }

// y[o, p, :] = x[o, indices[p], :]
Prepared prepare_gather(const NodeSpec& spec) {
  const AroundAxis x(spec.in_shape(0), spec.node().attr("axis", 0));
  const int64_t n = spec.in_size(1), row = x.inner * static_cast<int64_t>(size_of(spec.in_type(0)));
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(n) * sizeof(int64_t);
  prepared.run = [x, n, row, type = spec.in_type(1), label = spec.node().label()](const Args& args) {
    int64_t* indices = args.scratch<int64_t>();
    read_indices(args.inputs[1], type, n, x.size, label, indices);
    const auto copy = [&](auto copy_row) {
      parallel_for(x.outer * n, kElementGrain * 4 / std::max<int64_t>(row, 1) + 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          copy_row(args.out<char>() + i * row, args.in<char>(0) + (i / n * x.size + indices[i % n]) * row);
        }
      });
    };
    // A length that the compiler knows makes single elements cheap.
    if (row == 4) return copy([](char* to, const char* from) { std::memcpy(to, from, 4); });
    if (row == 8) return copy([](char* to, const char* from) { std::memcpy(to, from, 8); });
    copy([row](char* to, const char* from) { std::memcpy(to, from, static_cast<size_t>(row)); });
  };
  return prepared;
}

// dx[o, indices[p], :] += dy[o, p, :]; the body is in functions/indexing.cc. Inputs dy, indices, shape.
Prepared prepare_gather_grad(const NodeSpec& spec) {
  const AroundAxis x(spec.out_shape(), spec.node().attr("axis", 0));
  const int64_t n = spec.in_size(1), all = spec.out_size();
  if (spec.in_size(0) != x.outer * n * x.inner) {
    fail(spec.node().label(), ": a gradient of shape ", to_string(spec.in_shape(0)), " does not belong to ", n,
         " indices into ", to_string(spec.out_shape()));
  }
  Prepared prepared;
  prepared.workspace = static_cast<size_t>(n) * sizeof(int64_t);
  prepared.run = dispatch_float(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Args&)> {
    return [x, n, all, type = spec.in_type(1), label = spec.node().label()](const Args& args) {
      int64_t* offsets = args.scratch<int64_t>();
      read_indices(args.inputs[1], type, n, x.size, label, offsets);
      for (int64_t i = 0; i < n; ++i) offsets[i] *= x.inner;
      T* out = args.out<T>();
      parallel_for(all, kElementGrain, [&](int64_t begin, int64_t end) { std::fill(out + begin, out + end, T{0}); });
      scatter_rows(RowScatter{x.outer, n, x.size * x.inner, x.inner}, offsets, args.in<T>(0), out,
                   [](T a, T b) { return a + b; });
    };
  });
  return prepared;
}

bool supports_gather_grad(const NodeSpec& spec) {
  return is_float_or_double(spec.in_type(0)) && is_index_type(spec.in_type(1));
}

}  // namespace

std::vector<Kernel> indexing_kernels() {
  return {
      {"Gather", supports_gather, prepare_gather},
      {"GatherGrad", supports_gather_grad, prepare_gather_grad, kDomain},
  };
}

}  // namespace onnx_train::cpu
