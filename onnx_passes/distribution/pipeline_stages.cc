#include "onnx_passes/distribution/pipeline_stages.h"

#include <algorithm>
#include <array>
#include <deque>
#include <optional>
#include <set>
#include <vector>

#include "onnx_passes/distribution/overlap_collectives.h"
#include "onnx_passes/distribution/stage_placement.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/inference/builder.h"
#include "onnx_passes/inference/copy_graph.h"
#include "onnx_passes/inference/inference.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/inputs.h"
#include "onnx_passes/ir/onnx.h"
#include "onnx_passes/ir/roles.h"
#include "onnx_passes/model/build_options.h"

namespace onnx_train {
namespace {

using Readers = std::map<const Value*, std::set<int>>;  // other stages, of values that are sent

Readers find_readers(const Graph& graph, const StagePlacement& place) {
  Readers readers;
  for (const Node* node = graph.first(); node; node = node->next()) {
    if (place.stage(*node) == kEveryStage) continue;
    for_each_input(*node, [&](const Value* v) {
      const int from = place.stage(*v);
      if (from == kEveryStage || from == place.stage(*node)) return;
      if (!v->producer() && place.changes(*v))
        fail("[Pipeline] ", node->label(), " reads the state '", v->name(),
             "', which batches change on another stage; train the model without --pipeline");
      readers[v].insert(place.stage(*node));
    });
  }
  return readers;
}

class Stage {
 public:
  Stage(Graph* graph, const StagePlacement& place, int stage, int stages, const std::map<std::string, Shape>& inputs,
        const StageOptions& options)
      : graph_(*graph),
        place_(place),
        stage_(stage),
        stages_(stages),
        count_(count_micro_batches(inputs)),
        has_axis_(options.shares_batches),
        awaits_sends_(options.awaits_sends),
        readers_(find_readers(*graph, place)) {
    for (Node* node = graph_.first(); node; node = node->next()) nodes_.push_back(node);
    has_backward_ = std::any_of(nodes_.begin(), nodes_.end(),
                                [&](const Node* node) { return place_.phase(*node) == Phase::kBackward; });
    for (const Phase phase : {Phase::kOnce, Phase::kForward, Phase::kBackward}) find_travels(phase);
    values_.resize(static_cast<size_t>(count_));
    for (int i = 0; i < count_; ++i) add_inputs(i, inputs);
  }

  // What is known of what stages send, of each micro-batch.
  void find_types(const Model& flat, const std::map<std::string, Shape>& inputs) {
    types_.resize(static_cast<size_t>(count_));
    std::map<std::string, Shape> before;
    for (int i = 0; i < count_; ++i) {
      std::map<std::string, Shape> own;
      for (const Value* input : data_) {
        const auto found = inputs.find(micro_batch_input(input->name(), i));
        if (found != inputs.end()) own[input->name()] = found->second;
      }
      const auto at = static_cast<size_t>(i);
      if (i > 0 && own == before) {
        types_[at] = types_[at - 1];
        continue;
      }
      Model sized = clone(flat);
      for (Value* input : sized.graph->inputs()) {
        const auto found = own.find(input->name());
        if (found != own.end()) input->set_type({input->dtype(), Dims(found->second.begin(), found->second.end())});
      }
      infer_types(sized.graph.get());
      const auto find = [&](const Value* v) {
        const Value* value = sized.graph->find(v->name());
        types_[at][v] = {value->type(), constant_of(value)};
      };
      for (const auto& [value, readers] : readers_) find(value);
      for (const Value* output : graph_.outputs()) find(output);
      before = own;
    }
  }

  void run() {
    for (const Walk& each : walks(stage_)) {
      walk(each);
      const auto due = unawaited_.find(each);
      if (due != unawaited_.end()) await(due->second);
      unawaited_.erase(each);
    }
    for (const auto& [walk, sent] : unawaited_) await(sent);
    set_outputs();
  }

 private:
  using Values = std::map<const Value*, Value*>;  // what stands for a value of the entry point

  void add_inputs(int i, const std::map<std::string, Shape>& inputs) {
    for (Value* input : std::vector<Value*>(graph_.inputs())) {
      if (i == 0 && place_.changes(*input) && !place_.is_state(*input)) data_.push_back(input);
    }
    for (Value* input : data_) {
      const std::string name = micro_batch_input(input->name(), i);
      if (inputs.count(name) == 0) continue;  // one that the entry point does not need
      values_[static_cast<size_t>(i)][input] =
          i == 0 ? input : graph_.add_input(name, of_micro_batch(input->type(), i));
    }
  }

  using Walk = std::pair<Phase, int>;  // through the nodes of a phase, for a micro-batch

