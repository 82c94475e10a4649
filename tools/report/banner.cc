#include "tools/report/banner.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "kernels/host.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/io/mapped_file.h"
#include "onnx_passes/ir/error.h"
#include "onnx_passes/ir/first_few.h"
#include "onnx_passes/ir/initializer.h"
#include "onnx_passes/ir/roles.h"
#include "platform/memory.h"
#include "runtime/models/build_notes.h"
#include "runtime/plan/plan_report.h"
#include "runtime/support/report_text.h"
#include "runtime/training/run_memory.h"
#include "tools/report/output.h"
#include "tools/report/parameter_table.h"

namespace onnx_train {
namespace {

constexpr size_t kShownNotes = 6;  // of those that `build` prints in full

std::string dims(const Shape& shape) {
  std::string text;
  for (int64_t size : shape) text += concat(text.empty() ? "" : " x ", size);
  return text.empty() ? "scalar" : text;
}

// The names of each weight's slots: "exp_avg, exp_avg_sq".
std::unordered_map<std::string, std::string> slots_of_weights(const StateStore& state) {
  std::unordered_map<std::string, std::string> slots;
  for (size_t i = 0; i < state.names().size(); ++i) {
    const ValueRole* role = state.role(i);
    if (!role || role->of.empty()) continue;
    std::string& names = slots[role->of];
    names += concat(names.empty() ? "" : ", ", role->name);
  }
  return slots;
}

// The nodes by which the optimizer updates weights.
std::unordered_map<std::string, const Node*> optimizer_nodes(const Model& model) {
  std::unordered_map<std::string, const Node*> nodes;
  for (const EntryPoint& entry : model.entry_points) {
    for (const Binding& binding : entry.update_bindings) {
      const Node* update = binding.next->producer();
      const bool is_raw = binding.state->has_role(roles::kRaw);  // what is trained for a weight that is an average
      const std::string& weight = is_raw ? binding.state->role()->of : binding.state->name();
      if (update && update->has_attr("weight_decay")) nodes.emplace(weight, update);
    }
  }
  return nodes;
}

// The weights, then how many elements of them are trained.
std::string parameters_text(const Model& model, const StateStore& state) {
  auto slots = slots_of_weights(state);
  const auto updates = optimizer_nodes(model);
  std::vector<ParameterRow> parameters;
  double trained = 0;
  for (size_t i = 0; i < state.names().size(); ++i) {
    const std::string& name = state.names()[i];
    if (state.role(i)) continue;
    const auto found = updates.find(name);
    const Node* update = found == updates.end() ? nullptr : found->second;
    const auto count = static_cast<double>(num_elements(state.shape(i)));
    if (update) trained += count;
    const Tensor decay = update ? update->attr_tensor("weight_decay") : Tensor();
    parameters.push_back({name, dims(state.shape(i)), count, onnx_train::name(state.dtype(i)),
                          decay.empty() || decay.at(0) == 0 ? "" : format_number(decay.at(0)),
                          update ? slots[name] : "running statistic"});
  }
  return concat(parameter_table(parameters, table_width()), "  trained: ", format_count(trained), " elements\n");
}

double bytes_of_ports(const std::vector<Port>& ports) {
  double total = 0;
  for (const Port& port : ports) total += static_cast<double>(port.bytes);
  return total;
}

// Constants of the plan that are read in mapped files: their bytes, and how many of them may be resident by now, since
// kernels have been timed on them.
struct MappedConstants {
  double bytes = 0, resident = 0;
};

MappedConstants mapped_constants(const Plan& plan) {
  MappedConstants mapped;
  std::set<const void*> addresses;
  for (const Value* constant : plan.model().graph->initializers()) {
    const Tensor* beside = contents_beside(constant->shared_initializer());
    if (!beside || beside->is_stored_in_fewer_bits() || !is_mapped(beside->data(), beside->bytes())) continue;
    mapped.bytes += static_cast<double>(beside->bytes());
    addresses.insert(beside->data<char>());
  }
  if (!addresses.empty()) mapped.resident = std::min(mapped.bytes, platform::resident_memory_around(addresses));
  return mapped;
}

// The peak of the process, from its start to the end of the training, as the system counts it (VmHWM): what it has been
// so far, while it loaded and planned, or what is resident now and all that the steps add. Pages of mapped files count.
MemoryRows memory_rows(const Session& session, const Plan& plan, const StateStore& state, const DataBytes& data,
                       double batch, const Trainer& trainer) {
  double weights = 0, moments = 0, offloaded = 0;
  for (size_t i = 0; i < state.names().size(); ++i) {
    if (!state.keeps(i)) continue;
    double& row = state.memory(i) == StateMemory::kHost ? offloaded : state.role(i) ? moments : weights;
    row += static_cast<double>(state.kept_bytes(i));
  }
  const auto arena = static_cast<double>(session.arena_bytes()), constants = static_cast<double>(plan.constant_bytes());
  const auto copy = static_cast<double>(trainer.checkpoint_bytes());
  const double passing = batch + bytes_of_ports(plan.outputs());
  const MappedConstants mapped = mapped_constants(plan);
  const double to_come = passing + copy + mapped.bytes - mapped.resident + data.mapped + data.made;
  // An estimate, of which the bound for --memory-limit is twice as much.
  const double first_steps = session.device().uses_host_memory() ? bytes_of_first_steps(session.model()) / 2 : 0;
  const double total = std::max(platform::peak_memory(), platform::resident_memory() + to_come + first_steps);
  const double named = weights + moments + offloaded + arena + constants + passing + copy + data.all;
  MemoryRows rows = {{"weights and statistics", weights}, {"moments and other state", moments}};
  if (offloaded > 0) rows.emplace_back("states in the host's memory", offloaded);
  rows.insert(rows.end(), {{"gradients and activations", arena},
                           {"frozen weights and constants", constants},
                           {data.made > 0 ? "batches, also those ahead" : "one batch and its outputs", passing}});
  if (copy > 0) rows.emplace_back("the state, while it is saved", copy);
  rows.emplace_back("data", data.all);
  rows.emplace_back("program, graph and loading", std::max(0.0, total - named));
  rows.emplace_back("total", total);
  return rows;
}

// What --offload costs a step. A table that is updated row by row is left out: a step reads the rows of a batch.
std::string offload_text(Session* session) {
  const StateStore& state = session->state();
  const auto updates = optimizer_nodes(session->model());
  double offloaded = 0, streamed = 0;
  for (size_t i = 0; i < state.names().size(); ++i) {
    if (state.memory(i) != StateMemory::kHost) continue;
    const auto bytes = static_cast<double>(state.kept_bytes(i));
    offloaded += bytes;
    const auto update = updates.find(state.role(i)->of);
    if (update == updates.end() || !update->second->is("SparseAdam", kDomain)) streamed += bytes;
  }
  if (offloaded == 0) return "the optimizer has no states to move to the host's memory";
  const std::string text = concat(format_bytes(offloaded), " of the optimizer's states in the host's memory");
  if (streamed == 0) return text;
  double bandwidth = 0;
  try {
    bandwidth = session->device().measure_host_bandwidth();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kMemory) throw;
    return text;  // the plan leaves no room for the copy
  }
  return concat(text, "; a step reads and writes ", streamed < offloaded ? format_bytes(streamed) + " of them" : "them",
                " there, at least ", format_number(1e3 * streamed / bandwidth), " ms at the ",
                format_number(1e-9 * bandwidth), " GB/s of a copy to ", session->device().name());
}

std::string memory_table(const MemoryRows& rows) {
  TextTable table("lr");
  for (const auto& [what, bytes] : rows) table.add({what, format_bytes(bytes)});
  return table.text(2, text_width());
}

// What the processes of a training do together.
std::string ranks_text(const Topology& topology, int64_t accumulate) {
  const std::string batches = concat(accumulate, accumulate == 1 ? " batch" : " batches", " of a step");
  const std::string transport = topology.collectives()->transport() == "MPI" ? ", over MPI" : "";
  const std::string processes = concat(topology.ranks(), " processes");
  const TopologyOptions& o = topology.options();
  const std::string sums = !o.sums_once || topology.groups() == 1 ? ""
                           : o.sums_in_bf16                       ? ", and add up gradients in bf16 once a step"
                                                                  : ", and add up gradients once a step";
  if (topology.is_pipeline()) {
    const std::string pipelines = topology.groups() > 1 ? concat("of ", topology.groups(), " pipelines ") : "";
    return concat(processes, ", stages ", pipelines, "through which the ", batches, " go", sums, transport);
  }
  if (topology.is_tensor_parallel()) {
    const TensorShares& shares = topology.tensor_shares();
    const bool shares_states = topology.options().sharding != Sharding::kNone;
    const std::string groups = topology.groups() > 1
                                   ? concat(" in ", topology.groups(), " groups that share out the ", batches,
                                            shares_states ? " and the states of the optimizer" : "")
                                   : "";
    const std::string whole =
        shares.whole.empty() ? "" : concat("; all have '", shares.whole, "' whole: ", shares.reason);
    return concat(processes, groups, ", ", topology.options().tensor, " compute together ", describe(shares), sums,
                  transport, whole);
  }
  return concat(processes, " share out the ", batches,
                topology.options().sharding == Sharding::kWeights ? ", the weights and the states of the optimizer"
                : topology.shards_states()                        ? ", and the states of the optimizer"
                                                                  : "",
                sums, transport);
}

std::string limits(const Trainer& trainer) {
  const TrainerOptions& o = trainer.options();
  std::string text;
  const int64_t epoch = trainer.steps_per_epoch();  // 0 of a stream
  if (o.epochs > 0) text += concat(o.epochs, " epochs", epoch > 0 ? concat(" of ", epoch, " steps, ") : ", ");
  if (trainer.total_steps() > 0) text += concat(trainer.total_steps(), " steps, ");
  if (o.time_limit > 0) text += concat("at most ", format_duration(o.time_limit), ", ");
  text += concat("batches of ", o.batch_size);
  if (o.eval_every > 0) text += concat(", evaluated every ", o.eval_every, " steps");
  if (o.accumulate > 1) text += concat(" x ", o.accumulate);
  return text + (o.shuffle ? concat(", shuffled by seed ", o.seed) : ", in order");
}

std::string rate(const Schedule& s) {
  const std::string curve = to_string(s.curve);
  const std::string text = s.curve.file.empty() ? concat(format_number(s.peak), ", ", curve) : curve;
  return s.warmup > 0 ? concat(text, ", after ", s.warmup, " steps of warm-up") : text;
}

// The shapes of the inputs of a run of the trainer, of one batch or of the micro-batches of a pipeline.
std::map<std::string, Shape> shapes_of_run(const Session& session, const Dataset& data, int64_t batch,
                                           const Trainer& trainer) {
  return micro_batch_shapes(batch_shapes(data, batch), session.topology().micro_batches(trainer.options().accumulate));
}

// Batch normalization refuses a batch of one sample, and the last one of an epoch may be that: an error before the
// first step, not after an epoch.
void check_last_batch(Session* session, const Dataset& training, const Trainer& trainer) {
  const int64_t samples = training.num_samples(), batch = trainer.options().batch_size;
  if (trainer.steps_per_epoch() == 0) return;  // of a stream
  const bool is_reached = trainer.total_steps() == 0 || trainer.total_steps() >= trainer.steps_per_epoch();
  const bool drops = training.fixed_batch() > 0 || trainer.options().samples.drop_last;
  if (drops || samples <= batch || samples % batch != 1 || !is_reached) return;
  try {
    session->plan(training_entry(*session), shapes_of_run(*session, training, 1, trainer));
  } catch (const Error& error) {
    throw Error(concat("the last of ", samples, " samples is a batch of its own, with --batch-size ", batch, ": ",
                       error.what()),
                error.code());
  }
}

}  // namespace

