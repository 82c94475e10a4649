#include "onnx_passes/model/analysis.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <unordered_map>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/tables.h"
#include "onnx_passes/model/constants.h"
#include "onnx_passes/model/weight_views.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// Smaller weights may be equal by chance.
constexpr int64_t kMinCopied = 16;
constexpr size_t kStart = 32;  // bytes of the first elements of such a weight

class Inspection {
 public:
  explicit Inspection(const Model& model) : graph_(*model.graph), constants_(constants_of(model)) {}

  std::vector<Finding> run() {
    for (const Value* value : graph_.initializers()) {
      if (is_float(value->dtype())) weights_.push_back({value, stored_contents(*value).stored()});
    }
    find_non_finite();
    find_aliased_statistics();
    find_shared();
    find_copies();
    find_expanded();
    return std::move(findings_);
  }

 private:
  struct Weight {
    const Value* value;
    Tensor tensor;  // a view of where it is stored: not aligned, and too large to be read whole
  };

  // Calls f with copies of parts of the weight: all of it or, in a large model, as many evenly spaced parts as can be
  // read quickly. Returns true if it was all of it.
  template <typename F>
  bool for_each_part(const Weight& weight, const F& f) const {
    constexpr int64_t kPart = 4096;            // elements
    constexpr int64_t kMaxElements = 1 << 21;  // of all weights
    const Tensor& tensor = weight.tensor;
    const int64_t parts = (tensor.size() + kPart - 1) / kPart;
    const int64_t read = std::clamp<int64_t>(kMaxElements / kPart / static_cast<int64_t>(weights_.size()), 1, parts);
    const size_t element = size_of(tensor.dtype());
    for (int64_t i = 0; i < read; ++i) {
      const int64_t first = i * parts / read * kPart;
      Tensor part(tensor.dtype(), {std::min(kPart, tensor.size() - first)});
      std::memcpy(part.data(), tensor.data<char>() + static_cast<size_t>(first) * element, part.bytes());
      f(part);
    }
    release_pages(tensor);
    return read == parts;
  }

  void add(const std::string& subject, const std::string& what, const std::string& advice) {
    findings_.push_back({subject, what, advice});
  }

  void find_non_finite() {
    for (const Weight& weight : weights_) {
      if (weight.tensor.size() == 0) continue;
      int64_t count = 0, read = 0;
      bool is_mask = true;  // masks contain -inf intentionally; their finite part is zero
      const bool all = for_each_part(weight, [&](const Tensor& part) {
        for (int64_t i = 0; i < part.size(); ++i) {
          const double x = part.at(i);
          count += !std::isfinite(x);
          is_mask = is_mask && !std::isnan(x) && (std::isinf(x) || x == 0) && x <= 0;
        }
        read += part.size();
      });
      if (count == 0 || is_mask) continue;
      add(weight.value->name(),
          concat(count, " of its ", weight.tensor.size(), " elements are not finite",
                 all ? "" : concat(", of ", read, " that were looked at")),
          "the loss will not be finite either; export weights that are");
    }
  }

  // The initializer that the value is, directly or through Identity; null otherwise.
  const Value* source(const Value* value) const {
    if (!value) return nullptr;
    const Value* const* found = sources_.find(value);
    return found ? *found : value->is_initializer() ? value : nullptr;
  }

  void find_aliased_statistics() {
    for (const Node* node = graph_.first(); node; node = node->next()) {
      if (node->is("Identity") && node->output()) sources_[node->output()] = source(node->input(0));
      if (!node->is("BatchNormalization") || node->num_inputs() < 5) continue;
      for (int i = 3; i < 5; ++i) {
        const Value* statistic = source(node->input(i));
        if (!statistic) continue;
        for (int j = 1; j < i; ++j) {
          if (source(node->input(j)) != statistic) continue;
          add(node->label(), concat("its running ", i == 3 ? "mean" : "variance", " is also '", statistic->name(), "'"),
              "the exporter merged equal tensors; training keeps them apart from the first step on");
        }
      }
    }
  }

  // The nodes that read the weight's values, also through Identity.
  static std::vector<const Node*> readers_of(const Value* weight) {
    std::vector<const Node*> readers;
    std::vector<const Value*> pending = {weight};
    while (!pending.empty()) {
      const Value* value = pending.back();
      pending.pop_back();
      for (const Use& use : value->uses()) {
        if (use.node->is("Identity") && use.node->output()) {
          pending.push_back(use.node->output());
        } else if (!reads_shape_only(*use.node) && !use.node->is("CastLike")) {
          readers.push_back(use.node);
        }
      }
    }
    return readers;
  }

