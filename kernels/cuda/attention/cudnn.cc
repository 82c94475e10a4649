#include "kernels/cuda/attention/cudnn.h"

#include <algorithm>
#include <optional>
#include <span>

#include "kernels/cuda/attention/log_sum_exp.h"
#include "kernels/cuda/fused/nvrtc.h"
#include "kernels/cuda/support/cudnn_graph.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/attention.h"
#include "kernels/geometry/strides.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/ir/inference.h"

namespace onnx_train::cuda {
namespace {

// For shapes of which the last block of keys is not full, earlier versions need tables that cudnn-frontend copies from
// the host in each run.
constexpr size_t kFirstVersion = 91600;

// The numbers by which a graph knows its tensors.
enum TensorId : int64_t { kQ = 1, kK, kV, kY, kHighest, kSum, kLogSumExp, kMask, kDy, kDq, kDk, kDv };

// A 16-bit operand or result of the node.
struct Operand {
  TensorId id;
  bool is_output;
  int index;
  const char* permutation;
};

constexpr Operand kForward[] = {
    {kQ, false, 0, "perm_q"}, {kK, false, 1, "perm_k"}, {kV, false, 2, "perm_v"}, {kY, true, 0, "perm_y"}};
constexpr Operand kBackward[] = {{kDy, false, 0, "perm_dy"}, {kQ, false, 1, "perm_q"}, {kK, false, 2, "perm_k"},
                                 {kV, false, 3, "perm_v"},   {kY, false, 4, "perm_y"}, {kDq, true, 0, "perm_dq"},
                                 {kDk, true, 1, "perm_dk"},  {kDv, true, 2, "perm_dv"}};
constexpr int kForwardMask = 3, kBackwardMask = 7, kBackwardHighest = 5, kBackwardSum = 6;

std::span<const Operand> operands_of(bool backward) {
  return backward ? std::span<const Operand>(kBackward) : std::span<const Operand>(kForward);
}

enum class Masking { kNone, kCausal, kAdded };

// Layouts are of [batch, heads, rows, columns].

// An attention as the library describes it. Equal ones share a graph.
struct Description {
  bool backward;
  DType type;
  float scale;
  Masking masking;
  std::map<int64_t, CudnnLayout> tensors;  // by TensorId

