#include "onnx_passes/model/constants.h"

#include <algorithm>
#include <string_view>
#include <unordered_set>

#include "onnx_passes/inference/inference.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/shared_constants.h"
#include "onnx_passes/model/batch_statistics.h"
#include "onnx_passes/model/constant_values.h"
#include "onnx_passes/model/weight_origin.h"
#include "onnx_passes/model/weight_roles.h"
#include "onnx_passes/operators/operators.h"

namespace onnx_train {
namespace {

// The reasons.
constexpr const char* kBuffer = "a buffer or literal of the module, says the file";
constexpr const char* kComputedFrom = "computed from parameters by the exporter";  // folded_parameters.h says more
constexpr const char* kMask = "a mask: two values, one of them hides";
constexpr const char* kSines = "a table of sines and cosines";
constexpr const char* kFrequencies = "frequencies or slopes";
constexpr const char* kPositions = "positions, or slopes times positions";
constexpr const char* kWindow = "a window";
constexpr const char* kFilterBank = "a bank of triangular filters";
constexpr const char* kSetting = "a setting of an operator, such as a bound";
constexpr const char* kGroups = "ones and zeros of a group normalization";
constexpr const char* kNormalizes = "shifts or scales an input";
constexpr const char* kNumber = "a single number";
constexpr const char* kFilter = "a filter of fixed form, such as a blur";

bool is_guess(std::string_view why) { return why == kNormalizes || why == kNumber || why == kFilter; }
// Found by values, and by what is computed with them. All else the file, the operator, or the pass that made it says.
bool is_found_by_values(std::string_view why) {
  for (const char* reason : {kMask, kSines, kFrequencies, kPositions, kWindow, kFilterBank, kGroups}) {
    if (why == reason) return true;
  }
  return false;
}

constexpr size_t kMaxFollowed = 64;  // nodes that a search visits

// The uses of the value's elements, also after nodes that only move, repeat or convert them.
std::vector<Use> readers_of(const Value& value) {
  std::vector<Use> readers;
  std::vector<const Value*> pending = {&value};
  for (size_t i = 0; i < pending.size(); ++i) {
    for (const Use& use : pending[i]->uses()) {
      const Node& node = *use.node;
      const bool moves = use.index == 0 && node.output() && (moves_elements(node) || node.is("DequantizeLinear"));
      if (moves && pending.size() < kMaxFollowed) {
        pending.push_back(node.output());
      } else {
        readers.push_back(use);
      }
    }
  }
  return readers;
}

template <typename F>
bool all_of(const std::vector<Use>& uses, const F& f) {
  return !uses.empty() && std::all_of(uses.begin(), uses.end(), f);
}

template <typename F>
bool any_of(const std::vector<Use>& uses, const F& f) {
  return std::any_of(uses.begin(), uses.end(), f);
}

bool is_one_of(const Node& node, std::initializer_list<std::string_view> operators) {
  return node.domain().empty() && std::find(operators.begin(), operators.end(), node.op()) != operators.end();
}

// ---- What readers say

// Inputs that say how to compute, not with what, and those of nodes without float outputs, such as comparisons: no
// gradient reaches them. What is quantized is a weight: if no gradient reaches it, that is said (gradients/driver.cc).
bool is_setting(const Use& use) {
  const Node& node = *use.node;
  const bool has_floats =
      node.is("QuantizeLinear") || std::any_of(node.outputs().begin(), node.outputs().end(), [](const Value* output) {
        return output && (is_float(output->dtype()) || output->dtype() == DType::kUndefined);
      });
  return !has_floats || operator_of(node).settings.holds(use.index);
}

bool is_affine(const Node& node) { return node.num_inputs() == 2 && is_one_of(node, {"Add", "Sub", "Mul", "Div"}); }

// The same, and what such inputs alone are computed of: the scale of a bias is a product of two. A gradient reaches
// exponents and bounds that are computed: these may be learned.
bool makes_settings(const Use& use, int steps) {
  constexpr int kMaxSteps = 4;
  if (is_setting(use)) return steps == 0 || !is_one_of(*use.node, {"Pow", "Clip"});
  const Value* made = is_affine(*use.node) ? use.node->output() : nullptr;
  return made && steps < kMaxSteps && !made->graph().is_output(made) &&
         all_of(made->uses(), [steps](const Use& reader) { return makes_settings(reader, steps + 1); });
}

int64_t axes_of(const Value& value) {
  const Shape shape = value.type().shape();
  return std::count_if(shape.begin(), shape.end(), [](int64_t d) { return d != 1; });
}

// Whether the node combines the constant with an input of the model that has been shifted and scaled at most.
bool reads_input(const Use& use) {
  const Node& node = *use.node;
  return is_affine(node) && node.input(1 - use.index) && is_scaled_input(node.input(1 - use.index));
}

// Whether the value is computed of constants alone, by a few nodes.
bool is_of_constants(const Value* value) {
  std::vector<const Value*> pending = {value};
  for (size_t i = 0; i < pending.size(); ++i) {
    const Value* v = pending[i];
    if (!v || v->is_initializer()) continue;
    if (!v->producer() || !v->producer()->subgraphs().empty() || pending.size() > kMaxFollowed) return false;
    pending.insert(pending.end(), v->producer()->inputs().begin(), v->producer()->inputs().end());
  }
  return true;
}

// The readers; where one of them computes a number of constants alone, such as a deviation of a variance, the readers
// of that number in its place.
std::vector<Use> after_own_numbers(std::vector<Use> readers) {
  size_t at = 0;
  for (size_t steps = 0; at < readers.size() && readers.size() < kMaxFollowed && steps < kMaxFollowed; ++steps) {
    const Node& node = *readers[at].node;
    const Value* made = node.output();
    const bool computes = operator_of(node).kind == OperatorKind::kElementwise;
    if (!computes || !made || made->graph().is_output(made) || !is_of_constants(made)) {
      ++at;
      continue;
    }
    readers.erase(readers.begin() + static_cast<std::ptrdiff_t>(at));
    const std::vector<Use> next = readers_of(*made);
    readers.insert(readers.end(), next.begin(), next.end());
  }
  return readers;
}

// Whether a mean is subtracted from an input, or an input divided by a deviation.
bool standardizes_input(const std::vector<Use>& readers) {
  return any_of(readers, [](const Use& use) {
    return use.index == 1 && is_one_of(*use.node, {"Sub", "Div"}) && reads_input(use);
  });
}

// Standardization by a tensor of any shape; a sum or product with more than one axis may be a learned table, such as
// one of positions.
bool normalizes_input(const Value& value, const std::vector<Use>& readers) {
  return standardizes_input(readers) || (axes_of(value) <= 1 && all_of(readers, reads_input));
}

// A row of a table, such as the vector of a word.
bool is_table_row(const Node& node) {
  const Value* data = node.input(0);
  return node.is("Gather") && data->is_initializer() && is_float(data->dtype()) && data->rank() > 1;
}

// Whether the value follows from integers and constants alone, as positions do, without a look-up of vectors.
bool is_position(const Value* value) {
  std::vector<const Value*> pending = {value};
  for (size_t i = 0; i < pending.size(); ++i) {
    const Value* v = pending[i];
    if (!v || !is_float(v->dtype()) || v->is_initializer()) continue;
    if (!v->producer() || pending.size() > kMaxFollowed || is_table_row(*v->producer())) return false;
    pending.insert(pending.end(), v->producer()->inputs().begin(), v->producer()->inputs().end());
  }
  return true;
}

// Whether the values are multiplied by positions and end in sines and cosines: rotary frequencies. Learned frequencies
// multiply values that depend on a float input.
bool are_frequencies(const Value& value) {
  std::vector<const Value*> pending = {&value};
  bool ends = false;
  for (size_t i = 0; i < pending.size(); ++i) {
    for (const Use& use : pending[i]->uses()) {
      const Node& node = *use.node;
      if (is_one_of(node, {"Sin", "Cos"})) {
        ends = true;
        continue;
      }
      const bool product = is_one_of(node, {"Mul", "MatMul", "Div", "Einsum"}) && node.num_inputs() == 2;
      const bool moves = moves_elements(node);
      if (!node.output() || (!product && !moves) || pending.size() > kMaxFollowed) return false;
      if (product && !is_position(node.input(1 - use.index))) return false;
      pending.push_back(node.output());
    }
  }
  return ends;
}

// The ones and zeros of an InstanceNormalization between two Reshapes: exporters write group normalization like this,
// with its own scale and bias after it.
bool belongs_to_groups(const Value& value) {
  const auto is_reshape = [](const Node* node) { return node && node->is("Reshape"); };
  const auto is_part = [&](const Use& use) {
    if (!use.node->is("InstanceNormalization") || use.index == 0 || !is_reshape(use.node->input(0)->producer()))
      return false;
    return all_of(use.node->output()->uses(), [&](const Use& reader) { return is_reshape(reader.node); });
  };
  if (!all_of(value.uses(), is_part)) return false;
  const Tensor tensor = constant_of(&value);
  return tensor.holds_only(0) || tensor.holds_only(1);
}

// The scale or bias of a batch normalization whose channels are those of all samples (batch_statistics.h).
bool belongs_to_samples(const Value& value) {
  return all_of(value.uses(), [](const Use& use) {
    return use.node->is("BatchNormalization") && use.index > 0 && normalizes_samples(*use.node);
  });
}

bool is_read_as_statistic(const Use& use) { return use.node->is("BatchNormalization") && use.index >= 3; }

// Whether statistics of the channels of all samples are made of the value, by Tile and the like, and nothing else is.
bool is_repeated_statistic(const Value* value, int steps = 0) {
  constexpr int kMaxSteps = 8;
  return steps < kMaxSteps && all_of(value->uses(), [&](const Use& use) {
           if (is_read_as_statistic(use)) return true;
           const bool repeats = is_one_of(*use.node, {"Tile", "Expand", "Reshape", "Identity"}) && use.index == 0;
           return repeats && is_repeated_statistic(use.node->output(), steps + 1);
         });
}

// Scalars are mostly constants of formulas (an attention's scale, an epsilon), not weights; so are tensors with one
// element that element-wise operators read, unless they are the bias of a layer with one output.
bool is_number(const Value& value) {
  if (num_elements(value.type().shape()) != 1) return false;
  if (value.rank() == 0) return true;
  const bool is_operand = std::all_of(value.uses().begin(), value.uses().end(), [](const Use& use) {
    const Operator& row = operator_of(*use.node);
    const bool combines = row.kind == OperatorKind::kElementwise && use.node->num_inputs() > 1 && row.weights.empty();
    return combines || use.node->is("Expand");
  });
  const WeightUse use = use_of(value);
  return is_operand && !(use.role == WeightRole::kBias && use.fan_in > 0);
}

// ---- What contents say

const char* kind_of_contents(const Tensor& x, const std::vector<Use>& readers) {
  if (x.size() < 4) return nullptr;
  if (is_additive_mask(x)) return kMask;
  const bool selects = all_of(readers, [](const Use& use) {
    return is_setting(use) || is_one_of(*use.node, {"Mul", "Sub", "Where"});
  });
  if (selects && is_binary(x)) return kMask;
  const auto divides = [](const Use& use) { return use.index == 1 && use.node->is("Div"); };
  if (all_of(readers, divides) && x.holds_only(x.at(0))) return kNumber;  // the count of a mean, repeated
  if (is_geometric(x)) return kFrequencies;
  const auto ramps = [](const Use& use) {
    const bool scores = use.node->is("Add") && is_added_to_scores(use);
    return scores || (is_affine(*use.node) && is_position(use.node->input(1 - use.index)));
  };
  if (all_of(readers, ramps) && is_ramp(x)) return kPositions;
  if (all_of(readers, [](const Use& use) { return is_affine(*use.node); }) && is_grid(x)) return kPositions;
  if (is_sinusoidal(x)) return kSines;
  if (all_of(readers, [](const Use& use) { return use.node->is("Mul"); }) && is_window(x)) return kWindow;
  const auto convolves = [](const Use& use) {
    return use.index == 1 && is_one_of(*use.node, {"Conv", "ConvTranspose"});
  };
  if (all_of(readers, convolves) && is_fixed_filter(x)) return kFilter;
  const bool multiplies = all_of(readers, [](const Use& use) {
    return is_one_of(*use.node, {"MatMul", "Gemm", "Conv"}) && use.index < 2;
  });
  return multiplies && is_filter_bank(x) ? kFilterBank : nullptr;
}

// Why the initializer is a constant; null if it is a weight.
const char* reason_of(const Value& value) {
  const Origin origin = origin_of(value);
  if (origin == Origin::kParameter) return nullptr;
  if (origin == Origin::kConstant) return kBuffer;
  if (origin == Origin::kComputed) return kComputedFrom;
  if (!value.type().is_static()) return nullptr;
  const std::vector<Use> readers = readers_of(value);
  const bool is_learned_exponent =
      origin == Origin::kNamed && all_of(readers, [](const Use& use) { return use.node->is("Pow"); });
  if (all_of(readers, [](const Use& use) { return makes_settings(use, 0); }) && !is_learned_exponent) return kSetting;
  if (belongs_to_groups(value) || belongs_to_samples(value)) return kGroups;
  if (origin == Origin::kNamed) return standardizes_input(after_own_numbers(readers)) ? kNormalizes : nullptr;
  // Builder's name of a number that the body of an operator has.
  if (is_number(value)) return is_shared_constant(value) ? kSetting : kNumber;
  if (are_frequencies(value)) return kFrequencies;
  const Tensor contents = stored_contents(value);
  const char* kind = kind_of_contents(contents, readers);
  release_pages(contents);
  if (kind) return kind;
  return normalizes_input(value, after_own_numbers(readers)) ? kNormalizes : nullptr;
}

// Why a single number is a weight; null if it is none, or no matter of course.
const char* reason_for_number(const Value& value) {
  if (!value.type().is_static() || !is_number(value)) return nullptr;
  const Origin origin = origin_of(value);
  if (origin == Origin::kNamed) return "a single number, named as a parameter or buffer of the module";
  return origin == Origin::kParameter ? "a single number that is a parameter, says the file" : nullptr;
}

// Why a weight may be a constant; null if nothing says so.
const char* doubt_about(const Value& value) {
  if (origin_of(value) != Origin::kUnknown || !value.type().is_static() || axes_of(value) < 2) return nullptr;
  const std::vector<Use> readers = readers_of(value);
  if (all_of(readers, [](const Use& use) { return use.node->is("Add") && is_added_to_scores(use); }))
    return "added to attention scores: a bias, or a mask";
  if (all_of(readers, reads_input)) return "combined with an input: learned, or fixed";
  return nullptr;
}

bool may_be_weight(const Value* value) { return is_float(value->dtype()) && !is_running_statistic(value); }

std::string record_of(const Value* value) { return concat(kConstantRecord, value->name()); }

// Short enough for one line of a table.
std::string list_of(const std::vector<const Value*>& values) {
  constexpr size_t kMaxShown = 3, kMaxLength = 36;
  return first_few(
      values, kMaxShown, [](const Value* value) { return concat("'", value->name(), "'"); }, kMaxLength);
}

// The option that trains the first of these constants beside all weights: a list without '*' would train it alone.
std::string how_to_train(const std::vector<const Value*>& values) {
  std::string pattern = "*," + values[0]->name();
  for (size_t at = 0; (at = pattern.find('\'', at)) != std::string::npos; at += 4) pattern.replace(at, 1, "'\\''");
  return concat("--train '", pattern, "' trains ", values.size() == 1 ? "it, too" : "the first one, too");
}

// Values by a text, in the order in which each text is first met.
class Groups {
 public:
  void add(std::string_view text, const Value* value) {
    const auto found = std::find_if(groups_.begin(), groups_.end(), [&](const auto& g) { return g.first == text; });
    if (found == groups_.end()) {
      groups_.push_back({std::string(text), {value}});
    } else {
      found->second.push_back(value);
    }
  }

