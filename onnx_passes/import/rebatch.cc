#include "onnx_passes/import/rebatch.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"

namespace onnx_train {
namespace {

// The batch is first set to a large prime: a size that the prime divides contains the batch.
constexpr int64_t kProbe = 1000003;

bool carries(const Dim& dim) { return dim.known() && dim.value() > 0 && dim.value() % kProbe == 0; }

int64_t product(const Shape& sizes, size_t from, size_t to) {
  int64_t result = 1;
  for (size_t i = from; i < to; ++i) {
    if (__builtin_mul_overflow(result, sizes[i], &result)) fail("sizes ", to_string(sizes), " are too large");
  }
  return result;
}

class Rebatch {
 public:
  Rebatch(Graph* graph, int64_t old) : graph_(graph), old_(old) {}

  void probe() {
    source_ = graph_->inputs()[0];
    for (Value* input : graph_->inputs()) set_batch(input, Dim(kProbe));
    for (Node* node = graph_->first(); node; node = node->next()) {
      try {
        repair(node);
        forget(node);
        infer_types(node);
        note_inner(node);
        for (const Value* output : node->outputs()) {
          if (output) probed_[output] = output->type().dims;
        }
      } catch (const Error& error) {
        fail_as(ErrorCode::kFixedBatch, "[Import] the model does not run with another batch than ", old_, ": ",
                error.what(), "; export it with a dynamic batch");
      }
    }
  }

  // Gives another batch size to inputs that have the old (or the probe) batch size.
  void set_batch(Value* input, const Dim& batch) const {
    TensorType type = input->type();
    if (!type.dims || type.dims->empty()) return;
    Dim& first = type.dims->front();
    if (first != Dim(old_) && first != Dim(kProbe)) return;
    first = batch;
    input->set_type(std::move(type));
  }

  // Element types and ranks do not depend on the batch, and may be known from declarations alone.
  static void forget(Node* node) {
    if (!is_known_operator(*node)) return;
    for (Value* output : node->outputs()) {
      if (!output) continue;
      TensorType type = output->type();
      if (type.dims) type.dims->assign(type.dims->size(), Dim());
      output->set_type(std::move(type));
      output->set_elements(std::nullopt);
    }
  }

  // Infers all types from the inputs; sizes that inference cannot follow are known from the probe.
  void infer(const Dim& batch) {
    for (Node* node = graph_->first(); node; node = node->next()) forget(node);
    for (Node* node = graph_->first(); node; node = node->next()) {
      infer_types(node);
      for (Value* output : node->outputs()) {
        const auto& probed = probed_[output];
        TensorType type = output ? output->type() : TensorType();
        if (!probed || (type.dims && type.dims->size() != probed->size())) continue;
        if (!type.dims) type.dims.emplace(probed->size());
        for (size_t i = 0; i < probed->size(); ++i) {
          Dim& dim = (*type.dims)[i];
          if (dim.known() || !dim.symbol().empty()) continue;
          if ((*probed)[i] == Dim(kProbe)) dim = batch;
          if (!carries((*probed)[i])) dim = (*probed)[i];
        }
        output->set_type(std::move(type));
      }
    }
  }

  // The axis of `value` that contains the batch; -1 if there is none.
  static int axis_of(const Value* value) {
    int axis = -1;
    if (!value || !value->has_rank()) return axis;
    for (int i = 0; i < static_cast<int>(value->rank()); ++i) {
      if (!carries((*value->type().dims)[static_cast<size_t>(i)])) continue;
      if (axis >= 0) fail("'", value->name(), "' has the batch in two dimensions");
      axis = i;
    }
    return axis;
  }

 private:
  void repair(Node* node) {
    if (node->is("Reshape")) return repair_reshape(node);
    if (node->is("Expand")) return repair_expand(node);
    if (node->is("Concat")) return repair_concat(node);
    if (node->is("Resize")) return repair_resize(node);
    if (node->is("LSTM") || node->is("GRU") || node->is("RNN")) return repair_recurrent(node);
  }

  [[noreturn]] static void refuse(const Node* node, const std::string& why) { fail(node->label(), ": ", why); }

  // Whether the value is the same for every batch: an initializer, or computed independently of the input's shape.
  static bool is_constant(const Value* value) {
    const Tensor tensor = constant_of(value);
    for (int64_t i = 0; i < tensor.size(); ++i) {
      if (carries(Dim(static_cast<int64_t>(tensor.at(i))))) return false;
    }
    return !tensor.empty();
  }

  void set_constant(Node* node, int index, const Shape& values) {
    Builder b(graph_, node);
    b.set_name(node->input(index)->name() + "/batch");
    node->set_input(index, b.ints(values).value());
  }

  // The batch size at run time; `dim` would write the probe as a constant.
  Var batch(Builder* b) const { return b->op("Shape", {b->var(source_)}, {{"start", 0}, {"end", 1}}); }

