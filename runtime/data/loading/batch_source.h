// What a training reads: epochs of batches. A source makes its batches itself, so their number may be unknown until an
// epoch ends and the last one may be smaller. DatasetBatches cuts them from samples; a program's own iterator is
// another source (library/program_data.cc). The caller owns a source and uses it from one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/data_options.h"
#include "runtime/data/dataset.h"
#include "runtime/data/gather_ahead.h"
#include "runtime/data/selection.h"
#include "runtime/distribution/rounds.h"

namespace onnx_train {

class BatchSource {
 public:
  virtual ~BatchSource() = default;

  // Samples and batches of one epoch; 0: not known before its end.
  virtual int64_t samples_per_epoch() const { return 0; }
  virtual int64_t batches_per_epoch() const { return 0; }
  // Starts epoch `epoch`, counted from 0, after its first `skip` samples.
  virtual void start(int64_t epoch, int64_t skip) = 0;
  // The same where `place` says more of where these samples end: what `place` has given there. "": it does not.
  virtual void start_at(int64_t epoch, int64_t skip, const std::string& /*place*/) { start(epoch, skip); }
  // For checkpoints: where the samples that it has given in this epoch end, if it need not read them again to find
  // that.
  virtual std::string place() const { return ""; }
  // What a user should know of how it has started; "" if nothing.
  virtual std::string note() const { return ""; }
  // Fills `batch` by input name and returns its number of samples; 0 at the end of the epoch. Tensors are valid until
  // the next call.
  virtual int64_t next(TensorMap* batch) = 0;

  // Makes the source that of one rank: `next` gives the batches of this rank alone. Throws Error where it cannot.
  virtual void share_out(const Rounds& rounds);
  // `next` in a round of the ranks' batches: the number of samples in the batch of each; none at the end. Where a rank
  // runs all of them, `batch` has the inputs of each (micro_batch_input).
  virtual std::vector<int64_t> next_round(TensorMap* batch);

  // Names `count` samples of the current epoch, from its sample `first` on, for the message of a failure.
  virtual std::string describe(int64_t first, int64_t count) const;
  // Describes the first value among them that the model cannot use; "" if none is known.
  virtual std::string fault(int64_t /*first*/, int64_t /*count*/) const { return ""; }
  // As checkpoints record it: a training is resumed only with data of the same identity.
  virtual std::string identity() const { return "batches of the program"; }
  virtual std::string scale() const { return "1"; }  // what it multiplies its data by, as `--scale` takes it
  // The steps that it does to its data, and the changes at random, as `--preprocess` and `--augment` take them.
  virtual std::string preprocess() const { return "none"; }
  virtual std::string augment() const { return "none"; }
};

// The batches of a dataset.
class DatasetBatches : public BatchSource {
 public:
  // For training: in the order of sample_order or, with class_balance or parts of the data, of grouped_order. An
  // incomplete batch is left out if the model prescribes the batch size, and with drop_last. Throws Error when the
  // batch size does not fit the data or the model. `data` and `model` must outlive the source.
  DatasetBatches(const Dataset* data, const Model& model, const EntryName& entry, int64_t batch_size, uint64_t seed,
                 bool shuffle, const SampleOptions& options = {});
  // For evaluation: all samples in their order, `batch_size` at a time unless the model prescribes another one; start()
  // throws Error if that leaves an incomplete batch.
  DatasetBatches(const Dataset* data, const Model& model, int64_t batch_size);

  int64_t samples_per_epoch() const override { return samples_; }
  int64_t batches_per_epoch() const override;
  // In evaluation a step is a round.
  void share_out(const Rounds& rounds) override { rounds_ = rounds; }
  // `skip` is where a step begins.
  void start(int64_t epoch, int64_t skip) override;
  int64_t next(TensorMap* batch) override;
  std::vector<int64_t> next_round(TensorMap* batch) override;
  std::string describe(int64_t first, int64_t count) const override;
  std::string fault(int64_t first, int64_t count) const override;
  std::string identity() const override;
  std::string scale() const override { return data_.preprocess().option(); }
  std::string preprocess() const override;
  std::string augment() const override { return data_.augment.empty() ? "none" : data_.augment; }

 private:
  const Dataset& data_;
  const Model& model_;
  EntryName entry_;
  int64_t batch_size_, samples_;
  Rounds rounds_;
  int64_t given_ = 0, batch_of_step_ = 0;  // samples of the epoch and batches of the step that ranks have been given
  uint64_t seed_ = 0;
  bool shuffle_ = false, augments_ = false, groups_by_length_ = false;
  std::vector<SampleGroup> groups_;  // that an epoch has shares of; none: each sample once
  std::vector<int64_t> order_;
  int64_t order_epoch_ = -1;  // the epoch of `order_`
  GatherAhead batches_;
};

}  // namespace onnx_train
