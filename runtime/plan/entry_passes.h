// From a whole model to one of its entry points as one rank plans it: the pipeline between the training passes and
// lowering. A session runs it for each plan. Functions on models that one caller owns; any thread. They throw Error.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/adapt/test_time_augmentation.h"
#include "onnx_passes/distribution/data_parallel.h"
#include "onnx_passes/distribution/pipeline_stages.h"
#include "onnx_passes/distribution/sharded_states.h"
#include "onnx_passes/distribution/tensor_parallel.h"
#include "onnx_passes/pipeline/pass_rows.h"

namespace onnx_train {

// What a session is asked for, and which part of it this rank has.
struct EntryOptions {
  EntryName entry = Entry::kStep;
  TestTimeViews views = {};              // over which kEvaluate and kPredict average
  std::vector<std::string> states = {};  // names of all states of the session

  int ranks = 1;  // that share out the batches of this entry point; with stages: pipelines
  bool sync_batch_norm = false, overlaps = false;
  // Of kAccumulate. Of kApply, kOfStep: each rank has sums of its own, which it adds up first; then `ranks` is 1.
  SumsOverRanks sums = {};
  int ranks_of_sums = 1;
  StateOwners owners = {};  // of states that one rank keeps, or one stage; `owner` is this one
  int owner = 0;
  bool gathers_weights = false;  // the owners are those of weights, too, and the entry point computes with these
  int stages = 1;                // more than 1: the entry point is cut into them
  StageOptions stage = {};       // with stages
  StateCuts cuts = {};           // of states of which each rank of a group of `parts` has a part; `part` is this one's
  int parts = 1, part = 0;
  std::map<std::string, Shape> micro_batches = {};  // with stages: the shapes of the inputs of all of them
};

// All passes, in order.
std::vector<PassRow> entry_rows(const EntryOptions& options);
// Those that the options ask for up to the cut into stages: the entry point of all stages.
std::vector<Pass> passes_before_stages(const EntryOptions& options);

// The result of `passes`, of those above, for the model `whole`, which stays as it is.
Model make_entry(const Model& whole, const EntryOptions& options, std::vector<Pass> passes,
                 const PipelineOptions& pipeline = {});

// In kPredict, weights that other entry points train are initializers; makes them inputs, as states of a plan are.
// Returns whether there are any.
bool read_states(Graph* graph, const std::vector<std::string>& states);

}  // namespace onnx_train
