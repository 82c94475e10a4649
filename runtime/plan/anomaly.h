// Finds where numbers stop being finite (--detect-anomaly): looks at all that each node of a run writes and, if the
// loss or the norm of the gradients is NaN or infinite in the end, names the first node that it comes from. NaN and
// infinity that end on the way, such as those of a mask before a softmax, are none of it. An executable of a device
// that uses host memory owns it and calls it from its thread.
#pragma once

#include <string>
#include <vector>

#include "kernels/kernel.h"
#include "onnx_passes/ir/tables.h"

namespace onnx_train {

class AnomalyDetector {
 public:
  // `scales_loss`: the norm of the gradients may be infinite, since such updates are skipped.
  explicit AnomalyDetector(bool scales_loss) : scales_loss_(scales_loss) {}

  // After the node of each step, in their order, at the addresses that it has read and written.
  void after(const Node& node, const Launch& launch);
  // After the last one: throws Error that names the node, the first element that is not finite, and the ranges of what
  // the node has read.
  void finish() const;

 private:
  struct Finding {
    const Node* node;
    std::vector<size_t> sources;  // findings whose values the node has read
    std::string what;             // of a node without sources: what it wrote and read
  };

  std::vector<Finding> findings_;  // nodes that wrote a number that is not finite
  ValueTable<size_t> finding_of_;  // of such a value
  size_t result_ = SIZE_MAX;       // the finding of the loss or of the gradients' norm
  std::string result_text_;        // "the loss is NaN"
  const bool scales_loss_;
};

}  // namespace onnx_train
