// Means of several batches: every mean is a sum over a count. Plain values; any thread. LossReader is made for one
// entry point of a session and must not outlive it.
#pragma once

#include <string>
#include <vector>

#include "runtime/session/session.h"

namespace onnx_train {

// A mean as a sum and what it is over.
struct Mean {
  double sum = 0, count = 0;

  // Adds the mean of a batch in which `n` counts.
  void add(double mean, double n) {
    sum += n == 0 ? 0 : mean * n;
    count += n;
  }
  // Not a number where nothing counts.
  double value() const { return sum / count; }
};

// The loss of some batches: the sum of its parts, which have counts of their own (onnx_passes/ir/roles.h); mostly one.
class LossMean {
 public:
  // A part is the mean of its batches, or their sum for a loss that sums.
  struct Part {
    Mean mean;
    bool sums = false;
    double value() const { return sums ? mean.sum : mean.value(); }
  };

  std::vector<Part> parts;

  void add(const LossMean& batch);
  // Whether anything counts.
  bool counts() const;
  // The sum of the parts in which something counts; not a number if there is none.
  double value() const;
};

// The loss of the steps since an evaluation, by part: over all that counts in them. A part that sums over the batch
// counts once a step, so that its mean is that of the steps.
class RunningLoss {
 public:
  std::vector<Mean> parts;

  void add(const LossMean& step);
  bool counts() const;
  double value() const;  // not a number if nothing counts
};

// Reads loss and accuracy from the outputs of an entry point.
class LossReader {
 public:
  LossReader(const Session& session, const EntryName& entry);

  // Adds a batch. `samples` is what counts in it where the model does not say so.
  void add(const TensorMap& outputs, int64_t samples, LossMean* loss, Mean* accuracy) const;
  bool has_loss() const { return !loss_.empty(); }
  bool has_accuracy() const { return !accuracy_.value.empty(); }
  // Whether the model says what its means are over. One of another program, or of an earlier version, does not.
  bool knows_counts() const { return knows_counts_; }
  // Whether an output is a mean or a count that `add` reads.
  bool reads(const std::string& output) const;

 private:
  struct Output {
    std::string value, count;  // names; count is "" where the samples count
    bool sums = false;
  };
  void add(const Output& output, const TensorMap& outputs, int64_t samples, Mean* mean) const;

  std::string loss_;
  std::vector<Output> parts_;
  Output accuracy_;
  std::vector<std::string> names_;
  bool knows_counts_ = true;
};

// What rank `rank` has computed, of the outputs of a run that ranks share (Session); of one rank alone, all of them.
TensorMap of_rank(const Session& session, const TensorMap& outputs, size_t rank);

// "mean", "sum" or "last": how the output of this role combines over batches, where the model says so; else "mean".
std::string kind_of_output(const Model& model, const std::string& role);

}  // namespace onnx_train
