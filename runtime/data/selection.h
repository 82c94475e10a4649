// Which samples of a dataset a training reads: options that are lists of rows (Dataset::select), and orders of an
// epoch. All depend on the arguments alone, on every platform. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/data/data_options.h"
#include "runtime/data/dataset.h"

namespace onnx_train {

// Whether a part of the data is for evaluation.
inline bool splits(const SampleOptions& options) { return options.val_split > 0 || options.folds > 0; }

// Throws UsageError for options that do not go together. `has_evaluation`: there are data for evaluation already.
void check_samples(const SampleOptions& options, bool has_evaluation);

// The samples for training and, where the options split the data, those for evaluation: disjoint, in ascending order.
// What is skipped comes first, then a limit, then the split, then what --overfit-batches leaves. `fixed_batch` is the
// batch size that the model prescribes, of which evaluation takes whole ones; 0 for none. Throws Error if a part would
// be empty.
struct SampleRows {
  std::vector<int64_t> training, evaluation;
};
SampleRows select_samples(int64_t samples, const SampleOptions& options, uint64_t seed, int64_t batch_size,
                          int64_t fixed_batch);

// Samples that an epoch has a fixed share of.
struct SampleGroup {
  std::vector<int64_t> samples;
  double weight = 1;  // the share, relative to the other groups
};
// By their class, each of weight 1: what --class-balance draws from. Throws Error if the data have no classes.
std::vector<SampleGroup> groups_by_class(const Dataset& data);
// By the parts of the data. Throws Error if a part has no sample among those of `data`, or a share of none.
std::vector<SampleGroup> groups_by_part(const Dataset& data);
// How many samples of each group an epoch has: as many in all as there are samples, in proportion to the weights,
// rounded so that the largest remainders go up.
std::vector<int64_t> shares_of(const std::vector<SampleGroup>& groups);
// The epoch's order: the share of each group, mixed at random. A group goes through its samples in a random order, on
// from where the epoch before ended, and then through another one, so that all its samples come equally often.
std::vector<int64_t> grouped_order(const std::vector<SampleGroup>& groups, uint64_t seed, int64_t epoch);

// --group-by-length: the same samples so that those of a batch have about as many tokens, Dataset::filled. Windows of
// up to 50 batches of `order` are sorted, and their batches come in a random order; a short one stays last.
std::vector<int64_t> length_order(const Dataset& data, std::vector<int64_t> order, int64_t batch, uint64_t seed,
                                  int64_t epoch);

}  // namespace onnx_train