std::string training_banner(Session* session, const Dataset& training, const Dataset* evaluation,
                            const Trainer& trainer, MemoryRows* memory) {
  const TrainerOptions& options = trainer.options();
  const int64_t batch = std::min(options.batch_size, training.num_samples());
  check_last_batch(session, training, trainer);
  const Plan& plan = session->plan(training_entry(*session), shapes_of_run(*session, training, batch, trainer));
  const StateStore& state = session->state();
  const Model& model = session->model();
  const auto known = [](const std::string& text) { return text.empty() ? std::string("?") : text; };
  DataBytes data_bytes;
  data_bytes.add(training);
  if (evaluation) {
    const int64_t evaluated = std::min(options.batch_size, evaluation->num_samples());
    session->plan(Entry::kEvaluate, shapes_of_run(*session, *evaluation, evaluated, trainer));
    data_bytes.add(*evaluation);
  }
  *memory = memory_rows(*session, plan, state, data_bytes, bytes_of_batches(training, batch), trainer);
  TextTable head("lw");
  head.add({"loss", known(model.metadata("onnx_train.loss"))});
  head.add({"optimizer", known(model.metadata("onnx_train.optimizer"))});
  head.add({"mode", known(model.metadata("onnx_train.mode"))});
  const std::string precision = model.metadata("onnx_train.precision");  // older files do not say
  head.add({"precision", precision.empty() ? "float32" : precision});
  std::string data = concat(training.num_samples(), " samples");
  if (evaluation) data += concat(", ", evaluation->num_samples(), " for evaluation");
  head.add({"data", data});
  if (const std::vector<std::string> classes = training.class_names(); !classes.empty()) {
    constexpr size_t kShown = 10;
    const auto same = [](const std::string& name) { return name; };
    head.add({"classes", concat(classes.size(), ": ", first_few(classes, kShown, same))});
  }
  for (const auto& [name, shape] : batch_shapes(training, batch)) {
    head.add({"", concat(name, "  ", onnx_train::name(training.find(name)->dtype), to_string(shape))});
  }
  head.add({"training", limits(trainer)});
  head.add({"learning rate", rate(options.schedule)});
  if (options.clip_norm) head.add({"clip", concat("gradient norm at ", format_number(*options.clip_norm))});
  const bool is_host = session->device().uses_host_memory();  // which computes as without these
  const Arithmetic& arithmetic = session->arithmetic();
  head.add({"device", concat(session->device().name(), ", ", num_threads(), " threads",
                             arithmetic.tf32 && !is_host ? ", products of float32 in TF32" : "",
                             arithmetic.deterministic || is_host ? "" : ", not deterministic: sums in any order")});
  if (const Choices::Timed timed = session->choices().timed(); timed.nodes > 0) {
    const std::string left =
        timed.cut_short > 0 ? concat(", ", timed.cut_short, " of them not in all ways: ONNX_TRAIN_TIMED_CHOICES") : "";
    head.add({"kernels", concat("the fastest for ", timed.nodes, timed.nodes == 1 ? " node" : " nodes", ", timed for ",
                                format_number(timed.seconds), " s", left, "; later runs have the same")});
  }
  if (session->options().offload != Offload::kNone) head.add({"offload", offload_text(session)});
  if (session->topology().ranks() > 1) head.add({"ranks", ranks_text(session->topology(), options.accumulate)});
  if (!training.preprocess().empty()) head.add({"preprocess", training.preprocess().text()});
  if (!training.augment.empty()) head.add({"augment", training.augment});
  return concat(head.text(2, text_width()), "\n", parameters_text(model, state), "\n", memory_table(*memory),
                notes_text(recorded_notes(model), text_width(), kShownNotes), "\n",
                recomputation_text(plan, session->memory_budget(), text_width()));
}

}  // namespace onnx_train