  // What a node reads of a weight: the elements from `begin` to before `end` along `axis`; all of it if `axis` is -1.
  struct WeightRange {
    int64_t axis = -1, begin = 0, end = 0;
    bool overlaps(const WeightRange& other) const {
      return axis < 0 || axis != other.axis || (begin < other.end && other.begin < end);
    }
  };

  static WeightRange range_of(const Node& reader, const TensorType& weight) {
    if (!weight.is_static() || weight.rank() == 0) return {};
    const Shape shape = weight.shape();
    if (reader.is("Gather")) {
      const Tensor indices = constant_of(reader.input(1));
      if (indices.size() == 0) return {};
      const int64_t axis = normalize_axis(reader.attr("axis", 0), weight.rank()),
                    size = shape[static_cast<size_t>(axis)];
      WeightRange part{axis, size, 0};
      for (int64_t index : indices.to_ints()) {
        if (index < 0) index += size;
        part.begin = std::min(part.begin, index);
        part.end = std::max(part.end, index + 1);
      }
      return part;
    }
    if (!reader.is("Slice")) return {};
    const Tensor starts = constant_of(reader.input(1)), ends = constant_of(reader.input(2));
    const Tensor axes = reader.input(3) ? constant_of(reader.input(3)) : Tensor::ints({0});
    const Tensor steps = reader.input(4) ? constant_of(reader.input(4)) : Tensor::ints({1});
    if (starts.size() != 1 || ends.size() != 1 || axes.size() != 1 || steps.size() != 1) return {};
    if (steps.to_ints()[0] <= 0) return {};
    const int64_t axis = normalize_axis(axes.to_ints()[0], weight.rank()), size = shape[static_cast<size_t>(axis)];
    const auto place = [&](int64_t at) { return std::clamp<int64_t>(at < 0 ? at + size : at, 0, size); };
    return {axis, place(starts.to_ints()[0]), place(ends.to_ints()[0])};
  }

  // Whether two nodes read the same elements. Exporters keep the biases of several layers in one vector, of which each
  // reads a part.
  static bool is_shared(const Value& weight, const std::vector<const Node*>& readers) {
    std::vector<WeightRange> parts;
    for (const Node* reader : readers) {
      const WeightRange part = range_of(*reader, weight.type());
      if (std::any_of(parts.begin(), parts.end(),
                      [&](const WeightRange& p) { return p.overlaps(part) || part.axis < 0; }))
        return true;
      parts.push_back(part);
    }
    return false;
  }

  // Reads the weights of the file through, and keeps none of their pages.
  static bool is_constant(const Tensor& tensor) {
    const bool uniform = is_uniform(tensor);
    release_pages(tensor);
    return uniform;
  }

  void find_shared() {
    for (const Weight& weight : weights_) {
      if (constants_.contains(weight.value->name())) continue;
      const std::vector<const Node*> readers = readers_of(weight.value);
      if (readers.size() < 2 || weight.tensor.size() < 2 || !is_shared(*weight.value, readers)) continue;
      const std::string others = concat("used by ", readers.size(), " nodes, ", readers[0]->label(), " and ",
                                        readers.back()->label(), readers.size() > 2 ? " among them" : "");
      if (is_constant(weight.tensor)) {
        add(weight.value->name(), others + "; all its elements are equal",
            concat("exporters merge equal weights of a model that was never trained: they are trained as one, unless "
                   "you untie them: --untie '",
                   weight.value->name(), "'"));
      } else {
        add(weight.value->name(), others,
            concat("tied weights: they are trained as one, unless you untie them: --untie '", weight.value->name(),
                   "'"));
      }
    }
  }

  // Calls f with the offsets, in elements, of some elements of the weight in row-major order or, of a matrix that is
  // `turned`, in column-major order.
  template <typename F>
  static void sample(int64_t rows, int64_t columns, bool turned, const F& f) {
    constexpr int64_t kSamples = 64;
    for (int64_t k = 0; k < kSamples; ++k) {
      const int64_t at = k * (rows * columns - 1) / (kSamples - 1);
      f(turned ? at % rows * columns + at / rows : at);
    }
  }