  // A shape of ones, with the batch at `axis`.
  Var spread(Builder* b, int64_t rank, int axis) const {
    std::vector<Var> parts;
    if (axis > 0) parts.push_back(b->ints(Shape(static_cast<size_t>(axis), 1)));
    parts.push_back(batch(b));
    if (axis + 1 < rank) parts.push_back(b->ints(Shape(static_cast<size_t>(rank - axis - 1), 1)));
    return parts.size() == 1 ? parts[0] : concat(parts, int64_t{0});
  }

  // An input that repeats one part along `axis` for each sample of the old batch is expanded to the actual batch.
  void repeat(Node* node, int index, int axis) {
    Builder b(graph_, node);
    Var x = b.var(node->input(index));
    b.set_name(x.value()->name() + "/batch");
    if (old_ != 1) {
      if (!has_equal_parts(x.value(), axis)) {
        refuse(node, onnx_train::concat("'", x.value()->name(), "' has one part for each of ", old_, " samples"));
      }
      x = slice(x, 0, 1, axis);
    }
    node->set_input(index, expand(x, spread(&b, x.rank(), axis)).value());
  }

  static bool has_equal_parts(const Value* value, int axis) {
    if (const Node* expanded = value->producer(); expanded && expanded->is("Expand")) {
      const TensorType& type = expanded->input(0)->type();
      const int64_t from = type.dims ? axis - value->rank() + type.rank() : 0;
      return type.dims && (from < 0 || (*type.dims)[static_cast<size_t>(from)] == Dim(int64_t{1}));
    }
    const Tensor tensor = constant_of(value);
    if (tensor.empty() || !value->type().is_static()) return false;
    const Shape& shape = tensor.shape();
    const auto at = static_cast<size_t>(axis);
    const int64_t inner = product(shape, at + 1, shape.size());
    for (int64_t i = 0; i < tensor.size(); ++i) {
      const int64_t first = i - i / inner % shape[at] * inner;
      if (tensor.at(i) != tensor.at(first)) return false;
    }
    return true;
  }

  void repair_reshape(Node* node) {
    if (!is_constant(node->input(1))) return;
    const int axis = axis_of(node->input(0));
    if (axis < 0) return;
    const auto j = static_cast<size_t>(axis);
    const Dims& dims = *node->input(0)->type().dims;
    Shape target = constant_of(node->input(1)).to_ints();
    const bool open = std::find(target.begin(), target.end(), -1) != target.end();
    if (!node->input(0)->type().is_static()) {
      if (j == 0 && !target.empty() && (target[0] == -1 || target[0] == 0)) return;
      if (j != 0 || target.empty() || target[0] % old_ != 0)
        refuse(node, "its target holds the batch at a place unknown");
      const bool copies = target[0] == old_ && dims[0] == Dim(kProbe);
      if (!copies && open) refuse(node, "its target mixes the batch with a size that is not known");
      target[0] = copies ? 0 : -1;
      return set_target(node, target);
    }
    Shape from = node->input(0)->type().shape();
    from[j] = from[j] / kProbe * old_;
    const Shape to = resolve(node, target, from);
    const size_t i = find_batch(node, stride_of(node->input(0), axis), to);
    if (target[i] == -1 || (target[i] == 0 && i == j)) return;
    if (i == j && to[i] == from[i]) {
      target[i] = 0;
    } else {
      target = to;
      target[i] = -1;
    }
    set_target(node, target);
  }

  // Elements between two samples.
  int64_t stride_of(const Value* value, int axis) const {
    const Shape shape = value->type().shape();
    const auto known = inner_.find(value);
    const int64_t inner = known == inner_.end() ? shape[static_cast<size_t>(axis)] / kProbe : known->second;
    return inner * product(shape, static_cast<size_t>(axis) + 1, shape.size());
  }

  // If a dimension is a multiple of the batch, records the factor inside the batch (all of it, unless a Reshape has
  // merged the batch with the axes before it).
  void note_inner(const Node* node) {
    const Value* output = node->output();
    if (axis_of(output) < 0 || !output->type().is_static()) return;
    const auto multiple = [](const Value* v, int axis) {
      return (*v->type().dims)[static_cast<size_t>(axis)].value() / kProbe;
    };
    const int axis = axis_of(output);
    if (multiple(output, axis) == 1) return;
    for (const Value* input : node->inputs()) {
      const int from = axis_of(input);
      if (from < 0 || !input->type().is_static()) continue;
      if (node->is("Reshape")) {
        const Shape shape = output->type().shape();
        const int64_t after = product(shape, static_cast<size_t>(axis) + 1, shape.size());
        if (after > 0) inner_[output] = stride_of(input, from) / after;
      } else if (inner_.count(input) && multiple(input, from) == multiple(output, axis)) {
        inner_[output] = inner_.at(input);
      }
    }
  }