  auto operator<=>(const Description&) const = default;  // NOLINT(modernize-use-nullptr): its 0 is no pointer
};

// ---- Describing a node

// Returns nothing for more than two batch axes.
std::optional<CudnnLayout> layout_of(const Heads& heads) {
  if (heads.batch.size() > 2) return std::nullopt;
  CudnnLayout layout{heads.batch, heads.batch_strides};
  layout.sizes.insert(layout.sizes.end(), {heads.rows, heads.width});
  layout.strides.insert(layout.strides.end(), {heads.row_stride, 1});
  const size_t missing = 4 - layout.sizes.size();
  layout.strides.insert(layout.strides.begin(), missing, num_elements(layout.sizes));
  layout.sizes.insert(layout.sizes.begin(), missing, 1);
  return layout;
}

CudnnLayout contiguous(Sizes sizes) {
  Sizes strides = row_major_strides(sizes);
  return {std::move(sizes), std::move(strides)};
}

// Whether a mask lets query i see keys 0 to i and hides the others.
bool is_causal(const MaskLayout& layout, const Tensor& mask) {
  constexpr float kHidden = -1e30f;
  if (mask.empty() || layout.planes != 1 || layout.rows < 2 || (layout.selects() && !(layout.fill <= kHidden)))
    return false;
  const auto fits = [&](int64_t i, bool is_seen) {
    if (layout.selects()) return mask.data<bool>()[i] == (is_seen == (layout.kind == MaskKind::kKeptWhereTrue));
    const float added = mask.data<float>()[i];
    return is_seen ? added == 0 : added <= kHidden;
  };
  for (int64_t i = 0; i < mask.size(); ++i) {
    if (!fits(i, i % layout.columns <= i / layout.columns)) return false;
  }
  return true;
}

// Returns nothing for a mask that the library does not have.
std::optional<Masking> masking_of(const NodeSpec& spec, int input, const AttentionOperands& attention) {
  if (!spec.has_input(input)) return Masking::kNone;
  const MaskLayout layout = mask_of(spec, input, attention);
  // Passes look for a kernel without the contents of constants.
  const Tensor known = spec.is_constant(input) ? spec.constant(input) : constant_of(spec.node().input(input));
  if (is_causal(layout, known)) return Masking::kCausal;
  if (layout.kind == MaskKind::kAdded && !attention.nan_safe) return Masking::kAdded;
  return std::nullopt;
}

// Of [batch, heads, queries, keys], with size 1 where the mask repeats.
CudnnLayout mask_layout(const NodeSpec& spec, int input) {
  Shape shape = spec.in_shape(input);
  shape.insert(shape.begin(), 4 - shape.size(), 1);
  return contiguous(shape);
}

bool has_types(const NodeSpec& spec, bool backward) {
  const DType type = spec.out_type();
  if (!is_half(type)) return false;
  const auto operands = operands_of(backward);
  if (!std::all_of(operands.begin(), operands.end(), [&](const Operand& o) {
        return type == (o.is_output ? spec.out_type(o.index) : spec.in_type(o.index));
      }))
    return false;
  const AttentionTypes types(DType::kFloat, type);
  return backward ? supports_attention_gradient(spec, types) : supports_attention(spec, types);
}

// Returns nothing if the library cannot express the node.
std::optional<Description> describe(const NodeSpec& spec, bool backward) {
  if (!has_types(spec, backward)) return std::nullopt;
  const AttentionOperands attention = attention_operands(spec, backward ? 1 : 0);
  const int mask = backward ? kBackwardMask : kForwardMask;
  const std::optional<Masking> masking = masking_of(spec, mask, attention);
  if (!masking) return std::nullopt;
  Description d{backward, spec.out_type(), attention.scale, *masking, {}};
  for (const Operand& o : operands_of(backward)) {
    const std::optional<CudnnLayout> layout = layout_of(o.is_output ? heads_of_output(spec, o.index, o.permutation)
                                                                    : heads_of_input(spec, o.index, o.permutation));
    if (!layout) return std::nullopt;
    d.tensors[o.id] = *layout;
  }
  const Sizes& q = d.tensors[kQ].sizes;
  for (const TensorId id : {kHighest, kSum, kLogSumExp}) d.tensors[id] = contiguous({q[0], q[1], q[2], 1});
  if (*masking == Masking::kAdded) d.tensors[kMask] = mask_layout(spec, mask);
  return d;
}

// ---- The graph

class AttentionGraph : public CudnnGraph {
 public:
  explicit AttentionGraph(const Description& d) : CudnnGraph(d.type), d_(d) {}

  // Returns false if the library has no algorithm.
  bool build(cudnnHandle_t handle) {
    if (cudnnGetVersion() < kFirstVersion || !has_nvrtc()) return false;  // the library compiles its algorithms
    if (d_.backward) {
      add_backward();
    } else {
      add_forward();
    }
    return make_plan(handle);
  }