  // The order in which a stage computes.
  std::vector<Walk> walks(int stage) const {
    std::vector<Walk> all = {{Phase::kOnce, 0}};
    const int ahead = has_backward_ ? std::min(stages_ - 1 - stage, count_) : 0;
    for (int i = 0; i < ahead; ++i) all.emplace_back(Phase::kForward, i);
    for (int i = ahead; i < count_; ++i) {
      all.emplace_back(Phase::kForward, i);
      all.emplace_back(Phase::kBackward, i - ahead);
    }
    for (int i = count_ - ahead; i < count_; ++i) all.emplace_back(Phase::kBackward, i);
    return all;
  }

  static constexpr int kToLater = 1, kToEarlier = 2, kToAll = 3;  // stages

  // The stages to which a node's results go in this phase; none: 0.
  int destinations(const Node& node, Phase phase) const {
    if (place_.phase(node) == phase) return phase == Phase::kForward ? kToLater : kToAll;
    // What earlier stages need of the forward pass, they need in their backward pass.
    return phase == Phase::kBackward && place_.phase(node) == Phase::kForward ? kToEarlier : 0;
  }

  // What stages may send in a phase, in the order of the nodes.
  void find_travels(Phase phase) {
    auto& travels = travels_[static_cast<size_t>(phase)];
    const auto add = [&](const Value* v, int stages) {
      if (v && readers_.count(v) > 0) travels.emplace_back(v, stages);
    };
    for (const Value* input : graph_.inputs()) add(input, phase == Phase::kOnce ? kToAll : 0);
    for (const Node* node : nodes_) {
      for (const Value* output : node->outputs()) add(output, destinations(*node, phase));
    }
  }

  struct Message {
    const Value* value;
    int i;
  };

  // What a stage sends to this one, in its order.
  std::deque<Message> messages_from(int stage) const {
    std::deque<Message> messages;
    const int direction = stage_ > stage ? kToLater : kToEarlier;
    for (const auto& [phase, i] : walks(stage)) {
      for (const auto& [v, stages] : travels_[static_cast<size_t>(phase)]) {
        if (place_.stage(*v) == stage && (stages & direction) && readers_.at(v).count(stage_) > 0 &&
            types_[static_cast<size_t>(i)].at(v).second.empty())
          messages.push_back({v, i});
      }
    }
    return messages;
  }

  // The nodes of a phase that this stage computes, with what it receives and sends in between.
  void walk(const Walk& walk) {
    const auto [phase, i] = walk;
    if (phase == Phase::kOnce) {
      for (const Value* input : std::vector<Value*>(graph_.inputs())) move(*input, walk, kToAll);
    }
    for (const Node* node : nodes_) {
      if (place_.phase(*node) == phase && place_.stage(*node) == stage_) copy(*node, i);
      const int stages = destinations(*node, phase);
      for (const Value* output : node->outputs()) {
        if (output && stages != 0) move(*output, walk, stages);
      }
    }
  }

  std::string name_of(const Value& v, int i) const {
    return place_.phase(v) == Phase::kOnce ? v.name() : micro_batch_input(v.name(), i);
  }

  // Sends a value that this stage has, or receives one that it needs, of those that go to these stages.
  void move(const Value& v, const Walk& walk, int stages) {
    const auto readers = readers_.find(&v);
    if (readers == readers_.end()) return;
    const int from = place_.stage(v), i = walk.second;
    const Tensor& contents = types_[static_cast<size_t>(i)].at(&v).second;
    for (const int to : readers->second) {
      if (!(stages & (to > from ? kToLater : kToEarlier))) continue;
      if (!contents.empty()) {  // such as a shape
        if (to == stage_) known(v, i) = Builder(&graph_).constant(contents).value();
      } else if (from == stage_) {
        send(v, walk, to);
      } else if (to == stage_) {
        receive_until(v, i);
      }
    }
  }

  void send(const Value& v, const Walk& walk, int to) {
    Builder b(&graph_);
    const std::string name = name_of(v, walk.second);
    b.set_name(concat(name, "/sent", to));
    const std::vector<Var> sent =
        call(b, "Send", awaits_sends_ ? 2 : 1, {b.var(of(v, walk.second))}, {{"to", to}, {kPlace, name}});
    if (awaits_sends_) unawaited_[arrived(walk, to)].push_back(sent);
  }

