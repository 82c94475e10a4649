// Attention by cuDNN, on tensor cores: rows of BlockAttention and BlockAttentionGrad that precede ours (attention.cu).
//
// They require q, k and v in one 16-bit type with at most two batch axes, and a deterministic algorithm with a
// workspace of at most 2 GiB. The gradients need a workspace for the gradients of all scores, in 16 bits; for longer
// sequences they are computed for a part of the batch or of the heads at a time. Other float32 tensors of the node (y
// in a step of gemm-bf16; gradients that element-wise nodes read) are rounded to 16 bits, because the library has no
// float32 results.
//
// Gradients run for numbers of keys for which a device or the library's developers have shown them to be right: with an
// added mask multiples of 128, without one any number whose remainder by 128 is not 64 (has_right_gradients).
//
// Masks are
//   - none,
//   - causal: constant, and query i sees keys 0 to i; hidden scores are -1e28 or less, so that their probabilities
//     are 0 beside any visible score that is not as low;
//   - added float32 numbers. If the attention guards against rows that they hide entirely, the numbers are finite, and
//     such rows are found by their highest scores (the attribute `hidden`), because the library's algorithms differ for
//     a row of -inf. A kernel of ours sets those rows to 0.
// Scores, sums and statistics are float32. The library rounds probabilities and their gradients to the 16-bit type
// before its other products. Operands that are not finite may give other results than the bodies: a hidden key does not
// count, even if it is NaN.
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include "kernels/cuda/attention/statistics.h"
#include "kernels/cuda/choices/cudnn_graph.h"
#include "kernels/cuda/support/conversions.h"
#include "kernels/cuda/support/kernels.h"
#include "kernels/cuda/support/pack.h"
#include "kernels/cuda/support/stored.h"
#include "kernels/geometry/attention.h"
#include "kernels/geometry/indexing/strides.h"
#include "kernels/place.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/inference.h"