 private:
  TensorPointer of_node(TensorId id) { return operand(id, d_.tensors.at(id)); }
  TensorPointer float32(TensorId id) {
    TensorPointer tensor = of_node(id);
    tensor->set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }
  TensorPointer statistic(TensorId id) {
    TensorPointer tensor = float32(id);
    tensor->set_output(true);
    return tensor;
  }
  template <typename Attributes>
  void set_scores(Attributes* attributes) {
    attributes->set_attn_scale(d_.scale);
    if (d_.masking == Masking::kAdded) attributes->set_bias(float32(kMask));
    if (d_.masking == Masking::kCausal) {
      attributes->set_diagonal_alignment(fe::DiagonalAlignment_t::TOP_LEFT).set_diagonal_band_right_bound(0);
    }
  }
  void add_forward() {
    fe::graph::SDPA_attributes attributes;
    attributes
        .set_implementation(fe::AttentionImplementation_t::COMPOSITE)  // the one that writes both statistics
        .set_generate_stats(false)
        .set_logit_max(statistic(kHighest))
        .set_score_sum_exp(statistic(kSum));
    set_scores(&attributes);
    write(graph_.sdpa(of_node(kQ), of_node(kK), of_node(kV), attributes)[0], kY, d_.tensors.at(kY));
  }
  void add_backward() {
    fe::graph::SDPA_backward_attributes attributes;
    attributes.set_deterministic_algorithm(true);  // those that add by atomic operations have no numerical note
    set_scores(&attributes);
    const auto gradients = graph_.sdpa_backward(of_node(kQ), of_node(kK), of_node(kV), of_node(kY), of_node(kDy),
                                                float32(kLogSumExp), attributes);
    write(gradients[0], kDq, d_.tensors.at(kDq));
    write(gradients[1], kDk, d_.tensors.at(kDk));
    write(gradients[2], kDv, d_.tensors.at(kDv));
  }

  Description d_;
};

// The graph of a node; null if the library has no algorithm.
const AttentionGraph* graph_of(const std::optional<Description>& d) {
  return d ? shared_graph<AttentionGraph>(*d) : nullptr;
}

// ---- Rows

std::unordered_map<int64_t, void*> addresses_of(const Launch& launch, bool backward, bool adds_mask) {
  std::unordered_map<int64_t, void*> addresses;
  for (const Operand& o : operands_of(backward)) {
    addresses[o.id] = o.is_output ? launch.outputs[o.index] : const_cast<void*>(launch.inputs[o.index]);
  }
  if (adds_mask) addresses[kMask] = const_cast<void*>(launch.inputs[backward ? kBackwardMask : kForwardMask]);
  return addresses;
}

Prepared prepare_forward(const NodeSpec& spec) {
  const std::optional<Description> d = describe(spec, false);
  const AttentionGraph* const graph = graph_of(d);
  const bool adds_mask = d->masking == Masking::kAdded;
  const auto run = [=, label = spec.node().label()](const Launch& launch) {
    auto addresses = addresses_of(launch, false, adds_mask);
    addresses[kHighest] = launch.outputs[1];
    addresses[kSum] = launch.outputs[2];
    graph->run(launch, label, std::move(addresses), launch.workspace);
  };
  return {run, graph->workspace()};
}

Prepared prepare_backward(const NodeSpec& spec) {
  const std::optional<Description> d = describe(spec, true);
  const AttentionGraph* const graph = graph_of(d);
  const bool adds_mask = d->masking == Masking::kAdded;
  const int64_t queries = spec.in_size(kBackwardHighest);
  WorkspaceParts parts;
  const size_t scratch = parts.add(graph->workspace());
  const size_t statistics = parts.add(static_cast<size_t>(queries) * sizeof(float));
  const auto run = [=, label = spec.node().label()](const Launch& launch) {
    char* const workspace = launch.scratch<char>();
    auto* const statistic = reinterpret_cast<float*>(workspace + statistics);
    log_sum_exp(launch, queries, launch.in<float>(kBackwardHighest), launch.in<float>(kBackwardSum), statistic);
    auto addresses = addresses_of(launch, true, adds_mask);
    addresses[kLogSumExp] = statistic;
    graph->run(launch, label, std::move(addresses), workspace + scratch);
  };
  return {run, parts.bytes()};
}

template <bool kIsBackward>
bool supports(const NodeSpec& spec) {
  return graph_of(describe(spec, kIsBackward));
}

}  // namespace

std::vector<Kernel> cudnn_attention_kernels() {
  return {{"BlockAttention", supports<false>, prepare_forward, kDomain, "cuDNN attention"},
          {"BlockAttentionGrad", supports<true>, prepare_backward, kDomain, "cuDNN attention gradient"}};
}

}  // namespace onnx_train::cuda
