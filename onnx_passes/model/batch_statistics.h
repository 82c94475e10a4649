// Batch normalization that uses the statistics of its batch in inference, too. ONNX has one attribute, training_mode,
// for two things: a layer that was exported while it trained, and a normalization that has no running statistics at
// all, as exporters write instance normalization, group normalization and track_running_stats=False. Importing tells
// them apart, once; functions on a model that one caller owns; they throw nothing of
// their own.
#pragma once

#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

struct Finding;  // analysis.h

// Whether a Reshape before the batch normalization moves the batch into the channels, [N, C, ...] -> [1, N C, ...]: its
// statistics are then those of single samples. Types must be inferred.
bool normalizes_samples(const Node& batch_norm);

// Gives nodes with training_mode=1 the outputs for new running statistics that ONNX demands of them, if these are
// absent. Returns the nodes.
Marks<Node> add_statistics_outputs(Graph* graph);

// Replaces each BatchNormalization with training_mode=1 that has no running statistics: by an InstanceNormalization if
// it normalizes samples, else by the function BatchNormalizationTrain. It has none if
//
//   the model computes its mean or variance; or
//   it normalizes samples; or
//   its mean is 0 and its variance is 1 everywhere, nothing reads the new ones, and it had no outputs for them
//   (`silent`), or its scale or bias differs between channels (it was trained, and its statistics were not), or the
//   Reshape before it changes nothing (it normalizes the samples of a batch of one).
//
// All others are layers that were exported in training mode, and stay. Adds what was decided to `findings`, if given.
void replace_batch_statistics(Model* model, const Marks<Node>& silent, std::vector<Finding>* findings);

}  // namespace onnx_train