namespace onnx_train::cuda {
namespace {

// Earlier versions need tables, which cudnn-frontend copies from the host in each run, if the last block of keys is not
// full.
constexpr size_t kFirstVersion = 91600;

using enum AttentionTensor;

// Ids of a graph's tensors besides id_of(tensor of the node).
enum OtherId : int64_t { kHighest = 100, kSum, kLogSumExp, kMask };

// Input numbers of the gradient.
constexpr int kBackwardHighest = 5, kBackwardSum = 6;

constexpr AttentionTensor kForward[] = {kQ, kK, kV, kY};
constexpr AttentionTensor kBackward[] = {kQ, kK, kV, kY, kDy, kDq, kDk, kDv};

std::span<const AttentionTensor> tensors_of(bool backward) {
  return backward ? std::span<const AttentionTensor>(kBackward) : std::span<const AttentionTensor>(kForward);
}

constexpr int64_t id_of(AttentionTensor tensor) { return static_cast<int64_t>(tensor) + 1; }

enum class Masking { kNone, kCausal, kAdded };

// Layouts are [batch, heads, rows, columns].

// An attention as the library describes it. Equal descriptions share a graph.
struct Description {
  bool backward;
  bool deterministic;  // NodeSpec::deterministic
  DType type;
  float scale;
  Masking masking;
  std::map<int64_t, CudnnLayout> tensors;  // by id

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

// Whether query i sees exactly keys 0 to i.
bool is_causal(const MaskLayout& layout, const Tensor& mask) {
  if (mask.empty() || layout.planes != 1 || layout.rows < 2) return false;
  const auto fits = [&](int64_t i, bool is_seen) {
    if (is_seen && !layout.selects()) return mask.data<float>()[i] == 0;
    return hides(layout, mask, i) != is_seen;
  };
  for (int64_t i = 0; i < mask.size(); ++i) {
    if (!fits(i, i % layout.columns <= i / layout.columns)) return false;
  }
  return true;
}

// Returns nothing for a mask that the library does not support.
std::optional<Masking> masking_of(const NodeSpec& spec, const AttentionOperands& attention) {
  const int input = mask_input(spec);
  if (!spec.has_input(input)) return Masking::kNone;
  const MaskLayout layout = mask_of(spec, attention);
  const Tensor known = contents_of_mask(spec);
  if (is_causal(layout, known)) return Masking::kCausal;
  if (layout.kind == MaskKind::kAdded && (!attention.nan_safe || std::isfinite(attention.hidden)))
    return Masking::kAdded;
  return std::nullopt;
}

// Returns [batch, heads, queries, keys], with size 1 on axes that the mask broadcasts. Where all queries share a row,
// gradients read a copy with a row for each of them: on an H200 with cuDNN 9.19 the library's dq was wrong for masks
// [2, 1, 1, 37] and [2, 1, 1, 128].
Sizes sizes_of_mask(const NodeSpec& spec) {
  Shape shape = spec.in_shape(mask_input(spec));
  shape.insert(shape.begin(), 4 - shape.size(), 1);
  return shape;
}

// Whether the library's gradients are right for these numbers of queries and keys. Its kernels process keys in tiles of
// 128. With a partial last tile, results were wrong
//   - on an H200 with cuDNN 9.19, for an added mask [2, 1, 1, 37] that all queries share: dq by a factor of two;
//   - for 64 keys in that tile and a log-sum-exp below -88.7: NaN, since scores after the last key count as 0, also in
//     9.30 (cudnn-frontend's pull request 628). A causal mask hides these scores unless queries follow the last key.
// dk and dv of a single query may be NaN (cudnn-frontend's issue 1072); those of a single key do not exist (release
// notes of 9.18). Our kernel runs the excluded cases: no device has shown that the library's results are right.
bool has_right_gradients(Masking masking, int64_t queries, int64_t keys) {
  constexpr int64_t kTile = 128;
  if (queries == 1 || keys == 1) return false;
  switch (masking) {
    case Masking::kAdded: return keys % kTile == 0;
    case Masking::kCausal: return keys % kTile != kTile / 2 || queries <= keys;
    case Masking::kNone: return keys % kTile != kTile / 2;
  }
  return false;
}

// Returns nothing if the library cannot express the node or its results are not known to be right.
std::optional<Description> describe(const NodeSpec& spec, bool backward) {
  const Value* const query = place_of(spec, kQ).of(spec.node());
  const DType type = query ? query->dtype() : DType::kUndefined;
  if (!is_half(type) || !supports_attention(spec, {DType::kFloat, type})) return std::nullopt;
  const AttentionOperands attention = attention_operands(spec);
  const std::optional<Masking> masking = masking_of(spec, attention);
  if (!masking) return std::nullopt;
  Description d{backward, spec.deterministic(), type, attention.scale, *masking, {}};
  for (const AttentionTensor tensor : tensors_of(backward)) {
    const std::optional<CudnnLayout> layout = layout_of(heads_of(spec, tensor));
    const bool is_operand = tensor == kQ || tensor == kK || tensor == kV;
    if (!layout || (is_operand && place_of(spec, tensor).of(spec.node())->dtype() != type)) return std::nullopt;
    d.tensors[id_of(tensor)] = *layout;
  }
  const Sizes& q = d.tensors[id_of(kQ)].sizes;
  if (backward && !has_right_gradients(*masking, q[2], d.tensors[id_of(kK)].sizes[2])) return std::nullopt;
  for (const int64_t id : {kHighest, kSum, kLogSumExp}) d.tensors[id] = contiguous({q[0], q[1], q[2], 1});
  if (*masking == Masking::kAdded) {
    Sizes mask = sizes_of_mask(spec);
    if (backward && mask[3] == 1) return std::nullopt;
    if (backward) mask[2] = q[2];
    d.tensors[kMask] = contiguous(mask);
  }
  return d;
}

// ---- The graph

class AttentionGraph : public CudnnGraph {
 public:
  explicit AttentionGraph(const Description& d) : CudnnGraph(d.type, d.deterministic), d_(d) {}

  // Returns false if the library has no algorithm.
  bool make(cudnnHandle_t handle) {
    if (cudnnGetVersion() < kFirstVersion) return false;
    if (d_.backward) {
      // cudnn-frontend stores a number per query at the start of the workspace and its own workspace directly after it.
      if (num_elements(d_.tensors.at(kLogSumExp).sizes) * static_cast<int64_t>(sizeof(float)) % kVectorBytes != 0)
        return false;
      add_backward();
    } else {
      add_forward();
    }
    return make_plans(handle);
  }