  const std::vector<std::pair<std::string, std::vector<const Value*>>>& all() const { return groups_; }

 private:
  std::vector<std::pair<std::string, std::vector<const Value*>>> groups_;
};

}  // namespace

bool is_running_statistic(const Value* value) {
  return any_of(value->uses(), is_read_as_statistic) || is_repeated_statistic(value);
}

void mark_constants(Model* model) {
  const auto recorded = constants_of(*model);
  std::vector<std::pair<const Value*, const char*>> found;
  bool has_weight = false;
  for (const Value* value : model->graph->initializers()) {
    if (!may_be_weight(value) || recorded.count(value->name())) continue;
    if (const char* why = reason_of(*value)) {
      found.push_back({value, why});
    } else {
      has_weight = true;
    }
  }
  for (const auto& [value, why] : found) {
    if (!has_weight && is_guess(why) && std::string_view(why) != kNumber) continue;
    auto* entry = model->shell().add_metadata_props();
    entry->set_key(record_of(value));
    entry->set_value(why);
  }
}

std::unordered_map<std::string, std::string> constants_of(const Model& model) {
  std::unordered_map<std::string, std::string> constants;
  for (const auto& entry : model.shell().metadata_props()) {
    if (entry.key().starts_with(kConstantRecord))
      constants.emplace(entry.key().substr(kConstantRecord.size()), entry.value());
  }
  return constants;
}

void forget_constants(Model* model, const std::vector<Value*>& trained) {
  std::unordered_set<std::string> records;
  for (const Value* value : trained) records.insert(record_of(value));
  auto* properties = model->shell().mutable_metadata_props();
  for (int i = properties->size() - 1; i >= 0; --i) {
    if (records.count(properties->Get(i).key())) properties->DeleteSubrange(i, 1);
  }
}

std::vector<Finding> describe_constants(const Model& model, const std::vector<Value*>& trained) {
  const auto constants = constants_of(model);
  const std::unordered_set<const Value*> is_trained(trained.begin(), trained.end());
  Groups left, numbers, doubtful;
  for (const Value* value : model.graph->initializers()) {
    if (const auto found = constants.find(value->name()); found != constants.end()) {
      if (!is_trained.count(value) && found->second != kComputedFrom) left.add(found->second, value);
    } else if (is_trained.count(value)) {
      if (const char* why = reason_for_number(*value)) numbers.add(why, value);
      if (const char* doubt = doubt_about(*value)) doubtful.add(doubt, value);
    }
  }
  std::vector<Finding> findings;
  for (const auto& [why, values] : left.all()) {
    const char* const how = is_guess(why) ? "a guess" : is_found_by_values(why) ? "by its values" : nullptr;
    findings.push_back({list_of(values), why, how ? concat(how, "; ", how_to_train(values)) : "certain"});
  }
  for (const auto& [why, values] : numbers.all()) {
    const bool by_name = origin_of(*values[0]) == Origin::kNamed;
    findings.push_back(
        {list_of(values), why, by_name ? "trained, a guess by the name; --freeze NAME leaves it" : "trained"});
  }
  for (const auto& [doubt, values] : doubtful.all()) {
    findings.push_back({list_of(values), doubt, "trained, unsure; --freeze NAME leaves it"});
  }
  return findings;
}

}  // namespace onnx_train