  void set_target(Node* node, const Shape& target) {
    node->remove_attr("allowzero");
    set_constant(node, 1, target);
  }

  // The dimension of a Reshape's result that contains the batch. Elements keep their order, so it is the one whose
  // strides enclose those of the batch; it is unique if the old batch is larger than 1. A batch of 1 may be between two
  // dimensions. Then it is a dimension of 1 at that position, if there is one; otherwise it joins the next dimension if
  // the dimensions after the batch are split (channels into heads), and the previous one if not (time and batch into
  // rows).
  size_t find_batch(const Node* node, int64_t stride, const Shape& to) const {
    std::vector<size_t> fits;
    for (size_t i = 0; i < to.size(); ++i) {
      const int64_t inner = product(to, i + 1, to.size());
      if (inner <= stride && stride * old_ <= inner * to[i] && stride % inner == 0 && to[i] % old_ == 0) {
        fits.push_back(i);
      }
    }
    if (fits.empty()) refuse(node, "its target does not keep the samples apart");
    if (fits.size() == 1) return fits[0];
    for (const size_t i : fits) {
      if (to[i] == 1) return i;
    }
    const bool split = product(to, fits[1], fits[1] + 1) < stride;
    return split ? fits[1] : fits[0];
  }

  // The target with zeros and -1 replaced by their sizes.
  static Shape resolve(const Node* node, const Shape& target, const Shape& from) {
    Shape to = target;
    int64_t known = 1;
    for (size_t i = 0; i < to.size(); ++i) {
      if (to[i] == 0 && i < from.size() && node->attr("allowzero", 0) == 0) to[i] = from[i];
      if (to[i] != -1 && __builtin_mul_overflow(known, to[i], &known)) refuse(node, "its target is too large");
    }
    for (int64_t& size : to) {
      if (size == -1) size = known > 0 ? product(from, 0, from.size()) / known : 0;
    }
    const int64_t elements = product(to, 0, to.size());
    if (elements <= 0 || elements != product(from, 0, from.size())) refuse(node, "its target does not fit its input");
    return to;
  }

  // Constants that repeat one part for each sample of the old batch are expanded to the actual batch: exporters fold
  // the values of a recurrent layer's initial states, not only their shape.
  void repair_expanded(Node* node) {
    const auto& target = node->input(1)->elements();
    const TensorType& type = node->input(0)->type();
    if (!target || !type.dims || axis_of(node->input(0)) >= 0 || old_ == 1) return;
    const int64_t missing = static_cast<int64_t>(target->size()) - type.rank();
    for (int64_t axis = std::max<int64_t>(0, -missing); axis < type.rank(); ++axis) {
      if (!carries((*target)[static_cast<size_t>(axis + missing)])) continue;
      if ((*type.dims)[static_cast<size_t>(axis)] != Dim(old_)) continue;
      if (!has_equal_parts(node->input(0), static_cast<int>(axis))) refuse(node, "it expands one part for each sample");
      Builder b(graph_, node);
      b.set_name(node->input(0)->name() + "/sample");
      return node->set_input(0, slice(b.var(node->input(0)), 0, 1, axis).value());
    }
  }

  void repair_expand(Node* node) {
    if (!is_constant(node->input(1))) return repair_expanded(node);
    if (!node->input(0)->has_rank()) return;
    Shape target = constant_of(node->input(1)).to_ints();
    const auto rank = static_cast<int64_t>(target.size());
    if (const int axis = axis_of(node->input(0)); axis >= 0) {
      const int64_t at = axis + rank - node->input(0)->rank();
      if (at < 0 || target[static_cast<size_t>(at)] == 1) return;
      if (target[static_cast<size_t>(at)] != old_) refuse(node, "its target does not fit the batch");
      target[static_cast<size_t>(at)] = 1;
      return set_constant(node, 1, target);
    }
    if (old_ == 1 || target.empty() || target[0] != old_) return;
    const bool repeats = rank > node->input(0)->rank() || (*node->input(0)->type().dims)[0] == Dim(1);
    if (!repeats) return;
    Builder b(graph_, node);
    b.set_name(node->input(1)->name() + "/batch");
    std::vector<Var> parts = {batch(&b)};
    if (rank > 1) parts.push_back(b.ints(Shape(target.begin() + 1, target.end())));
    node->set_input(1, concat(parts, int64_t{0}).value());
  }

  // A constant combined with a batch of one (such as a class token) is repeated for each sample.
  void repair_concat(Node* node) {
    int axis = -1;
    for (const Value* input : node->inputs()) axis = std::max(axis, axis_of(input));
    if (axis < 0) return;
    for (int i = 0; i < node->num_inputs(); ++i) {
      const Value* input = node->input(i);
      if (axis_of(input) >= 0 || !input->has_rank() || input->rank() <= axis) continue;
      if (normalize_axis(node->attr("axis", 0), input->rank()) == axis) continue;
      repeat(node, i, axis);
    }
  }

