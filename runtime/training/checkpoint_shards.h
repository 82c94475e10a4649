// A checkpoint that several ranks write: each writes the tensors that it has into a file of its own, and rank 0 the
// model, whose initializers name these files as ONNX's external data. Nothing is collected. The files of a step are in
// one folder beside the model, which checkpoints of the same step share:
//
//     run/last.onnx   run/best.onnx   run/step-120/rank-0.data   run/step-120/rank-1.data
//
// A folder is written under a name that is new, and removed when no model beside it refers to it any more. Functions
// throw Error that names the file; any thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/session/topology.h"
#include "runtime/training/checkpoint.h"
#include "runtime/training/checkpoint_base.h"

namespace onnx_train {

// Who writes each of stored_tensors, and where.
struct ShardLayout {
  struct Place {
    int rank;
    size_t offset, bytes;  // in the file of the rank
  };
  std::vector<std::optional<Place>> places;  // none: in the model itself
  std::vector<size_t> file_bytes;            // by rank
  std::vector<size_t> state_bytes;           // by rank: of the states that it writes, those in the model included
  size_t bytes = 0;                          // of all tensors that are written
};

// The same on every rank. `model` is a session's. A tensor that several ranks have is written by the one that has the
// least to write; the small ones of rank 0 stay in the model. Nobody writes what is in `base`, unless it is null.
ShardLayout lay_out_shards(const Model& model, const Topology& topology, const CheckpointBase* base = nullptr);

// The model that refers to the files in `folder`, a name beside it, and in `own` the tensors of rank `rank`, in the
// order of its file. `state` gives the states that this rank writes. Only rank 0 has a whole model.
ModelMessage make_shards(const Model& model, const ShardLayout& layout, int rank, const StateContents& state,
                         const TrainingPosition& position, const std::string& folder, std::vector<Tensor>* own);

// "step-120", and "step-120.1", "step-120.2", ... where others of that step are still there.
std::string shard_folder(int64_t step, uint32_t number);
std::string shard_file(int rank);  // "rank-3.data"
// Makes a new folder for a step in `folder`, and returns its number.
uint32_t make_shard_folder(const std::string& folder, int64_t step);
// Writes the tensors of a rank; returns the checksum of each.
std::vector<std::string> write_shard(const std::string& path, const std::vector<Tensor>& own);
// Throws Error unless the files of all ranks are in `path`, and are as long as the layout says.
void check_shards(const std::string& path, const ShardLayout& layout);
// The checksums of all ranks' tensors, each rank's in the order of its file, in the order of stored_tensors.
std::vector<std::string> in_order(const ShardLayout& layout, const std::vector<std::string>& of_ranks);
// Removes the folders of steps to which no model in `folder` refers. Removes nothing where the system cannot read a
// model, and leaves files of other names.
void remove_unused_shards(const std::string& folder);

}  // namespace onnx_train