  // A hash of the size and a few elements, whatever the shape.
  static uint64_t fingerprint(const Tensor& x, bool turned) {
    const Shape shape = turned ? without_ones(x.shape()) : Shape{1, x.size()};
    uint64_t hash = static_cast<uint64_t>(x.dtype()) + 31 * static_cast<uint64_t>(x.size());
    sample(shape[0], shape[1], turned, [&](int64_t offset) {
      const size_t element = size_of(x.dtype());
      hash = XXH3_64bits_withSeed(x.data<char>() + static_cast<size_t>(offset) * element, element, hash);
    });
    return hash;
  }

  static Shape without_ones(Shape shape) {
    std::erase(shape, 1);
    return shape;
  }

  using ByHash = std::unordered_multimap<uint64_t, const Weight*>;

  void add_copy(const Weight& copy, const Weight& original, const WeightView& view) {
    const Value &a = *copy.value, &b = *original.value;
    const bool same_shape = copy.tensor.shape() == original.tensor.shape() && view.perm.empty();
    add(a.name(), concat("equal to '", b.name(), "'", same_shape ? "" : ", ", same_shape ? "" : describe(view)),
        concat("if the two were tied, the export has untied them: they are trained apart, unless you tie them: --tie '",
               a.name(), "=", b.name(), "'"));
  }

  bool find_equal(const Weight& weight, bool turned, const ByHash& seen) {
    const auto [first, last] = seen.equal_range(fingerprint(weight.tensor, turned));
    for (auto it = first; it != last; ++it) {
      const auto view = find_view(it->second->tensor, weight.tensor);
      if (!view) continue;
      add_copy(weight, *it->second, *view);
      return true;
    }
    return false;
  }

  // Weights that were one before the export, or were merged manually.
  void find_copies() {
    ByHash seen;
    std::vector<const Weight*> unique;
    for (const Weight& weight : weights_) {
      if (weight.tensor.size() < kMinCopied || is_constant(weight.tensor) || constants_.count(weight.value->name())) {
        continue;
      }
      const bool is_matrix = without_ones(weight.tensor.shape()).size() == 2;
      if (!find_equal(weight, false, seen) && !(is_matrix && find_equal(weight, true, seen))) unique.push_back(&weight);
      seen.emplace(fingerprint(weight.tensor, false), &weight);
      release_pages(weight.tensor);
    }
    find_slices(unique);
  }

  static uint64_t hash_of_start(const Tensor& x, size_t at) { return XXH3_64bits(x.data<char>() + at, kStart); }

  // Weights that are some rows of another.
  void find_slices(const std::vector<const Weight*>& weights) {
    constexpr size_t kMaxBytes = size_t{64} << 20;  // of what is looked through
    ByHash starts;
    for (const Weight* weight : weights) starts.emplace(hash_of_start(weight->tensor, 0), weight);
    Marks<Value> found;
    for (const Weight* base : weights) {
      const Tensor& x = base->tensor;
      if (x.shape().empty() || x.bytes() > kMaxBytes) continue;
      const size_t row = x.bytes() / static_cast<size_t>(x.shape()[0]);
      for (size_t at = 0; at + kStart <= x.bytes(); at += row) {
        const auto [first, last] = starts.equal_range(hash_of_start(x, at));
        for (auto it = first; it != last; ++it) {
          const Weight& part = *it->second;
          if (part.tensor.size() >= x.size() || found.contains(part.value)) continue;
          const auto view = find_view(x, part.tensor);
          if (!view) continue;
          add_copy(part, *base, *view);
          found.insert(part.value);
        }
      }
      release_pages(x);
    }
  }

  void find_expanded() {
    for (const Weight& weight : weights_) {
      const Shape& shape = weight.tensor.shape();
      if (shape.size() < 2 || shape[0] < 2 || weight.tensor.size() < kMinCopied) continue;
      const size_t part = weight.tensor.bytes() / static_cast<size_t>(shape[0]);
      const auto* data = static_cast<const char*>(weight.tensor.data());
      if (is_constant(weight.tensor) || std::memcmp(data, data + part, part * static_cast<size_t>(shape[0] - 1)) != 0) {
        continue;
      }
      add(weight.value->name(), concat("stored ", shape[0], " times over along its first axis, ", to_string(shape)),
          "the copies are trained apart; export the weight as it is, expanded in the graph");
    }
  }

  const Graph& graph_;
  const std::unordered_map<std::string, std::string> constants_;
  std::vector<Weight> weights_;
  ValueTable<const Value*> sources_;  // inputs of Identity nodes, by output
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> inspect(const Model& model) { return Inspection(model).run(); }

}  // namespace onnx_train