 private:
  TensorPointer of_node(AttentionTensor tensor) { return operand(id_of(tensor), d_.tensors.at(id_of(tensor))); }
  TensorPointer float32(OtherId id) {
    TensorPointer tensor = operand(id, d_.tensors.at(id));
    tensor->set_data_type(fe::DataType_t::FLOAT);
    return tensor;
  }
  TensorPointer statistic(OtherId id) {
    TensorPointer tensor = float32(id);
    tensor->set_output(true);
    return tensor;
  }
  void write_of_node(const TensorPointer& result, AttentionTensor tensor) {
    write(result, id_of(tensor), d_.tensors.at(id_of(tensor)));
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
        .set_implementation(fe::AttentionImplementation_t::COMPOSITE)  // the implementation that writes both statistics
        .set_generate_stats(false)
        .set_logit_max(statistic(kHighest))
        .set_score_sum_exp(statistic(kSum));
    set_scores(&attributes);
    write_of_node(graph_.sdpa(of_node(kQ), of_node(kK), of_node(kV), attributes)[0], kY);
  }
  void add_backward() {
    fe::graph::SDPA_backward_attributes attributes;
    attributes.set_deterministic_algorithm(d_.deterministic);  // no numerical note marks algorithms that add atomically
    set_scores(&attributes);
    const auto gradients = graph_.sdpa_backward(of_node(kQ), of_node(kK), of_node(kV), of_node(kY), of_node(kDy),
                                                float32(kLogSumExp), attributes);
    write_of_node(gradients[0], kDq);
    write_of_node(gradients[1], kDk);
    write_of_node(gradients[2], kDv);
  }

  Description d_;
};

// ---- Parts: the gradients of a long sequence need a workspace for all scores, so some heads are computed at a time.

constexpr int kMostTries = 3;
using PerAxis = std::array<int64_t, 2>;  // batch and heads

// An attention that consists of equal parts.
struct Parts {
  PerAxis counts = {1, 1};
  Description part;
  std::map<int64_t, PerAxis> steps;            // bytes between parts, by id of the tensor
  std::shared_ptr<AttentionGraph> graph = {};  // null if the library has no algorithm

