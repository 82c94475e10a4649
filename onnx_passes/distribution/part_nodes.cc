#include "onnx_passes/distribution/part_nodes.h"

#include <algorithm>
#include <utility>

#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"

namespace onnx_train {
namespace {

class PartNode {
 public:
  PartNode(Node* node, const NodeLayouts& layouts, const PartOf& rank)
      : node_(*node), b_(&node->graph(), node), layouts_(layouts), rank_(rank), parts_(rank.parts) {}

  Node* run() {
    b_.set_name(node_.output() ? node_.output()->name() + "/part" : "part");
    if (node_.is("Gather") && input(0).is_part() && output().is_term()) return gather_own(0);
    if (node_.is("GatherElements") && output().is_term()) return gather_own(node_.input(0)->rank());
    if (node_.is("ArgMax") && input(0).is_part() && output().is_whole()) return find_highest();
    fit();
    return &node_;
  }

 private:
  void fit() {
    if (node_.is("Reshape")) return reshape_to_part();
    if (node_.is("Expand")) return divide_size(1, 1);
    if (node_.is("GatherGrad", kDomain) || node_.is("ConvGradInput", kDomain) || node_.is("ConvGradWeight", kDomain))
      divide_size(2, 0);
    if (node_.is("SliceGrad", kDomain) || node_.is("AveragePoolGrad", kDomain)) return divide_size(1, 0);
    if (node_.is("Split")) return split_part();
    if (node_.is("Slice")) return slice_part();
    if (node_.is("Shape") || node_.is("Size")) return multiply_sizes();
    if (node_.is("ReduceMean")) return divide_mean();
    if (node_.is("ReduceMax") || node_.is("ReduceMin")) return compare_parts();
    if (node_.is("ScatterElements")) return scatter_own();
    // Channels of several groups are cut into groups.
    if (const int64_t groups = node_.attr("group", 1); groups > 1 && input(0).is_part())
      node_.set_attr("group", groups / parts_);
  }

  // What the node makes is a value of another one: 0 of an element that another rank has. `rank`: of the indices, where
  // the result has an element for each.
  Node* gather_own(int64_t rank) {
    const Cut& cut = input(0).cut;
    const OwnIndices own = own_indices(b_.var(node_.input(1)), cut.period, rank_);
    const Var found = b_.like(node_, {b_.var(node_.input(0)), own.indices})[0];
    Var is_own = own.is_own;
    if (rank == 0) {  // the result has the axes of a row, too
      std::vector<int64_t> axes;
      for (int64_t i = cut.axis + is_own.rank(); i < found.rank(); ++i) axes.push_back(i);
      if (!axes.empty()) is_own = unsqueeze(is_own, axes);
    }
    const Var none = b_.scalar(found.dtype(), 0);
    Node* const made = node_.graph().add_node("Where", {is_own.value(), found.value(), none.value()}, {}, "", &node_);
    made->take_output(0, node_.output());
    node_.graph().remove(&node_);
    return made;
  }

  Node* find_highest() {
    const Cut& cut = input(0).cut;
    const Var x = b_.var(node_.input(0));
    const Attrs along = {{"axis", cut.axis}, {"keepdims", 1}};
    const Cut each{cut.axis, parts_};
    const auto begin = static_cast<double>(rank_.part * cut.period / parts_);
    const Var places = gathered(b_.op("ArgMax", {x}, along) + begin, each, rank_);
    const Var highest = gathered(reduce_max(x, {cut.axis}), each, rank_);
    const Var best = b_.op("GatherElements", {places, b_.op("ArgMax", {highest}, along)}, {{"axis", cut.axis}});
    const bool keeps = node_.attr("keepdims", 1) != 0;
    node_.graph().replace(node_.output(), (keeps ? best : squeeze(best, {cut.axis})).value());
    node_.graph().remove(&node_);
    return nullptr;
  }

  // The highest of what is the highest of each part.
  void compare_parts() {
    if (!input(0).is_part() || !output().is_whole()) return;
    Node* const own = node_.graph().add_node(node_, node_.inputs(), {node_.output()->name() + "/own"}, &node_);
    own->set_attr("keepdims", 1);
    infer_types(own);
    node_.set_input(0, gathered(b_.var(own->output()), {input(0).cut.axis, parts_}, rank_).value());
  }

  // Another rank's elements add 0 to one of this rank's.
  void scatter_own() {
    const auto axis = static_cast<size_t>(normalize_axis(node_.attr("axis", 0), node_.input(0)->rank()));
    if (!input(0).is_part() || std::cmp_not_equal(input(0).cut.axis, axis)) return;
    const OwnIndices own = own_indices(b_.var(node_.input(1)), input(0).cut.period, rank_);
    node_.set_input(1, own.indices.value());
    node_.set_input(2, where(own.is_own, b_.var(node_.input(2)), 0).value());
  }

 private:
  const Layout& input(int i) const { return layouts_.inputs[static_cast<size_t>(i)]; }
  const Layout& output() const { return layouts_.outputs[0]; }

  // Of the shape that is input `at`, the size along the axis of the output's cut; sizes up to `least` stay: -1 and 0
  // have a meaning of their own, and 1 of an Expand.
  void divide_size(int at, int64_t least) {
    if (!output().is_part()) return;
    const auto axis = static_cast<size_t>(output().cut.axis);
    if (auto sizes = constant_ints(node_, at)) {
      if ((*sizes)[axis] > least) (*sizes)[axis] /= parts_;
      return node_.set_input(at, b_.ints(*sizes).value());
    }
    const Var sizes = b_.var(node_.input(at));
    if (!sizes.type().is_static()) fail(node_.label(), ": its shape has an unknown number of sizes");
    std::vector<int64_t> divisors(static_cast<size_t>(num_elements(sizes.type().shape())), 1);
    divisors.at(axis) = parts_;
    const Var is_size = sizes > b_.ints({least});
    node_.set_input(at, where(is_size, sizes / b_.ints(divisors), sizes).value());
  }

