#include "runtime/plan/placement.h"

#include <algorithm>
#include <map>

#include "kernels/lowering/layout/views.h"
#include "kernels/lowering/memory/lifetimes.h"
#include "kernels/lowering/support/lowering.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"

namespace onnx_train {

namespace {

class Placer {
 public:
  Placer(const Graph& graph, const std::vector<PlanStep>& steps, const std::vector<Prepared>& prepared,
         std::vector<StatePort>& states, size_t piece_alignment, const LoweringOptions& options)
      : graph_(graph),
        steps_(steps),
        prepared_(prepared),
        states_(states),
        views_(options.takes(kViews) ? Views(graph, piece_alignment) : Views()),
        write_in_place_(options.takes(kWriteInPlace)),
        update_in_place_(options.takes(kUpdateInPlace)) {}

  Placement run() {
    result_.skipped.resize(steps_.size());
    result_.workspace_of.assign(steps_.size(), kNoBuffer);
    end_ = static_cast<int>(steps_.size());
    for (int s = 0; s < end_; ++s) {
      const PlanStep& step = steps_[static_cast<size_t>(s)];
      const auto& outputs = step.node->outputs();
      const bool gives_loss =
          std::any_of(outputs.begin(), outputs.end(), [](const Value* v) { return v && v->has_role(roles::kLoss); });
      if (gives_loss || step.kernel->input_check != InputCheck::kNone) may_fail_ = true;
      if (gives_loss || (step.kernel->input_check == InputCheck::kChecks && !repeats_check(s))) last_check_ = s;
    }
    for (size_t s = 0; s < steps_.size(); ++s) result_.skipped[s] = views_.is_done(*steps_[s].node);
    find_last_uses();
    place_borders();
    for (int s = 0; s < end_; ++s) place_step(s);
    place_outputs();
    make_ranges();
    return std::move(result_);
  }

 private:
  // Returns the value that owns the memory of `value`.
  const Value* root(const Value* value) const { return views_.place(value).memory; }

  // Finds the last step that reads the memory of each root; `end_` for values that must survive the run.
  void find_last_uses() {
    for (int s = 0; s < end_; ++s) {
      if (result_.skipped[static_cast<size_t>(s)]) continue;
      for (const Value* input : steps_[static_cast<size_t>(s)].node->inputs()) {
        if (input) last_use_[root(input)] = s;
      }
    }
    for (const Value* output : graph_.outputs()) last_use_[root(output)] = end_;
  }

  size_t add_buffer(Buffer::Kind kind, size_t index, size_t bytes, const Value* constant = nullptr) {
    result_.buffers.push_back({kind, index, bytes, constant});
    life_.push_back({0, 0});
    writer_.push_back(-1);
    buffer_last_.push_back(-1);
    names_.emplace_back();
    return result_.buffers.size() - 1;
  }

  // Whether an earlier step makes the same check, as the original of a recomputed node does: it has the same
  // attributes, the same integer inputs, and float inputs of the same shape, which indices do not depend on.
  bool repeats_check(int step) const {
    const Node& node = *steps_[static_cast<size_t>(step)].node;
    const auto same_input = [](const Value* a, const Value* b) {
      return a == b || (a && b && is_float(a->dtype()) && a->type() == b->type());
    };
    const auto same_attribute = [](const onnx::AttributeProto& a, const onnx::AttributeProto& b) {
      return a.SerializeAsString() == b.SerializeAsString();
    };
    return std::any_of(steps_.begin(), steps_.begin() + step, [&](const PlanStep& earlier) {
      return earlier.kernel == steps_[static_cast<size_t>(step)].kernel &&
             std::ranges::equal(node.inputs(), earlier.node->inputs(), same_input) &&
             std::ranges::equal(node.shell().attribute(), earlier.node->shell().attribute(), same_attribute);
    });
  }

  void place_borders() {
    for (size_t i = 0; i < states_.size(); ++i) state_index_[states_[i].name] = i;
    state_buffers_.assign(states_.size(), kNoBuffer);
    size_t inputs = 0;
    for (const Value* input : graph_.inputs()) {
      const auto state = state_index_.find(input->name());
      const size_t buffer = state == state_index_.end() ? add_buffer(Buffer::kInput, inputs++, bytes_of(*input))
                                                        : state_buffer(state->second, bytes_of(*input));
      locate(input, buffer);
    }
    for (const Value* constant : graph_.initializers()) {
      if (result_.location_of.contains(constant)) continue;
      locate(constant, add_buffer(Buffer::kConstant, 0, bytes_of(*constant), constant));
    }
    // Collects the preferred destinations of outputs and next states.
    size_t outputs = 0;
    for (const Value* output : graph_.outputs()) {
      const bool is_next = output->has_role(roles::kNext);
      const auto state = is_next ? state_index_.find(output->role()->of) : state_index_.end();
      targets_.push_back(state == state_index_.end() ? Target{output, Buffer::kOutput, outputs++}
                                                     : Target{output, Buffer::kState, state->second});
    }
    for (size_t t = 0; t < targets_.size(); ++t) target_of_.try_emplace(root(targets_[t].value), t);
  }

