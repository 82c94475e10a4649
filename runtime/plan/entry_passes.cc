#include "runtime/plan/entry_passes.h"

#include <algorithm>
#include <memory>
#include <unordered_set>
#include <utility>

#include "kernels/collectives.h"
#include "onnx_passes/distribution/bucket_collectives.h"
#include "onnx_passes/distribution/data_parallel.h"
#include "onnx_passes/distribution/gathered_weights.h"
#include "onnx_passes/distribution/order_collectives.h"
#include "onnx_passes/distribution/overlap_collectives.h"
#include "onnx_passes/distribution/tensor_states.h"
#include "onnx_passes/functions/functions.h"
#include "onnx_passes/passes.h"
#include "onnx_passes/training/body_draws.h"

namespace onnx_train {
namespace {

constexpr const char *kFlatten = "flatten", *kMakeStage = "make_stage";

using Options = std::shared_ptr<const EntryOptions>;

// Whether the entry point computes the mean over views.
bool averages(const EntryOptions& o) {
  return !o.views.empty() && (o.entry == Entry::kPredict || o.entry == Entry::kEvaluate);
}

// Collectives of an entry point that is cut into stages, or whose tensors are cut, are between groups of ranks.
void name_data_axis(Graph* graph) {
  for (Node* node = graph->first(); node; node = node->next()) {
    if (is_collective(*node)) node->set_attr(kMeshAxis, kDataAxis);
  }
}

// A pass of a function that does not say whether it changes the model.
template <typename F>
Pass changing(const char* name, F run) {
  return {name, [run](Model& model) {
            run(model);
            return true;
          }};
}

// The passes of the entry point as one rank, or one stage, has it.
std::vector<PassRow> rank_rows(const Options& o) {
  const bool staged = o->stages > 1, shared = !staged && o->ranks > 1, shards = !staged && !o->owners.empty();
  const bool sums_once = staged && o->ranks > 1 && o->sums.sums == GradientSums::kOfStep;
  const auto distribute = [o, staged, sums_once](Model& m) {
    distribute_over_ranks(&m, o->ranks, o->sync_batch_norm && !staged,
                          sums_once ? SumsOverRanks{GradientSums::kOwn} : o->sums);
  };
  const auto sum = [o](Model& m) {
    sum_once(&m, o->ranks, o->sums);
    for (Node* node = m.graph->first(); node; node = node->next()) {
      if (node->is("AllReduce", kDomain)) node->set_attr(kMeshAxis, kDataAxis);
    }
  };
  const bool sums_first = o->ranks_of_sums > 1, has_parts = o->parts > 1;
  const auto cut = [o](Model& m) {
    make_stage(&m, o->owners, o->states, o->owner, o->stages, o->micro_batches, o->stage);
  };
  const auto bucket = [axis = staged || has_parts ? kDataAxis : ""](Model& m) { bucket_collectives(&m, axis); };
  const auto split = [o](Model& m) {
    // Their contents are the session's, and the parts of some have other types than the initializers.
    const std::unordered_set<std::string> states(o->states.begin(), o->states.end());
    make_inputs_of_states(m.graph.get(), [&](const std::string& name) { return states.contains(name); });
    split_tensors(&m, o->cuts, o->parts, o->part);
  };
  constexpr const char *kRanks = "several processes", *kStages = "--pipeline of several processes",
                       *kParts = "--tensor-parallel of several processes";
  return {
      {changing("distribute_over_ranks", distribute),
       "computes on one batch of a round, and adds up those of all ranks", o->ranks > 1, kRanks},
      {changing("sum_before_apply", [o](Model& m) { sum_before_apply(&m, o->ranks_of_sums, o->sums); }),
       "adds up the sums of all ranks", sums_first, "--reduction fast of several processes"},
      {changing("sum_early", [](Model& m) { sum_early(&m); }), "moves sums over ranks to where their terms are known",
       shared && o->overlaps, kRanks},
      {changing("gather_weights", [o](Model& m) { gather_weights(&m, o->owners, o->owner); }),
       "receives weights of other ranks before they are read", o->gathers_weights, "--zero 3 of several processes"},
      {changing("shard_states", [o](Model& m) { shard_states(&m, o->owners, o->owner); }),
       "computes with states where they are kept", shards, "--zero of several processes"},
      {changing("name_data_axis", [](Model& m) { name_data_axis(m.graph.get()); }),
       "says that sums are over pipelines, or groups with parts of tensors", staged || has_parts,
       "--pipeline or --tensor-parallel of several processes"},
      {changing(kMakeStage, cut), "keeps one stage, for all micro-batches", staged, kStages},
      {changing("sum_once", sum), "adds up the sums of all pipelines", sums_once,
       "--reduction fast of several pipelines"},
      {changing("split_tensors", split), "computes products with this rank's parts of weights, and adds up terms",
       has_parts, kParts},
      {changing("bucket_collectives", bucket), "exchanges small tensors together",
       shared || shards || sums_first || (staged && o->ranks > 1), kRanks},
      {changing("drop_states_of_others", [o](Model& m) { drop_states_of_others(&m, o->owners, o->owner); }),
       "leaves out the states of other ranks", shards, "--zero of several processes"},
      {changing("overlap_collectives", [o](Model& m) { overlap_collectives(&m, o->gathers_weights); }),
       "starts exchanges before their results are read", (shared || shards || sums_first || has_parts) && o->overlaps,
       kRanks},
      {changing("order_collectives", [](Model& m) { order_collectives(&m); }), "keeps exchanges in one order",
       staged || shared || shards || sums_first || has_parts, kRanks},
  };
}

}  // namespace

bool read_states(Graph* graph, const std::vector<std::string>& states) {
  const std::unordered_set<std::string> names(states.begin(), states.end());
  bool changed = false;
  for (Value* value : std::vector<Value*>(graph->initializers())) {
    if (!names.contains(value->name()) || graph->is_input(value)) continue;
    graph->add_input(value->name(), value->type());
    changed = true;
  }
  return changed;
}

std::vector<PassRow> entry_rows(const EntryOptions& options) {
  const auto o = std::make_shared<const EntryOptions>(options);
  const auto average = [o](Model& model) { average_over_views(&model, o->views, o->entry); };
  const auto flat = [o](Model& model) { model = flatten(model, o->entry); };
  const auto draw = [](Model& model) { return draw_from_input(model.graph.get()); };
  const auto read = [o](Model& model) { return read_states(model.graph.get(), o->states); };
  std::vector<PassRow> rows = {
      {changing("average_over_views", average), "makes outputs means over views of pictures", averages(*o),
       "--tta of eval and predict"},
      {changing(kFlatten, flat), "makes one graph of the network and what an entry point adds"},
      {{"draw_from_input", draw}, "makes ONNX's random operators draw from an input"}};
  for (PassRow& row : rank_rows(o)) rows.push_back(std::move(row));
  rows.push_back({{"read_states", read},
                  "makes inputs of the weights that a session keeps",
                  !o->states.empty(),
                  "the states of a session"});
  return rows;
}

std::vector<Pass> passes_before_stages(const EntryOptions& options) {
  std::vector<Pass> passes = wanted_passes(entry_rows(options));
  passes.erase(std::ranges::find(passes, kMakeStage, &Pass::name), passes.end());
  return passes;
}

Model make_entry(const Model& whole, const EntryOptions& options, std::vector<Pass> passes,
                 const PipelineOptions& pipeline) {
  Model model;
  if (averages(options) || pipeline.shows_input()) {
    model = clone(whole);
  } else {  // flatten is the first pass, and reads the model as it is: nobody needs a copy
    passes.at(0).run = [&](Model& flat) {
      flat = flatten(whole, options.entry);
      return true;
    };
  }
  run_pipeline(passes, &model, pipeline);
  return model;
}

}  // namespace onnx_train
