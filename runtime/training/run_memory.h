// What the data of a training take of the host's memory, in bytes. Pure functions; any thread.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "runtime/data/dataset.h"

namespace onnx_train {

// What memory is for, in bytes; the last row is the total.
using MemoryRows = std::vector<std::pair<std::string, double>>;

// The shapes of a batch of `samples` rows of `data`, by input.
std::map<std::string, Shape> batch_shapes(const Dataset& data, int64_t samples);

// One batch of `samples` rows, and those that are gathered ahead of it.
double bytes_of_batches(const Dataset& data, int64_t samples);

// What the first steps, evaluations and checkpoints of a run add on a host to its plans and arrays, in bytes: generated
// code, stacks of threads, and for each node of the main graph what a plan takes while it is made, and a checkpoint's
// message. Nothing counts this before: measured, and rounded up.
double bytes_of_first_steps(const Model& model);

// The data that is in memory anyway, and the parts of it that come when batches read them: mapped pages, which the
// system can drop again, and decoded pictures that are kept.
struct DataBytes {
  double all = 0, mapped = 0, made = 0;

  void add(const Dataset& data);
};

}  // namespace onnx_train