  // Records that the value's memory is in `buffer`.
  void locate(const Value* value, size_t buffer) {
    const ViewPlace place = views_.place(value);
    buffer_of_.try_emplace(place.memory, buffer);
    result_.location_of[value] = {buffer, place.offset};
  }

  void place_step(int s) {
    const auto step = static_cast<size_t>(s);
    const Node& node = *steps_[step].node;
    if (result_.skipped[step]) {
      for (const Value* output : node.outputs()) locate(output, buffer_of_.at(root(output)));
      return;
    }
    for (const Value* input : node.inputs()) {
      if (input) touch(buffer_of(input), s);
    }
    const std::vector<std::vector<const Value*>> over = overwritable(step);
    for (int o = 0; o < node.num_outputs(); ++o) {
      const Value* output = node.output(o);
      if (!output) continue;
      const Value* memory = root(output);
      const size_t* known = buffer_of_.find(memory);
      const size_t buffer = known              ? *known
                            : memory == output ? choose(output, over[static_cast<size_t>(o)], s)
                                               : new_buffer(memory, s);
      locate(output, buffer);
      touch(buffer, s);
      writer_[buffer] = s;
      if (names_[buffer].empty()) names_[buffer] = memory->name();
    }
    if (prepared_[step].workspace > 0) {
      const size_t buffer = add_buffer(Buffer::kArena, 0, prepared_[step].workspace);
      life_[buffer] = {s, s};
      names_[buffer] = "workspace of " + steps_[step].node->label();
      result_.workspace_of[step] = buffer;
    }
  }

  size_t buffer_of(const Value* value) const { return result_.location_of.at(value).buffer; }

  // Returns for each output the inputs that the kernel may overwrite, without those whose memory it also reads through
  // another input.
  std::vector<std::vector<const Value*>> overwritable(size_t step) const {
    const Node& node = *steps_[step].node;
    std::vector<std::vector<const Value*>> over(node.outputs().size());
    if (prepared_[step].in_place.empty()) return over;
    std::unordered_map<const Value*, const Value*> read;  // memory -> the only input in it; null: several
    for (const Value* input : node.inputs()) {
      if (!input) continue;
      const auto [known, added] = read.try_emplace(root(input), input);
      if (!added && known->second != input) known->second = nullptr;
    }
    for (const InPlace& pair : prepared_[step].in_place) {
      const Value* input = node.output(pair.output) ? node.input(pair.input) : nullptr;
      if (input && read.at(root(input))) over[static_cast<size_t>(pair.output)].push_back(input);
    }
    return over;
  }

  // Chooses the buffer for an output: that of an input that is not read afterwards, that of its target, or a new one.
  size_t choose(const Value* output, const std::vector<const Value*>& inputs, int s) {
    const size_t bytes = bytes_of(*output);
    const size_t* target = target_of_.find(output);
    for (const Value* input : inputs) {
      const size_t buffer = buffer_of(input);
      const Buffer& b = result_.buffers[buffer];
      if (bytes_of(*input) != bytes || b.bytes != bytes || last_use(buffer, input) != s || taken(buffer, s)) continue;
      if (b.kind == Buffer::kArena && write_in_place_ && !writes_output(target)) {
        extend(buffer, output);
        return buffer;
      }
      const bool own_state = b.kind == Buffer::kState && target && targets_[*target].kind == Buffer::kState &&
                             targets_[*target].index == b.index;
      if (own_state && update_in_place_ && s > last_check_) {
        states_[b.index].in_place = true;
        targets_[*target].done = true;
        extend(buffer, output);
        return buffer;
      }
    }
    return new_buffer(output, s);
  }

  // Whether the value may be written directly to its target: an output, or a state that the plan does not read in a
  // plan whose nodes cannot fail (initialization).
  bool writes_output(const size_t* target) const {
    if (!target) return false;
    const Target& t = targets_[*target];
    return t.kind == Buffer::kOutput || (state_buffers_[t.index] == kNoBuffer && !may_fail_);
  }

