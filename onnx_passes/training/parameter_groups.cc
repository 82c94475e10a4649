#include "onnx_passes/training/parameter_groups.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <unordered_set>

#include "onnx_passes/ir/error.h"
#include "onnx_passes/model/select.h"
#include "onnx_passes/model/weight_roles.h"
#include "onnx_passes/training/layer_depth.h"

namespace onnx_train {
namespace {

using ValueSet = std::unordered_set<const Value*>;

constexpr const char* kExample = "write 'PATTERN: lr=0.1x, weight_decay=0'";

struct OptionGroup {
  std::string text, pattern;
  ExpressionReader reader;
  std::vector<Option> options = {};  // other than lr
  std::optional<double> factor = {}, rate = {};
};

double rate_of(ExpressionReader* reader) {
  const size_t column = reader->column();
  const double value = reader->number();
  if (value < 0) reader->fail_at(column, concat("'lr' is ", number_text(value), "; it must be 0 or more"));
  return value;
}

void read_option_into(OptionGroup* group) {
  ExpressionReader& reader = group->reader;
  const Word key = reader.word("an option");
  reader.expect('=', "after an option");
  if (key.text != "lr") {
    group->options.push_back(read_option(&reader, key));
    return;
  }
  const double value = rate_of(&reader);
  const bool is_factor = reader.take('x');
  (is_factor ? group->factor : group->rate) = value;
  (is_factor ? group->rate : group->factor).reset();
}

// Names of weights may hold colons, options do not.
OptionGroup parse_group(const std::string& text) {
  const size_t colon = text.rfind(':');
  const std::string pattern = stripped(text.substr(0, colon));
  if (colon == std::string::npos || pattern.empty()) {
    fail_as(ErrorCode::kUsage, "--group '", text, "' has no ", pattern.empty() ? "pattern" : "options", "; ", kExample);
  }
  OptionGroup group{text, pattern, ExpressionReader(concat("--group '", pattern, "':"), text.substr(colon + 1))};
  do read_option_into(&group);
  while (group.reader.take(','));
  if (!group.reader.at_end()) group.reader.fail_at(group.reader.column(), "expected ',' or the end");
  return group;
}

// ---- What decays without a group

// Biases and scales, which do not decay unless they are named; some are stored with ones around their axis, as [1, C,
// 1, 1].
bool is_bias_or_scale(const Value& weight) {
  const WeightRole role = use_of(weight).role;
  return weight.rank() <= 1 || role == WeightRole::kBias || role == WeightRole::kNormScale;
}

ValueSet decaying(const std::vector<Value*>& weights, const BuildOptions& options) {
  if (!options.decay.empty()) {
    const auto chosen = match_names(weights, options.decay, "--decay");
    return {chosen.begin(), chosen.end()};
  }
  ValueSet result;
  for (const Value* w : weights) {
    if (!is_bias_or_scale(*w)) result.insert(w);
  }
  return result;
}

void set_number(OptimizerSpec* spec, std::string_view key, double value) {
  const auto& all = spec->row->hyperparameters;
  for (size_t i = 0; i < all.size(); ++i) {
    if (key == all[i].key) spec->values[i] = value;
  }
}

void count(const Value* weight, GroupLine* line) {
  ++line->tensors;
  line->elements += static_cast<double>(num_elements(weight->type().shape()));
}

// ---- All together

class Grouping {
 public:
  Grouping(const Model& model, const std::vector<Value*>& weights, const BuildOptions& options)
      : model_(model), weights_(weights), options_(options), base_(parse_optimizer(options.optimizer)) {}

  ParameterGroups run() {
    const ValueSet decay = decaying(weights_, options_);
    for (const Value* weight : weights_) {
      State& state = states_[weight];
      state.spec = base_;
      if (!decay.count(weight)) set_number(&state.spec, "weight_decay", 0);
    }
    for (const std::string& text : options_.groups) apply(parse_group(text));
    if (options_.layer_decay != 1) decay_by_layer();
    std::map<std::string, GroupLine> rest;
    for (const Value* weight : weights_) {
      const WeightUpdate& update = result_.updates[weight] = update_of(states_.at(weight), *weight);
      if (!base_.row->rest) continue;
      GroupLine& line = rest[update.spec.row->name];
      line.group = concat("by ", update.spec.row->name);
      count(weight, &line);
    }
    for (const auto& [name, line] : rest) result_.lines.push_back(line);
    return std::move(result_);
  }

 private:
  struct State {
    OptimizerSpec spec;
    double factor = 1, by_layer = 1;
    std::optional<double> rate = {};  // in the place of both
  };

  void apply(OptionGroup group) {
    GroupLine line{stripped(group.text)};
    for (const Value* weight : match_names(weights_, {group.pattern}, "--group")) {
      State& state = states_.at(weight);
      for (const Option& option : group.options) state.spec.set(option, group.reader);
      if (const std::string conflict = state.spec.conflict(); !conflict.empty()) group.reader.fail_at(1, conflict);
      if (group.factor) state.factor = *group.factor, state.rate.reset();
      if (group.rate) state.rate = group.rate;
      count(weight, &line);
    }
    result_.lines.push_back(line);
  }

  void decay_by_layer() {
    const LayerDepths depths = layer_depths(*model_.graph, weights_);
    std::vector<GroupLine> lines(depths.layers.size());
    for (const Value* weight : weights_) {
      State& state = states_.at(weight);
      state.by_layer = depths.rate(weight, options_.layer_decay);
      const size_t depth = depths.of.at(weight);
      char rate[32];
      std::snprintf(rate, sizeof rate, "%.4g", state.by_layer);
      lines[depth].group = concat("layer ", depth, ": ", depths.layers[depth], ", lr=", rate, "x");
      count(weight, &lines[depth]);
    }
    std::erase_if(lines, [](const GroupLine& line) { return line.tensors == 0; });
    result_.lines.insert(result_.lines.end(), lines.begin(), lines.end());
  }

  WeightUpdate update_of(const State& state, const Value& weight) const {
    const OptimizerSpec spec = state.spec.of(weight);
    const double peak = base_["lr"], own = spec["lr"];
    const bool has_own_rate = spec.row != base_.row && own != 0;
    if ((state.rate || has_own_rate) && peak == 0) {
      fail_as(ErrorCode::kUsage, "the learning rate of '", weight.name(),
              "' is a share of the optimizer's lr, which is 0; give --optimizer ", base_.row->name, "(lr=...)");
    }
    if (state.rate) return {spec, *state.rate / peak};
    return {spec, (has_own_rate ? own / peak : 1) * state.factor * state.by_layer};
  }

  const Model& model_;
  const std::vector<Value*>& weights_;
  const BuildOptions& options_;
  const OptimizerSpec base_;
  std::unordered_map<const Value*, State> states_;
  ParameterGroups result_;
};

}  // namespace

ParameterGroups parameter_groups(const Model& model, const std::vector<Value*>& weights, const BuildOptions& options) {
  return Grouping(model, weights, options).run();
}

}  // namespace onnx_train