  // Runs a plan of the graph, by its number. `addresses` are the starts of the whole tensors.
  void run(const Launch& launch, const std::string& node, int64_t plan,
           const std::unordered_map<int64_t, void*>& addresses, void* workspace) const {
    for (int64_t i = 0; i < counts[0]; ++i) {
      for (int64_t j = 0; j < counts[1]; ++j) {
        std::unordered_map<int64_t, void*> of_part = addresses;
        for (auto& [id, address] : of_part)
          address = static_cast<char*>(address) + i * steps.at(id)[0] + j * steps.at(id)[1];
        graph->run(launch, node, plan, std::move(of_part), workspace);
      }
    }
  }
};

// Returns nothing if parts would share more than the mask, or would not be aligned as the library's tensors are
// declared.
std::optional<Parts> divided(const Description& whole, PerAxis counts) {
  Parts parts{counts, whole, {}};
  for (auto& [id, layout] : parts.part.tensors) {
    const auto bytes = static_cast<int64_t>(size_of(id >= kHighest ? DType::kFloat : whole.type));
    for (size_t axis : {0, 1}) {
      int64_t& size = layout.sizes[axis];
      if (id == kMask && size == 1) continue;
      if (size % counts[axis] != 0) return std::nullopt;
      size /= counts[axis];
      const int64_t step = size * layout.strides[axis] * bytes;
      if (counts[axis] > 1 && step % kVectorBytes != 0) return std::nullopt;
      parts.steps[id][axis] = step;
    }
    parts.steps.try_emplace(id);
  }
  return parts;
}

// Returns ways to split batch and heads so that a part's score gradients fit the workspace, the largest part first.
std::vector<PerAxis> divisions(const Description& d) {
  const Sizes &q = d.tensors.at(id_of(kQ)).sizes, &k = d.tensors.at(id_of(kK)).sizes;
  const int64_t of_head = q[2] * k[2] * 2;
  std::vector<PerAxis> all;
  for (size_t axis : {0, 1}) {
    for (int64_t count = 2; count <= q[axis]; ++count) {
      const PerAxis counts = axis == 0 ? PerAxis{count, 1} : PerAxis{q[0], count};
      if (q[axis] % count == 0 && of_head * (q[0] / counts[0]) * (q[1] / counts[1]) <= cudnn_limits().workspace)
        all.push_back(counts);
    }
  }
  return all;
}

// Returns how the library runs a node; its graph is null if the library does not run it.
Parts parts_of(const std::optional<Description>& d) {
  if (!d) return {};
  Parts parts = *divided(*d, {1, 1});
  parts.graph = shared_graph<AttentionGraph>(*d);
  if (parts.graph || !d->backward || !cudnn_library().is_loaded()) return parts;
  int tries = 0;
  for (const PerAxis counts : divisions(*d)) {
    std::optional<Parts> some = divided(*d, counts);
    if (!some) continue;
    if (tries++ == kMostTries) break;
    some->graph = shared_graph<AttentionGraph>(some->part);
    if (some->graph) return *some;
  }
  return parts;
}

// ---- Rows

// The tensors of a node in a run. The library reads and writes 16-bit copies, in the workspace, of the node's float32
// tensors.
class Tensors {
 public:
  Tensors(const NodeSpec& spec, const Description& d, Workspace* workspace)
      : type_(d.type), adds_mask_(d.masking == Masking::kAdded), mask_(mask_input(spec)) {
    if (adds_mask_ && sizes_of_mask(spec) != d.tensors.at(kMask).sizes) {
      const Sizes& sizes = d.tensors.at(kMask).sizes;
      const auto bytes = static_cast<size_t>(num_elements(sizes)) * sizeof(float);
      repeated_ = RepeatedRows{sizes[0] * sizes[1], sizes[2], sizes[3], workspace->reserve(bytes).offset};
    }
    for (const AttentionTensor tensor : tensors_of(d.backward)) {
      const NodePlace place = place_of(spec, tensor);
      const auto first = static_cast<size_t>(heads_of(spec, tensor).starts.front());
      tensors_.push_back({id_of(tensor), place, first * size_of(d.type)});
      const Value& value = *place.of(spec.node());
      if (value.dtype() == d.type || copy_of(place)) continue;
      const int64_t n = num_elements(value.type().shape());
      copies_.push_back({place, n, workspace->reserve(static_cast<size_t>(n) * size_of(d.type)).offset});
    }
  }
  // Rounds float32 inputs and returns the addresses that the library gets.
  std::unordered_map<int64_t, void*> before(const Launch& launch) const {
    for (const Copy& copy : copies_) {
      if (copy.place.is_output) continue;
      narrow(launch, type_, copy.n, static_cast<const float*>(copy.place.in(launch)), copy.in(launch));
    }
    std::unordered_map<int64_t, void*> addresses;
    for (const auto& [id, place, offset] : tensors_) {
      const Copy* const copy = copy_of(place);
      addresses[id] = static_cast<char*>(copy ? copy->in(launch) : place.in(launch)) + offset;
    }
    if (adds_mask_) addresses[kMask] = const_cast<void*>(launch.inputs[mask_]);
    if (repeated_) {
      auto* const rows = reinterpret_cast<float*>(launch.scratch<char>() + repeated_->offset);
      repeat_rows(launch, repeated_->matrices, repeated_->rows, repeated_->columns, launch.in<float>(mask_), rows);
      addresses[kMask] = rows;
    }
    return addresses;
  }
  // Widens results to float32.
  void after(const Launch& launch) const {
    for (const Copy& copy : copies_) {
      if (!copy.place.is_output) continue;
      widen(launch, type_, copy.n, copy.in(launch), static_cast<float*>(copy.place.in(launch)));
    }
  }

 private:
  struct Part {
    int64_t id;
    NodePlace place;
    size_t offset;  // in bytes
  };
  struct Copy {
    NodePlace place;
    int64_t n;      // elements
    size_t offset;  // in the workspace

    void* in(const Launch& launch) const { return launch.scratch<char>() + offset; }
  };

  const Copy* copy_of(const NodePlace& place) const {
    const auto found = std::find_if(copies_.begin(), copies_.end(), [&](const Copy& c) { return c.place == place; });
    return found == copies_.end() ? nullptr : &*found;
  }