  // Messages from one stage to another arrive in the order in which they are sent. One that this stage reads later than
  // others that are sent after it is received before those.
  void receive_until(const Value& v, int i) {
    if (known(v, i)) return;
    const int from = place_.stage(v);
    auto& messages = messages_[from];
    if (!messages) messages = messages_from(from);
    for (bool is_last = false; !is_last; messages->pop_front()) {
      if (messages->empty()) fail("[Pipeline] stage ", from, " does not send '", v.name(), "' to stage ", stage_);
      const Message& next = messages->front();
      receive(*next.value, next.i);
      is_last = next.value == &v && next.i == i;
    }
  }

  void receive(const Value& v, int i) {
    const TensorType& type = types_[static_cast<size_t>(i)].at(&v).first;
    if (!type.is_static())
      fail("[Pipeline] the shape of '", v.name(), "', ", to_string(type),
           ", which stages send, is not known before it is computed; train the model without --pipeline");
    Builder b(&graph_);
    b.set_name(name_of(v, i));
    known(v, i) = call(b, "Receive", {b.scalar(type.dtype, 0), b.ints(type.shape())},
                       {{"from", place_.stage(v)}, {kPlace, name_of(v, i)}})
                      .value();
  }

  // The walk of this stage at whose end what it has sent in another one has been received for sure.
  //
  // Give F(i) of stage s the time 2 (i - (stages - 1 - s)) - 1, B(i) on all stages the time 2 i, and order the nodes of
  // one time as in the entry point. A stage computes in the order of times, and receives nothing that is sent later
  // than it is received; so nobody waits for ever where each message is awaited at a later time than it is received:
  // what is sent in F(i) at the end of B(i), and what is sent in B(i) at the end of a forward walk at 2 i + 1 or later.
  // Without backward passes the times of F(i) are i.
  Walk arrived(const Walk& walk, int to) const {
    const auto [phase, i] = walk;
    if (phase == Phase::kBackward) return {Phase::kForward, i + stages_ - (stage_ + std::min(stage_, to)) / 2};
    if (phase == Phase::kForward && !has_backward_) return {Phase::kForward, i + 1};
    return {has_backward_ ? Phase::kBackward : Phase::kForward, i};
  }

  void await(const std::vector<std::vector<Var>>& all) {
    for (const std::vector<Var>& sent : all) {
      Builder b(&graph_);
      b.set_name(sent[0].value()->name() + "/arrived");
      call(b, "Await", sent);
    }
  }

  Value*& known(const Value& v, int i) {
    return place_.phase(v) == Phase::kOnce ? once_[&v] : values_[static_cast<size_t>(i)][&v];
  }

  // What stands for the value in micro-batch i: what every rank computes is computed where it is first read.
  Value* of(const Value& v, int i) {
    if (v.is_initializer() && !graph_.is_input(&v)) return const_cast<Value*>(&v);
    if (const Value* next = place_.next(v); next && i > 0) return of(*next, i - 1);
    Value* const found = known(v, i);
    if (found) return found;
    if (v.producer() && place_.stage(v) == kEveryStage) {
      copy(*v.producer(), i);
      return known(v, i);
    }
    if (!v.producer()) return const_cast<Value*>(&v);
    fail("[Pipeline] stage ", stage_, " does not have '", v.name(), "'");
  }

  void copy(const Node& node, int i) {
    const int at = place_.phase(node) == Phase::kOnce ? 0 : i;
    GraphCopy made(&graph_, nullptr, at == 0 ? "stage/" : concat("batch", at, "/"));
    for_each_input(node, [&](const Value* v) {
      if (&v->graph() == &graph_) made.map(v, of(*v, at));
    });
    Node* const result = made.node(node);
    for (int k = 0; k < node.num_outputs(); ++k) {
      if (node.output(k)) {
        known(*node.output(k), at) = result->output(k);
        result->output(k)->set_type(of_micro_batch(node.output(k)->type(), at));
        result->output(k)->set_elements({});
      }
    }
  }

  // Micro-batches may have different sizes.
  static TensorType of_micro_batch(TensorType type, int i) {
    if (i == 0 || !type.dims) return type;
    for (Dim& dim : *type.dims) {
      if (!dim.known() && !dim.symbol().empty()) dim = Dim(micro_batch_input(dim.symbol(), i));
    }
    return type;
  }

