// The ranges of integers that the nodes of an entry point accept from its inputs.
#include <algorithm>
#include <optional>
#include <set>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/operators/operators.h"
#include "onnx_passes/passes.h"
#include "runtime/data/loading/data_check.h"

namespace onnx_train {
namespace {

constexpr const char* kOurs = "onnx_train";

// Operators that keep the values: every element of the first input appears in the output.
bool keeps_values(const Node& node) {
  const OperatorKind kind = operator_of(node).kind;
  return kind == OperatorKind::kView || kind == OperatorKind::kRearrangement || node.is("Cast");
}

// The size of a dimension; 0 if it is not known.
int64_t size_of(const Value* value, int64_t axis) {
  if (!value || !value->has_rank()) return 0;
  const Dims& dims = *value->type().dims;
  const auto rank = static_cast<int64_t>(dims.size());
  if (axis < 0) axis += rank;
  if (axis < 0 || axis >= rank || !dims[static_cast<size_t>(axis)].known()) return 0;
  return dims[static_cast<size_t>(axis)].value();
}

std::optional<IndexRange> range_of_labels(const Node& node, int64_t classes) {
  IndexRange range{0, classes - 1, false, 0, ""};
  range.has_other = node.has_attr("ignore_index");
  range.other = node.attr("ignore_index", int64_t{0});
  range.reader = node.label();
  return range;
}

// The range that the node accepts for an input.
std::optional<IndexRange> range_of(const Node& node, int index) {
  if (node.is("ClassIndex", kOurs) && index == 0) {
    const int64_t classes = size_of(node.input(1), node.attr("axis", 1));
    return classes > 0 ? range_of_labels(node, classes) : std::nullopt;
  }
  if (index != 1) return {};
  const bool ours = node.is("SoftmaxCrossEntropy", kOurs) || node.is("LabelScores", kOurs);
  if (ours || node.is("SoftmaxCrossEntropyLoss") || node.is("NegativeLogLikelihoodLoss")) {
    const int64_t classes = size_of(node.input(0), ours ? node.attr("axis", 1) : 1);
    return classes > 0 ? range_of_labels(node, classes) : std::nullopt;
  }
  if (!node.is("Gather") && !node.is("GatherElements") && !node.is("ScatterElements")) return {};
  const int64_t size = size_of(node.input(0), node.attr("axis", 0));
  if (size == 0) return {};
  return IndexRange{-size, size - 1, false, 0, node.label()};  // negative indices count from the end
}

// Whether the node looks rows up in a table of weights, as an embedding does.
bool looks_up_weights(const Node& node, const Graph& graph) {
  if (!node.is("Gather") || node.attr("axis", 0) != 0) return false;
  const Value* table = node.input(0);
  while (table->producer() && table->producer()->is("Cast")) table = table->producer()->input(0);
  const Value* own = graph.find(table->name());
  return own && own->is_initializer() && is_float(own->dtype()) && own->has_rank() && own->rank() == 2;
}

class Search {
 public:
  explicit Search(const Graph& graph) : graph_(graph) {}

  // `of_boxes`: of an input [batch, M, 5] the first numbers of the last axis are followed, also where -1 becomes 0.
  std::vector<IndexRange> run(const Value* input, bool of_boxes = false) {
    of_boxes_ = of_boxes;
    pending_ = {{input, {}, of_boxes}};
    seen_ = {input};
    while (!pending_.empty()) {
      const Path path = pending_.back();
      pending_.pop_back();
      for (const Use& use : path.value->uses()) follow(path, *use.node, use.index);
    }
    return found_;
  }

 private:
  // A value that contains all elements of the input, except `replaced`.
  struct Path {
    const Value* value;
    std::optional<int64_t> replaced;
    bool is_boxes = false;
  };

  static bool takes_class(const Node& node) {
    const auto is = [&](size_t input, int64_t number) {
      const Tensor constant =
          node.input(static_cast<int>(input)) ? constant_of(node.input(static_cast<int>(input))) : Tensor();
      return constant.size() == 1 && constant.at(0) == static_cast<double>(number);
    };
    if (node.is("Gather"))
      return is(1, 0) && (node.attr("axis", int64_t{0}) == 2 || node.attr("axis", int64_t{0}) == -1);
    return node.is("Slice") && is(1, 0) && is(2, 1) && (is(3, 2) || is(3, -1));
  }

