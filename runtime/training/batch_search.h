// The largest batch that fits, from plans: nothing is allocated and no step is tried. Plans are made for a few sizes,
// each chosen by a straight line through the last two, since arenas grow almost linearly with the batch.
#pragma once

#include <optional>
#include <string>

#include "runtime/data/dataset.h"
#include "runtime/session/session.h"

namespace onnx_train {

struct BatchSearch {
  const Dataset& training;
  const Dataset* evaluation = nullptr;  // evaluated in batches of the same size; may be null
  size_t limit = 0;      // bytes: of the process on a device that uses host memory, else of the session on the device;
                         // 0: what is available now, but for a thirty-second part
  bool copies = false;   // whether the host holds a copy of the state while it is saved
  int processes = 1;     // that share what is available, this one among them
  int64_t per_step = 1;  // batches of a step, over all ranks
};

struct FoundBatch {
  int64_t batch;          // samples, at least 1
  double planned, limit;  // bytes with this batch, and those that there are
  int plans = 0;          // made to find it
  std::string bound;      // what keeps it from being larger: "the memory", "the 360 samples of the data", "the model"
};

// The largest batch whose planned bytes are within the limit, or one that is smaller by at most a sixty-fourth part; at
// most the samples of the data. Where the model prescribes the batch, that one. Never leaves a last batch of one
// sample, which batch normalization refuses. On the host the bytes are those that are resident now, with the arena,
// the batches, the outputs and the copy of the state to come; pages of mapped files that are yet to be read do not
// count, for the system can drop them. On other devices they are the memory that the plans take there. Throws Error of
// the code kMemory if not even one sample fits, and what planning throws.
FoundBatch find_largest_batch(Session* session, const BatchSearch& search);

// "batches of 118, the largest that fit: 1.98 GB planned of 2.00 GB (5 plans)"
std::string to_text(const FoundBatch& found);

}  // namespace onnx_train