  // A copy of a mask with one row per matrix, which has that row several times.
  struct RepeatedRows {
    int64_t matrices, rows, columns;
    size_t offset;  // in the workspace
  };

  DType type_;
  bool adds_mask_;
  int mask_;
  std::optional<RepeatedRows> repeated_;
  std::vector<Part> tensors_;
  std::vector<Copy> copies_;
};

// Whether the mask hides whole rows, which the library does not handle; a causal mask never does.
bool hides_rows(const NodeSpec& spec, const Description& d) {
  return d.masking == Masking::kAdded && attention_operands(spec).nan_safe;
}

// Prepares a node for a plan of the attention's graph, by its number.
Prepared prepare_forward(const NodeSpec& spec, const Description& d, const Parts& attention, int64_t plan) {
  const CudnnLayout& y = d.tensors.at(id_of(kY));
  const ResultRows rows{y.sizes[1], y.sizes[2], y.sizes[3], {y.strides[0], y.strides[1], y.strides[2]}};
  Workspace parts;
  const size_t scratch = parts.reserve(attention.graph->workspace(plan)).offset;
  const Tensors tensors(spec, d, &parts);
  const auto run = [=, label = spec.node().label(), queries = spec.out_size(1), hides = hides_rows(spec, d),
                    hidden = attention_operands(spec).hidden](const Launch& launch) {
    auto addresses = tensors.before(launch);
    void* const result = addresses[id_of(kY)];
    addresses[kHighest] = launch.outputs[1];
    addresses[kSum] = launch.outputs[2];
    attention.run(launch, label, plan, addresses, launch.scratch<char>() + scratch);
    if (hides) hide_rows(launch, queries, rows, hidden, launch.out<float>(1), launch.out<float>(2), result);
    tensors.after(launch);
  };
  return {run, parts.bytes()};
}

Prepared prepare_backward(const NodeSpec& spec, const Description& d, const Parts& attention, int64_t plan) {
  const int64_t queries = spec.in_size(kBackwardHighest);
  Workspace parts;
  const size_t scratch = parts.reserve(attention.graph->workspace(plan)).offset;
  const size_t statistics = parts.reserve(static_cast<size_t>(queries) * sizeof(float)).offset;
  const Tensors tensors(spec, d, &parts);
  const auto run = [=, label = spec.node().label(), hides = hides_rows(spec, d)](const Launch& launch) {
    char* const workspace = launch.scratch<char>();
    auto* const statistic = reinterpret_cast<float*>(workspace + statistics);
    log_sum_exp(launch, queries, launch.in<float>(kBackwardHighest), launch.in<float>(kBackwardSum), hides, statistic);
    auto addresses = tensors.before(launch);
    addresses[kLogSumExp] = statistic;
    attention.run(launch, label, plan, addresses, workspace + scratch);
    tensors.after(launch);
  };
  return {run, parts.bytes()};
}

template <bool kIsBackward>
Prepared prepare_fastest(const NodeSpec& spec) {
  const Description d = *describe(spec, kIsBackward);
  const Parts attention = parts_of(d);
  std::vector<Form> forms;
  add_plans(
      attention.graph, "",
      [=](int64_t plan) { return (kIsBackward ? prepare_backward : prepare_forward)(spec, d, attention, plan); },
      &forms);
  // Random sums of exponentials would be negative, and the gradients NaN. These bytes are 0.75.
  const auto set_sums = [bytes = kIsBackward ? static_cast<size_t>(spec.in_size(kBackwardSum)) * sizeof(float)
                                             : 0](const Launch& launch) {
    set_bytes(launch, const_cast<void*>(launch.inputs[kBackwardSum]), 0x3f, bytes);
  };
  return fastest(spec, cudnn_library().description(), forms, kIsBackward ? SetInputs(set_sums) : nullptr);
}

template <bool kIsBackward>
bool supports(const NodeSpec& spec) {
  return parts_of(describe(spec, kIsBackward)).graph != nullptr;
}

}  // namespace

std::vector<Kernel> cudnn_attention_kernels() {
  return {{"BlockAttention", supports<false>, prepare_fastest<false>, kDomain, "cuDNN attention"},
          {"BlockAttentionGrad", supports<true>, prepare_fastest<true>, kDomain, "cuDNN attention gradient"}};
}

}  // namespace onnx_train::cuda
