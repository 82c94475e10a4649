#include "onnx_passes/training/analysis.h"

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
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// Smaller weights may be equal by chance.
constexpr int64_t kMinCopied = 16;

class Inspection {
 public:
  explicit Inspection(const Model& model) : graph_(*model.graph) {}

  std::vector<Finding> run() {
    for (const Value* value : graph_.initializers()) {
      if (is_float(value->dtype())) weights_.push_back({value, stored_contents(*value)});
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
    release_pages(tensor.data(), tensor.bytes());
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
    release_pages(tensor.data<char>(), tensor.bytes());
    return uniform;
  }

  void find_shared() {
    for (const Weight& weight : weights_) {
      const std::vector<const Node*> readers = readers_of(weight.value);
      if (readers.size() < 2 || weight.tensor.size() < 2 || !is_shared(*weight.value, readers)) continue;
      const std::string others = concat("used by ", readers.size(), " nodes, ", readers[0]->label(), " and ",
                                        readers.back()->label(), readers.size() > 2 ? " among them" : "");
      if (is_constant(weight.tensor)) {
        add(weight.value->name(), others + "; all its elements are equal",
            "exporters merge equal weights of a model that was never trained: they are trained as one; give them "
            "different values before exporting if they are not meant to be");
      } else {
        add(weight.value->name(), others, "tied weights: they are trained as one");
      }
    }
  }

  // A matrix as a sequence of rows or of columns.
  class Matrix {
   public:
    Matrix(const Tensor& x, bool turned)
        : data_(x.data<char>()),
          element_(size_of(x.dtype())),
          columns_(x.shape()[1]),
          turned_(turned),
          shape_(turned ? Shape{x.shape()[1], x.shape()[0]} : x.shape()) {}

    const Shape& shape() const { return shape_; }
    const char* at(int64_t row, int64_t column) const {
      return data_ + static_cast<size_t>(turned_ ? column * columns_ + row : row * columns_ + column) * element_;
    }
    bool operator==(const Matrix& other) const {
      if (shape_ != other.shape_) return false;
      for (int64_t i = 0; i < shape_[0]; ++i) {
        for (int64_t j = 0; j < shape_[1]; ++j) {
          if (std::memcmp(at(i, j), other.at(i, j), element_) != 0) return false;
        }
      }
      return true;
    }

   private:
    const char* data_;
    size_t element_;
    int64_t columns_;
    bool turned_;
    Shape shape_;
  };

  // Any tensor as a matrix of its first axis and all others.
  static Matrix as_matrix(const Tensor& x, bool turned) {
    const int64_t rows = x.shape().empty() ? 1 : x.shape()[0];
    return {x.reshaped({rows, x.size() / rows}), turned};
  }

  // A hash of the shape and a few elements.
  static uint64_t fingerprint(const Tensor& x, bool turned) {
    constexpr int64_t kSamples = 64;
    const Matrix matrix = as_matrix(x, turned);
    const Shape shape = turned ? Shape{x.shape()[1], x.shape()[0]} : x.shape();
    uint64_t hash = XXH3_64bits(shape.data(), shape.size() * sizeof(int64_t)) + static_cast<uint64_t>(x.dtype());
    for (int64_t k = 0; k < kSamples; ++k) {
      const int64_t row = k * matrix.shape()[0] / kSamples, column = k * 37 % kSamples * matrix.shape()[1] / kSamples;
      hash = XXH3_64bits_withSeed(matrix.at(row, column), size_of(x.dtype()), hash);
    }
    return hash;
  }

  // The weight in `seen` that equals x or, with `turned`, its transpose.
  static const Weight* find_equal(const std::unordered_multimap<uint64_t, const Weight*>& seen, const Tensor& x,
                                  bool turned) {
    const auto [first, last] = seen.equal_range(fingerprint(x, turned));
    for (auto it = first; it != last; ++it) {
      const Tensor& y = it->second->tensor;
      if (y.dtype() == x.dtype() && as_matrix(x, turned) == as_matrix(y, false)) return it->second;
    }
    return nullptr;
  }

  // Weights that were one before the export, or were merged manually.
  void find_copies() {
    std::unordered_multimap<uint64_t, const Weight*> seen;
    for (const Weight& weight : weights_) {
      if (weight.tensor.size() < kMinCopied || is_constant(weight.tensor)) continue;
      const Weight* original = find_equal(seen, weight.tensor, false);
      const bool turned = !original && weight.tensor.shape().size() == 2;
      if (turned) original = find_equal(seen, weight.tensor, true);
      seen.emplace(fingerprint(weight.tensor, false), &weight);
      release_pages(weight.tensor.data(), weight.tensor.bytes());
      if (!original) continue;
      add(weight.value->name(), concat("equal to '", original->value->name(), turned ? "', transposed" : "'"),
          "if the two were tied, the export has untied them: they are trained apart");
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
  std::vector<Weight> weights_;
  ValueTable<const Value*> sources_;  // inputs of Identity nodes, by output
  std::vector<Finding> findings_;
};

}  // namespace

std::vector<Finding> inspect(const Model& model) { return Inspection(model).run(); }

}  // namespace onnx_train
