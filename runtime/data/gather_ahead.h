// Gathers the batches of a dataset in the order in which they are asked for. Rows that are made (RowReader) take longer
// than a step: the batches to come are gathered by threads while the step runs, each batch by one of them. What a batch
// holds does not depend on that. The caller owns it, uses it from one thread, and keeps the dataset alive.
#pragma once

#include <deque>
#include <functional>
#include <future>
#include <optional>
#include <vector>

#include "runtime/data/dataset.h"

namespace onnx_train {

class GatherAhead {
 public:
  // Gives the rows of the next batch; none at the end.
  using NextRows = std::function<std::vector<int64_t>()>;

  // `shortens`: batches of texts are as long as their longest, rounded up to a sixteenth of a sample, so that a session
  // plans for 16 lengths at most.
  explicit GatherAhead(const Dataset* data, bool shortens = false);

  // Begins a sequence of batches; forgets the one before.
  void start(NextRows rows, std::optional<AugmentKey> key);
  // Fills `batch` and returns its number of rows; 0 at the end. Throws Error of a row that cannot be made. Tensors are
  // valid until the next call.
  int64_t next(TensorMap* batch);

  // Batches that are in memory beside the one in use.
  static int64_t batches_ahead(const Dataset& data);

 private:
  struct Batch {
    int64_t samples;
    TensorMap tensors;
  };
  void order_next();
  static void gather(const Dataset& data, const std::vector<int64_t>& rows, bool shortens, const AugmentKey* key,
                     TensorMap* batch);

  const Dataset& data_;
  const bool shortens_;
  NextRows rows_;
  std::optional<AugmentKey> key_;
  bool at_end_ = true;
  std::deque<std::future<Batch>> ordered_;  // waits for its threads when it is destroyed
};

}  // namespace onnx_train