  void set_outputs() {
    struct Output {
      std::string name;
      std::optional<ValueRole> role;
      Value* value;
    };
    std::vector<Output> made;
    Builder b(&graph_);
    for (Value* output : graph_.outputs()) {
      const auto role = output->role() ? std::optional(*output->role()) : std::nullopt;
      const bool is_next = output->has_role(roles::kNext);
      const Value* state = is_next ? graph_.find(output->role()->of) : nullptr;
      if (state && place_.stage(*state) != kEveryStage && place_.stage(*state) != stage_) continue;
      if (is_next || output->has_role(roles::kLossScale)) {
        Value* last = of(*output, count_ - 1);
        if (!last->producer()) last = b.op("Identity", {b.var(last)}).value();
        made.push_back({output->name(), role, last});
        continue;
      }
      const int from = place_.stage(*output);
      std::vector<Var> rows;
      for (int i = 0; i < count_ && (from == kEveryStage || from == stage_); ++i)
        rows.push_back(has_axis_ ? b.var(of(*output, i)) : unsqueeze(b.var(of(*output, i)), {0}));
      b.set_name(output->name() + "/batches");
      Var all = rows.empty() ? like(&b, *output) : concat(rows, int64_t{0});
      if (from != kEveryStage) all = call(b, "Broadcast", {all}, {{"root", from}, {kPlace, output->name()}});
      made.push_back({output->name(), role, all.value()});
    }
    graph_.set_outputs({});
    for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) graph_.remove(*node);
    std::vector<Value*> outputs;
    for (const Output& output : made) {
      graph_.claim_name(output.value, output.name);
      if (output.role) output.value->set_role(*output.role);
      outputs.push_back(output.value);
    }
    graph_.set_outputs(std::move(outputs));
    for (Value* input : std::vector<Value*>(graph_.inputs())) {
      if (place_.stage(*input) != kEveryStage && place_.stage(*input) != stage_) graph_.remove_input(input);
    }
  }

  // Zeros in the shape of the outputs that another stage has.
  Var like(Builder* b, const Value& output) const {
    const TensorType& type = types_[0].at(&output).first;
    if (!type.is_static())
      fail("[Pipeline] the shape of the output '", output.name(), "', ", to_string(type), ", is not known");
    std::vector<int64_t> sizes = type.shape();
    if (has_axis_) {
      sizes[0] *= count_;
    } else {
      sizes.insert(sizes.begin(), count_);
    }
    return expand(b->scalar(type.dtype, 0), b->ints(sizes));
  }

  Graph& graph_;
  const StagePlacement& place_;
  int stage_, stages_, count_;
  bool has_axis_;  // outputs, of ranks
  bool awaits_sends_;
  const Readers readers_;
  bool has_backward_ = false;
  std::vector<Node*> nodes_;  // of the entry point
  std::vector<Value*> data_;  // inputs that each micro-batch has
  // The types of values, and their contents where these follow from the shapes; by micro-batch.
  std::vector<std::map<const Value*, std::pair<TensorType, Tensor>>> types_;
  // Values that are sent, with the stages to which they go; by phase.
  std::array<std::vector<std::pair<const Value*, int>>, 3> travels_;
  std::map<int, std::optional<std::deque<Message>>> messages_;  // not yet received, by stage
  std::map<Walk, std::vector<std::vector<Var>>> unawaited_;     // outputs of Send
  Values once_;
  std::vector<Values> values_;  // by micro-batch
};

}  // namespace

std::string micro_batch_input(const std::string& input, int i) {
  return i == 0 ? input : concat(input, "/micro_batch", i);
}

int count_micro_batches(const std::map<std::string, Shape>& inputs) {
  int count = 1;
  for (const auto& [name, shape] : inputs) {
    while (inputs.count(micro_batch_input(name, count)) > 0) ++count;
  }
  return count;
}

std::map<std::string, Shape> micro_batch_shapes(const std::map<std::string, Shape>& first, int count) {
  std::map<std::string, Shape> all = first;
  for (int i = 1; i < count; ++i) {
    for (const auto& [name, shape] : first) all[micro_batch_input(name, i)] = shape;
  }
  return all;
}

std::set<std::pair<int, int>> stages_that_send(const Model& flat, const StateOwners& owners,
                                               const std::vector<std::string>& states) {
  const StagePlacement placement(*flat.graph, owners, {states.begin(), states.end()});
  std::set<std::pair<int, int>> pairs;
  for (const auto& [value, readers] : find_readers(*flat.graph, placement)) {
    for (const int reader : readers) pairs.emplace(placement.stage(*value), reader);
  }
  return pairs;
}

void make_stage(Model* flat, const StateOwners& owners, const std::vector<std::string>& states, int stage, int stages,
                const std::map<std::string, Shape>& inputs, const StageOptions& options) {
  infer_types(flat->graph.get());  // a model that was a file knows the types of its inputs alone
  const StagePlacement placement(*flat->graph, owners, {states.begin(), states.end()}, inputs);
  Stage made(flat->graph.get(), placement, stage, stages, inputs, options);
  made.find_types(*flat, inputs);
  made.run();
}

}  // namespace onnx_train