  // Returns a new buffer for a value: that of its target, or one in the arena.
  size_t new_buffer(const Value* memory, int s) {
    const size_t* target = target_of_.find(memory);
    size_t buffer = 0;
    if (writes_output(target)) {
      Target& t = targets_[*target];
      const size_t bytes = bytes_of(*memory);
      buffer = t.kind == Buffer::kState ? state_buffer(t.index, bytes) : add_buffer(t.kind, t.index, bytes);
      t.done = true;
    } else {
      buffer = add_buffer(Buffer::kArena, 0, bytes_of(*memory));
      life_[buffer] = {s, s};
    }
    extend(buffer, memory);
    return buffer;
  }

  // Whether another output of the same step already uses the buffer.
  bool taken(size_t buffer, int s) const { return writer_[buffer] == s; }

  int last_use(size_t buffer, const Value* value) const {
    const int* own = last_use_.find(root(value));
    return std::max(own ? *own : -1, buffer_last_[buffer]);
  }

  void extend(size_t buffer, const Value* output) {
    const int* last = last_use_.find(output);
    if (last) buffer_last_[buffer] = std::max(buffer_last_[buffer], *last);
  }

  void touch(size_t buffer, int s) { life_[buffer].second = std::max(life_[buffer].second, s); }

  // Copies values that could not be written to their destination at the end: first outputs, which may be old values of
  // states, then states. A next value that is the old value of another state is copied to the arena before any state is
  // written.
  void place_outputs() {
    std::vector<Copy> states;
    for (Target& target : targets_) {
      const size_t from = buffer_of(target.value);
      touch(from, end_);
      if (target.done) continue;
      const size_t bytes = bytes_of(*target.value);
      if (target.kind == Buffer::kOutput) {
        result_.copies.push_back({from, add_buffer(target.kind, target.index, bytes), bytes});
        continue;
      }
      const size_t to = state_buffer(target.index, bytes);
      if (from == to) continue;
      states.push_back({result_.buffers[from].kind == Buffer::kState ? copied_to_arena(from, bytes) : from, to, bytes});
    }
    for (const auto& [from, staged] : staged_) result_.copies.push_back({from, staged, result_.buffers[from].bytes});
    result_.copies.insert(result_.copies.end(), states.begin(), states.end());
  }

  // Returns the buffer of a state; creates it for a state that the plan writes but never reads.
  size_t state_buffer(size_t state, size_t bytes) {
    size_t& buffer = state_buffers_[state];
    if (buffer == kNoBuffer) buffer = add_buffer(Buffer::kState, state, bytes);
    return buffer;
  }

  size_t copied_to_arena(size_t state, size_t bytes) {
    const auto [known, added] = staged_.try_emplace(state, 0);
    if (added) {
      known->second = add_buffer(Buffer::kArena, 0, bytes);
      life_[known->second] = {end_, end_};
      names_[known->second] = "the old value of " + states_[result_.buffers[state].index].name;
    }
    return known->second;
  }

  void make_ranges() {
    for (size_t b = 0; b < result_.buffers.size(); ++b) {
      Buffer& buffer = result_.buffers[b];
      if (buffer.kind != Buffer::kArena) continue;
      buffer.index = result_.ranges.size();
      result_.ranges.push_back({buffer.bytes, life_[b].first, life_[b].second});
      result_.range_names.push_back(names_[b]);
    }
  }

  struct Target {
    const Value* value;
    Buffer::Kind kind;  // kOutput or kState
    size_t index;
    bool done = false;
  };

  const Graph& graph_;
  const std::vector<PlanStep>& steps_;
  const std::vector<Prepared>& prepared_;
  std::vector<StatePort>& states_;
  const Views views_;
  const bool write_in_place_, update_in_place_;
  bool may_fail_ = false;  // whether a node may report a fault
  int last_check_ = -1;    // last step that may report a fault, including a loss that is not finite
  int end_ = 0;
  Placement result_;
  ValueTable<size_t> buffer_of_;  // by root
  ValueTable<int> last_use_;      // by root
  std::unordered_map<std::string, size_t> state_index_;
  std::vector<size_t> state_buffers_;  // by state; kNoBuffer if none
  std::vector<Target> targets_;
  ValueTable<size_t> target_of_;  // by root
  std::vector<std::pair<int, int>> life_;
  std::vector<int> writer_;       // last step that writes the buffer
  std::vector<int> buffer_last_;  // last use of the values in the buffer; -1: none
  std::vector<std::string> names_;
  std::map<size_t, size_t> staged_;  // buffers of states -> copies of them
};

}  // namespace

Placement place_values(const Graph& graph, const std::vector<PlanStep>& steps, const std::vector<Prepared>& prepared,
                       std::vector<StatePort>& states, size_t piece_alignment, const LoweringOptions& options) {
  return Placer(graph, steps, prepared, states, piece_alignment, options).run();
}

}  // namespace onnx_train
