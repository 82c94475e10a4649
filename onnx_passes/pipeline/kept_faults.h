// A pass that fails by a bug of ours (PassFault) leaves a file that shows it again: the model before the pass, which
// `onnx-train opt` runs alone. No model is copied for that while all goes well: passes are deterministic, so the work
// is done once more, up to that pass. Any thread.
#pragma once

#include <functional>

#include "onnx_passes/model/pass.h"

namespace onnx_train {

// The fault with the name of the file in its message, after `work` has run again with `pipeline` and a file for the
// model before the pass. The file is in a folder of its own, which only the user can read, in the system's temporary
// folder. There is none where the model takes more than kMostKept bytes, where the work does not come to the pass
// again, and where files cannot be written: the message says nothing of a file then.
PassFault keep_fault(const PassFault& fault, PipelineOptions pipeline,
                     const std::function<void(const PipelineOptions&)>& work);

inline constexpr size_t kMostKept = size_t{1} << 30;  // of a model's initializers

// work(pipeline). If that ends in a fault, and leaves no dumps, it runs twice: keep_fault.
template <typename Work>
auto keeping_faults(const PipelineOptions& pipeline, const Work& work) {
  try {
    return work(pipeline);
  } catch (const PassFault& fault) {
    if (fault.is_kept() || !pipeline.dump_dir.empty()) throw;
    throw keep_fault(fault, pipeline, [&](const PipelineOptions& again) { (void)work(again); });
  }
}

}  // namespace onnx_train