  // A size of 0 copies the input's, which along the cut of the input is a part's and may not be the output's.
  void reshape_to_part() {
    if (!output().is_part()) return;
    auto sizes = constant_ints(node_, 1);
    if (sizes && node_.attr("allowzero", 0) == 0) {
      const Dims& whole = *node_.output()->type().dims;
      for (size_t i = 0; i < sizes->size(); ++i) {
        const bool is_cut =
            static_cast<int64_t>(i) == output().cut.axis || static_cast<int64_t>(i) == input(0).cut.axis;
        if ((*sizes)[i] != 0 || !is_cut || output().cut == input(0).cut) continue;
        if (!whole[i].known()) fail(node_.label(), ": size ", i, " of its result is not known");
        (*sizes)[i] = whole[i].value();
      }
      node_.set_input(1, b_.ints(*sizes).value());
    }
    divide_size(1, 0);
  }

  void split_part() {
    const Layout& x = input(0);
    if (!x.is_part() || !node_.input(1)) return;
    if (normalize_axis(node_.attr("axis", 0), node_.input(0)->rank()) != x.cut.axis) return;
    std::vector<int64_t> sizes = constant_ints(node_, 1).value();
    for (int64_t& size : sizes) size /= parts_;
    node_.set_input(1, b_.ints(sizes).value());
  }

  // From a run to a run, where the axis of the cut is among those of the slice.
  void slice_part() {
    const Layout& x = input(0);
    const auto starts = constant_ints(node_, 1), ends = constant_ints(node_, 2), axes = constant_ints(node_, 3);
    if (!x.is_part() || !starts || !ends || (node_.input(3) && !axes)) return;  // other axes than the cut's
    const int64_t rank = node_.input(0)->rank();
    for (size_t i = 0; i < starts->size(); ++i) {
      if ((axes ? normalize_axis((*axes)[i], rank) : static_cast<int64_t>(i)) != x.cut.axis) continue;
      const int64_t size = parts_ * (*node_.input(0)->type().dims)[static_cast<size_t>(x.cut.axis)].value();
      for (const int at : {1, 2}) {
        std::vector<int64_t> places = at == 1 ? *starts : *ends;
        places[i] = std::clamp<int64_t>(places[i] < 0 ? places[i] + size : places[i], 0, size) / parts_;
        const DType type = node_.input(at)->dtype();
        node_.set_input(at, b_.constant(Tensor::ints(places).cast(type)).value());
      }
    }
  }

  // Who reads a shape reads that of all parts together.
  void multiply_sizes() {
    const Layout& x = input(0);
    if (!x.is_part()) return;
    Value* const sizes = node_.output();
    std::vector<int64_t> factors;
    if (node_.is("Shape")) {
      const int64_t rank = node_.input(0)->rank();
      const auto place = [&](const char* name, int64_t otherwise) {
        const int64_t given = node_.attr(name, otherwise);
        return std::clamp<int64_t>(given < 0 ? given + rank : given, 0, rank);
      };
      const int64_t end = place("end", rank);
      for (int64_t axis = place("start", 0); axis < end; ++axis) factors.push_back(axis == x.cut.axis ? parts_ : 1);
    }
    Builder b(&node_.graph(), node_.next());
    b.set_name(sizes->name() + "/whole");
    const std::optional<Dims> known = sizes->elements();
    const Var all =
        b.var(sizes) * (node_.is("Size") ? b.scalar(DType::kInt64, static_cast<double>(parts_)) : b.ints(factors));
    node_.graph().replace(sizes, all.value());
    all.value()->producer()->set_input(0, node_.output());
    all.value()->set_elements(known);
  }

  // The mean over a part is a term of the mean times the number of parts.
  void divide_mean() {
    if (!input(0).is_part() || !output().is_term()) return;
    Value* const mean = node_.output();
    Builder b(&node_.graph(), &node_);
    b.set_name(mean->name() + "/term");
    node_.set_input(0, (b.var(node_.input(0)) / static_cast<double>(parts_)).value());
  }

  Node& node_;
  Builder b_;
  const NodeLayouts& layouts_;
  const PartOf rank_;
  const int64_t parts_;
};

}  // namespace

Node* fit_to_parts(Node* node, const NodeLayouts& layouts, const PartOf& rank) {
  return PartNode(node, layouts, rank).run();
}

bool is_gradient_of_rows(const Node* node, const Cut& cut) {
  if (!node || !node->is("GatherGrad", kDomain) || node->attr("axis", 0) != cut.axis) return false;
  const TensorType& type = node->output()->type();
  return type.is_static() && type.shape()[static_cast<size_t>(cut.axis)] == cut.period;
}

Var gradient_of_own_rows(Node* node, const Cut& cut, const PartOf& rank, Node* before) {
  Builder b(&node->graph(), before);
  b.set_name(node->output()->name() + "/own");
  const Var dy = b.var(node->input(0)), indices = b.var(node->input(1));
  const OwnIndices own = own_indices(indices, cut.period, rank);
  std::vector<int64_t> inner;
  for (int64_t i = cut.axis + indices.rank(); i < dy.rank(); ++i) inner.push_back(i);
  const Var mine = where(inner.empty() ? own.is_own : unsqueeze(own.is_own, inner), dy, 0);
  Shape sizes = node->output()->type().shape();
  sizes[static_cast<size_t>(cut.axis)] /= rank.parts;
  return b.like(*node, {mine, own.indices, b.ints(sizes)})[0];
}

}  // namespace onnx_train