  void follow(const Path& path, const Node& node, int index) {
    if (path.is_boxes) {
      if (index == 0 && takes_class(node)) push({node.output(), path.replaced});
      return;
    }
    if (of_boxes_ && index == 0 && (node.is("Clip") || node.is("Max") || node.is("Relu") || node.is("Expand")))
      return push({node.output(), path.replaced});
    if (std::optional<IndexRange> range = range_of(node, index)) {
      if (path.replaced && !range->has_other) {
        range->has_other = true;
        range->other = *path.replaced;
      }
      // Classes, words and items count from 0: a negative one is a mistake, such as a label that is ignored.
      if (looks_up_weights(node, graph_)) range->least = 0;
      found_.push_back(std::move(*range));
    }
    if (keeps_values(node) && (index == 0 || node.is("Concat"))) return push({node.output(), path.replaced});
    if (node.is("Where") && index == 2) {
      if (const auto ignored = compared_with(node.input(0), path.value)) push({node.output(), ignored});
    }
  }

  void push(const Path& path) {
    if (path.value && seen_.insert(path.value).second) pending_.push_back(path);
  }

  // Returns k if `condition` is value == k: an ignored label that is replaced before it is used as an index.
  static std::optional<int64_t> compared_with(const Value* condition, const Value* value) {
    const Node* equal = condition ? condition->producer() : nullptr;
    if (!equal || !equal->is("Equal")) return {};
    const Value* constant = equal->input(equal->input(0) == value ? 1 : 0);
    if (equal->input(0) != value && equal->input(1) != value) return {};
    const onnx::TensorProto* proto = constant ? constant->initializer() : nullptr;
    Tensor number;
    if (proto) {
      number = from_proto(*proto);
    } else if (constant && constant->producer() && constant->producer()->is("Constant") &&
               constant->producer()->has_attr("value")) {
      number = constant->producer()->attr_tensor("value");
    }
    if (number.size() != 1 || !is_integer(number.dtype())) return {};
    return static_cast<int64_t>(number.at(0));
  }

  const Graph& graph_;  // of the model, whose weights may be inputs here
  bool of_boxes_ = false;
  std::vector<Path> pending_;
  std::set<const Value*> seen_;
  std::vector<IndexRange> found_;
};

}  // namespace

namespace {

// Whether the model's file does not tell the types of all values: of a step that reads other values than "predict"
// does, as with dropout or rounded weights.
bool lacks_types(const Graph& graph) {
  for (const Node* node = graph.first(); node; node = node->next()) {
    const auto lacks = [](const Value* value) { return value && !value->has_rank(); };
    if (std::ranges::any_of(node->outputs(), lacks)) return true;
  }
  return false;
}

// Gives the inputs the sizes that the model leaves open and the data have, and infers what follows from them.
void refine(Graph* graph, const std::map<std::string, Dims>& sizes) {
  bool refined = lacks_types(*graph);
  for (Value* input : graph->inputs()) {
    const auto found = sizes.find(input->name());
    if (found == sizes.end()) continue;
    TensorType type = input->type();
    if (!type.dims) type.dims = found->second;
    if (type.dims->size() != found->second.size()) continue;
    for (size_t i = 0; i < type.dims->size(); ++i) {
      if (!(*type.dims)[i].known() && found->second[i].known()) (*type.dims)[i] = found->second[i];
    }
    refined = refined || !(type == input->type());
    input->set_type(type);
  }
  if (!refined) return;
  try {
    infer_types(graph);
  } catch (const Error&) {
    // The plan of the first batch says what does not fit.
  }
}

}  // namespace

std::map<std::string, std::vector<IndexRange>> index_ranges(const Model& model, const EntryName& entry,
                                                            const std::map<std::string, Dims>& sizes) {
  Model flat = flatten(model, entry);
  refine(flat.graph.get(), sizes);
  std::map<std::string, std::vector<IndexRange>> ranges;
  for (const Value* input : flat.graph->inputs()) {
    if (!is_integer(input->dtype())) continue;
    std::vector<IndexRange>& found = ranges[input->name()] = Search(*model.graph).run(input);
    const Value* own = model.graph->find(input->name());
    if (own && model.graph->is_input(own)) continue;
    // Classes count from 0, also where the node that looks them up takes indices from the end.
    for (IndexRange& range : found) {
      if (range.has_other) range.least = std::max<int64_t>(range.least, 0);
    }
  }
  return ranges;
}

std::optional<IndexRange> classes_of_boxes(const Model& model, const EntryName& entry, const std::string& input) {
  Model flat = flatten(model, entry);
  const Value* boxes = flat.graph->find(input);
  if (!boxes) return {};
  // Of one picture, sizes follow that an exporter has left open.
  std::map<std::string, Dims> sizes;
  for (const Value* each : flat.graph->inputs()) {
    if (!each->has_rank() || each->rank() == 0 || each->is_initializer()) continue;
    sizes[each->name()] = *each->type().dims;
    sizes[each->name()][0] = Dim(1);
  }
  refine(flat.graph.get(), sizes);
  std::optional<IndexRange> least;
  for (IndexRange& range : Search(*model.graph).run(boxes, /*of_boxes=*/true)) {
    if (!least || range.most < least->most) least = std::move(range);
  }
  return least;
}

}  // namespace onnx_train