  void repair_resize(Node* node) {
    if (!is_constant(node->input(3)) || axis_of(node->input(0)) != 0 || node->has_attr("axes")) return;
    const Shape sizes = constant_of(node->input(3)).to_ints();
    if (sizes.empty() || sizes[0] != old_ || node->input(1)) refuse(node, "its sizes do not start with the batch");
    Shape axes;
    for (size_t i = 1; i < sizes.size(); ++i) axes.push_back(static_cast<int64_t>(i));
    node->set_attr("axes", axes);
    set_constant(node, 3, Shape(sizes.begin() + 1, sizes.end()));
  }

  static bool is_zero(const Value* value) {
    while (value->producer() && value->producer()->is("Expand")) value = value->producer()->input(0);
    const Node* producer = value->producer();
    if (producer && producer->is("ConstantOfShape")) {
      const Tensor fill = producer->attr_tensor("value");
      return fill.empty() || (fill.size() == 1 && fill.at(0) == 0);
    }
    return constant_of(value).holds_only(0);
  }

  // Initial states of zeros can be omitted.
  void repair_recurrent(Node* node) {
    if (axis_of(node->input(0)) < 0) return;
    if (node->input(4) && is_constant(node->input(4))) refuse(node, "the lengths of its sequences are constant");
    const int axis = node->attr("layout", 0) == 0 ? 1 : 0;
    for (int i = 5; i < std::min(node->num_inputs(), 7); ++i) {
      if (!node->input(i) || axis_of(node->input(i)) >= 0) continue;
      if (is_zero(node->input(i))) {
        node->set_input(i, nullptr);
      } else {
        repeat(node, i, axis);
      }
    }
  }

  Graph* graph_;
  int64_t old_;
  Value* source_ = nullptr;
  std::unordered_map<const Value*, int64_t> inner_;
  std::unordered_map<const Value*, std::optional<Dims>> probed_;
};

Dim parse(const std::string& text) {
  if (text == "dynamic") return Dim("batch");
  int64_t size = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), size);
  if (error != std::errc() || end != text.data() + text.size() || size <= 0 || size >= kProbe) {
    fail("[Import] batch '", text, "' is neither a positive number nor \"dynamic\"");
  }
  return Dim(size);
}

}  // namespace

void rebatch(Model* model, const std::string& batch) {
  Graph* graph = model->graph.get();
  const Dim wanted = parse(batch);
  const Value* first = graph->inputs().empty() ? nullptr : graph->inputs()[0];
  if (!first || !first->has_rank() || first->rank() == 0) {
    fail("[Import] the batch cannot be set: the model's first input has no dimensions");
  }
  const Dim old = first->type().dims->front();
  if (old == wanted || (!old.known() && !wanted.known())) return;
  if (old.known()) model->set_metadata(kExportedBatch, std::to_string(old.value()));
  if (!old.known()) {
    for (Value* input : graph->inputs()) {
      TensorType type = input->type();
      if (!type.dims || type.dims->empty() || type.dims->front() != old) continue;
      type.dims->front() = wanted;
      input->set_type(std::move(type));
    }
    for (Node* node = graph->first(); node; node = node->next()) Rebatch::forget(node);
    return infer_types(graph);
  }

  std::vector<std::pair<Value*, TensorType>> batched;  // outputs with the batch as their first dimension
  for (Value* output : graph->outputs()) {
    if (output->has_rank() && output->rank() > 0 && output->type().dims->front() == old)
      batched.emplace_back(output, output->type());
  }
  Rebatch rebatch(graph, old.value());
  rebatch.probe();
  const auto is_open = [](const Value& output) {
    const Dim& front = output.type().dims->front();
    return !front.known() && front.symbol().empty();
  };
  for (const auto& [output, type] : batched) {
    if (Rebatch::axis_of(output) < 0 && !is_open(*output)) {
      fail_as(ErrorCode::kFixedBatch, "[Import] output '", output->name(),
              "' does not follow the batch: ", to_string(output->type()), "; export the model with a dynamic batch");
    }
  }
  for (Value* input : graph->inputs()) {
    if (input->has_rank() && input->rank() > 0 && carries(input->type().dims->front()))
      rebatch.set_batch(input, wanted);
  }
  rebatch.infer(wanted);
  for (auto& [output, type] : batched) {  // what inference does not reach follows the batch as it is declared to
    if (!is_open(*output)) continue;
    for (Dim& dim : *type.dims) {
      if (dim == old) dim = Dim();
    }
    type.dims->front() = wanted;
    output->set_type(type);
  }
}

}  // namespace onnx_train
