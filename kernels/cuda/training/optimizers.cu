// Optimizer updates (kernels/geometry/updates.h) of up to kMostTensors tensors in one launch, and the norm of all
// gradients. An update writes nothing after a fault.
#include <vector>

#include "kernels/cuda/support/elements.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/launch.h"
#include "kernels/cuda/support/tensor_list.h"
#include "kernels/cuda/support/total.h"
#include "kernels/cuda/support/warp.h"
#include "kernels/dispatch.h"
#include "kernels/geometry/updates.h"
#include "kernels/math/dynamic_map.h"
#include "onnx_passes/functions/functions.h"

namespace onnx_train::cuda {
namespace {

constexpr int kMostTensors = 32;  // tensors per launch, passed as kernel parameters

// A scalar on the device, or a constant.
struct Scalar {
  const void* data;
  DType dtype;
  double constant;

  Scalar(const UpdateScalar& scalar, const Launch& launch)
      : data(scalar.input < 0 ? nullptr : launch.inputs[scalar.input]),
        dtype(scalar.dtype),
        constant(scalar.constant) {}
  __device__ double value() const {
    if (!data) return constant;
    switch (dtype) {
      case DType::kInt64: return static_cast<double>(*static_cast<const int64_t*>(data));
      case DType::kDouble: return *static_cast<const double*>(data);
      default: return static_cast<double>(*static_cast<const float*>(data));
    }
  }
};

struct Rule {
  math::UpdateParameters parameters;
  Scalar step, rate, scale;
  const bool* guard;  // null if there is none
  __device__ math::Coefficients coefficients() const {
    return math::coefficients_of(parameters, step.value(), rate.value(), scale.value());
  }
};

struct Tensor {
  const void* in[4];
  void* out[3];
  int64_t size, first_block;
};

using Tensors = TensorList<Tensor, kMostTensors>;

template <typename T>
__device__ void update_element(const Tensor& tensor, int64_t i, const math::UpdateParameters& parameters,
                               const math::Coefficients& k) {
  const auto in = [&](int n) { return static_cast<const T*>(tensor.in[n])[i]; };
  const auto out = [&](int n) { return static_cast<T*>(tensor.out[n]) + i; };
  switch (parameters.formula) {
    case math::UpdateFormula::kSgd: *out(0) = math::Sgd<T>(k)(in(0), in(1)); break;
    case math::UpdateFormula::kMomentum:
      *out(0) = math::Momentum<T>(k, parameters.nesterov)(in(0), in(1), in(2), out(1));
      break;
    case math::UpdateFormula::kAdam: *out(0) = math::Adam<T>(k)(in(0), in(1), in(2), in(3), out(1), out(2)); break;
  }
}

// Copies unchanged tensors to outputs that are elsewhere.
template <typename T>
__device__ void keep_element(const Tensor& tensor, int64_t i) {
  for (int o = 0; o < 3; ++o) {
    const void* const from = tensor.in[o == 0 ? 0 : o + 1];
    if (tensor.out[o] && tensor.out[o] != from) static_cast<T*>(tensor.out[o])[i] = static_cast<const T*>(from)[i];
  }
}

template <typename T>
__global__ void update_tensors(Tensors tensors, Rule rule, const Fault* fault) {
  if (fault->node != 0) return;
  GPU_SHARED(coefficients, math::Coefficients);
  if (threadIdx.x == 0) coefficients = rule.coefficients();
  __syncthreads();
  int64_t begin = 0;
  const Tensor& tensor = tensors.of_block(&begin);
  const int64_t end = std::min(begin + kOfBlock, tensor.size);
  const bool stays = rule.guard && !*rule.guard;
  for (int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
    if (stays) {
      keep_element<T>(tensor, i);
    } else {
      update_element<T>(tensor, i, rule.parameters, coefficients);
    }
  }
}

// The tensors of one launch: they have one rule and one type.
struct Group {
  size_t rule;
  DType dtype;
  std::vector<TensorUpdate> tensors;
};

std::vector<Group> groups_of(const MultiTensorUpdate& all) {
  std::vector<Group> groups;
  for (const TensorUpdate& update : all.tensors) {
    if (update.size == 0) continue;
    Group* group = nullptr;
    for (Group& g : groups) {
      if (g.rule == update.rule && g.dtype == update.dtype && g.tensors.size() < kMostTensors) group = &g;
    }
    if (!group) group = &groups.emplace_back(Group{update.rule, update.dtype, {}});
    group->tensors.push_back(update);
  }
  return groups;
}

void run_group(const Launch& launch, const UpdateRule& rule, const Group& group) {
  Tensors tensors = {};
  for (const TensorUpdate& update : group.tensors) {
    Tensor tensor = {};
    for (int i = 0; i < 4; ++i) tensor.in[i] = update.inputs[i] < 0 ? nullptr : launch.inputs[update.inputs[i]];
    for (int i = 0; i < 3; ++i) tensor.out[i] = update.outputs[i] < 0 ? nullptr : launch.outputs[update.outputs[i]];
    tensor.size = update.size;
    tensors.add(tensor);
  }
  const Rule of_run{rule.parameters,
                    {rule.step, launch},
                    {rule.rate, launch},
                    {rule.scale, launch},
                    rule.guard < 0 ? nullptr : launch.in<bool>(rule.guard)};
  dispatch_float(group.dtype, [&]<typename T>(T) {
    enqueue(launch, "update_tensors", update_tensors<T>, static_cast<unsigned>(tensors.blocks), kThreads, 0, tensors,
            of_run, launch.fault);
  });
}

Prepared prepare_updates(const MultiTensorUpdate& all) {
  Prepared prepared;
  prepared.run = [rules = all.rules, groups = groups_of(all)](const Launch& launch) {
    for (const Group& group : groups) run_group(launch, rules[group.rule], group);
  };
  prepared.in_place = all.in_place();
  return prepared;
}

// ---- AdamW8bit: a block of threads for each block of bytes

template <typename T>
struct QuantizedTensors {
  const T *w, *g, *most1, *most2;
  const uint8_t *stored1, *stored2;
  T *next_w, *next_most1, *next_most2;
  uint8_t *next_stored1, *next_stored2;
};

template <typename T>
__global__ void update_quantized(int64_t size, QuantizedTensors<T> tensors, Rule rule, math::MapPlaces<T> signs,
                                 math::MapPlaces<T> no_signs, const Fault* fault) {
  if (fault->node != 0) return;
  GPU_SHARED(coefficients, math::Coefficients);
  if (threadIdx.x == 0) coefficients = rule.coefficients();
  __syncthreads();
  const int64_t b = blockIdx.x, i = b * kQuantizedBlock + threadIdx.x;
  const bool is_element = i < size;
  T m = signs.number(tensors.stored1[i]) * tensors.most1[b], v = no_signs.number(tensors.stored2[i]) * tensors.most2[b];
  const T next =
      math::Adam<T>(coefficients)(is_element ? tensors.w[i] : T{0}, is_element ? tensors.g[i] : T{0}, m, v, &m, &v);
  if (is_element) tensors.next_w[i] = next;
  const auto larger = [](T x, T y) { return x < y ? y : x; };
  const T most1 = merge_block<kQuantizedBlock>(std::abs(m), larger), most2 = merge_block<kQuantizedBlock>(v, larger);
  tensors.next_stored1[i] = signs.place(m / (most1 > T{0} ? most1 : T{1}));
  tensors.next_stored2[i] = no_signs.place(v / (most2 > T{0} ? most2 : T{1}));
  if (threadIdx.x == 0) tensors.next_most1[b] = most1, tensors.next_most2[b] = most2;
}

Prepared prepare_quantized_update(const NodeSpec& spec) {
  Prepared prepared;
  prepared.in_place = quantized_update_in_place();
  prepared.run = dispatch_float(spec.in_type(0), [&]<typename T>(T) -> std::function<void(const Launch&)> {
    return
        [rule = quantized_update_rule(spec), size = spec.in_size(0), blocks = spec.in_size(3)](const Launch& launch) {
          const QuantizedTensors<T> tensors = {launch.in<T>(0),        launch.in<T>(1),       launch.in<T>(3),
                                               launch.in<T>(5),        launch.in<uint8_t>(2), launch.in<uint8_t>(4),
                                               launch.out<T>(0),       launch.out<T>(2),      launch.out<T>(4),
                                               launch.out<uint8_t>(1), launch.out<uint8_t>(3)};
          const Rule of_run{
              rule.parameters, {rule.step, launch}, {rule.rate, launch}, {rule.scale, launch}, /*guard=*/nullptr};
          if (blocks == 0) return;
          enqueue(launch, "update_quantized", update_quantized<T>, static_cast<unsigned>(blocks),
                  static_cast<unsigned>(kQuantizedBlock), 0, size, tensors, of_run, math::MapPlaces<T>(kSignedMap),
                  math::MapPlaces<T>(kUnsignedMap), launch.fault);
        };
  });
  return prepared;
}

// ---- The norm of all gradients

constexpr int kMostNormed = 96;

struct Normed {
  const void* data;
  int64_t size, first_block;
};

using NormedTensors = TensorList<Normed, kMostNormed>;

// sums[block] = sum of squares of the block's elements, of which each thread reads its own at a time.
template <typename T>
__global__ void sum_squares(NormedTensors tensors, double* sums) {
  constexpr int kOfThread = static_cast<int>(kOfBlock / kThreads);
  int64_t begin = 0;
  const Normed& tensor = tensors.of_block(&begin);
  const T* const data = static_cast<const T*>(tensor.data);
  begin += threadIdx.x * kOfThread;
  double sum = 0;
  const auto add = [&](T x) { sum += static_cast<double>(x) * static_cast<double>(x); };
  if (begin + kOfThread <= tensor.size) {
    const auto elements = load<kOfThread>(data + begin);
    for (int k = 0; k < kOfThread; ++k) add(elements[k]);
  } else {
    for (int64_t i = begin; i < tensor.size; ++i) add(data[i]);
  }
  sum = merge_block<kThreads>(sum, Sum());
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

// The norm, of the sums of all blocks.
template <typename T>
struct NormOfSums {
  using Acc = double;
  const double* sums;
  T* norm;

  __device__ double value(int64_t i) const { return sums[i]; }
  __device__ static double merge(double a, double b) { return a + b; }
  __device__ void finish(double sum) const { *norm = static_cast<T>(std::sqrt(sum)); }
};

// The inputs of one launch: they have one type.
struct NormGroup {
  DType dtype;
  std::vector<int> inputs;
  std::vector<int64_t> sizes;
  int64_t blocks = 0;
};

std::vector<NormGroup> norm_groups(const NodeSpec& spec) {
  std::vector<NormGroup> groups;
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (spec.in_size(i) == 0) continue;
    if (groups.empty() || groups.back().dtype != spec.in_type(i) || groups.back().inputs.size() == kMostNormed) {
      groups.push_back({spec.in_type(i), {}, {}});
    }
    groups.back().inputs.push_back(i);
    groups.back().sizes.push_back(spec.in_size(i));
    groups.back().blocks += (spec.in_size(i) + kOfBlock - 1) / kOfBlock;
  }
  return groups;
}

void run_norm_group(const Launch& launch, const NormGroup& group, double* sums) {
  NormedTensors tensors = {};
  for (size_t i = 0; i < group.inputs.size(); ++i) tensors.add({launch.inputs[group.inputs[i]], group.sizes[i], 0});
  dispatch_float(group.dtype, [&]<typename T>(T) {
    enqueue(launch, "sum_squares", sum_squares<T>, static_cast<unsigned>(tensors.blocks), kThreads, 0, tensors, sums);
  });
}

Prepared prepare_global_norm(const NodeSpec& spec) {
  const std::vector<NormGroup> groups = norm_groups(spec);
  int64_t blocks = 0;
  for (const NormGroup& group : groups) blocks += group.blocks;
  const auto run = [groups, blocks, out = spec.out_type()](const Launch& launch) {
    auto* sums = launch.scratch<double>();
    for (const NormGroup& group : groups) {
      run_norm_group(launch, group, sums);
      sums += group.blocks;
    }
    dispatch_float(out, [&]<typename T>(T) {
      enqueue_total(launch, "add_squares", blocks, NormOfSums<T>{launch.scratch<double>(), launch.out<T>()}, sums);
    });
  };
  return {run, static_cast<size_t>(blocks + total_partials(blocks)) * sizeof(double)};
}

bool has_floats(const NodeSpec& spec) {
  for (int i = 0; i < spec.num_inputs(); ++i) {
    if (!is_float_or_double(spec.in_type(i))) return false;
  }
  return true;
}

}  // namespace

std::vector<Kernel> optimizer_kernels() {
  std::vector<Kernel> kernels;
  for (const UpdateRow& row : update_rows()) {
    kernels.push_back(
        {row.op, row.supports, [&row](const NodeSpec& spec) { return prepare_updates(row.describe(spec)); }, kDomain});
  }
  kernels.push_back({"AdamW8bit", supports_quantized_update, prepare_quantized_update, kDomain});
  kernels.push_back({"GlobalNorm", has_floats, prepare_global_norm, kDomain});
  return kernels;
}

}  // namespace onnx_train::cuda
