// Test-time augmentation: the outputs of a network become the means of its outputs for several views of its pictures,
// such as the picture and its mirror image. The views are nodes of the graph, so that any runtime computes them. Plain
// values and a pass on a model that one caller owns; one thread. Functions throw Error.
#pragma once

#include <cstdint>
#include <string>

#include "onnx_passes/ir/model.h"

namespace onnx_train {

// Each doubles the views but `shift`, which adds two to each.
struct TestTimeViews {
  bool flip = false, vflip = false;  // left and right, top and bottom change places
  int64_t shift = 0;  // pixels: up and left, down and right; what comes from outside is the picture reflected

  bool empty() const { return !flip && !vflip && shift == 0; }
};

// "flip, vflip, shift(1)", each at most once; none for "". Throws Error that names the column.
TestTimeViews parse_views(const std::string& text);
std::vector<std::string> view_names();

// Appends a copy of the network for each view of its pictures: all float inputs [N,C,H,W] or [N,H,W,C] with 1 or 3
// channels; where both ends have that, channels come first. What `entry` reads of the network ("predict": its outputs)
// becomes the mean over all views. That must be floats [batch] or [batch, classes]: pixels would have to be moved back.
// Other entry points of the model must not be used any more. Throws Error that names the input or the output.
void average_over_views(Model* model, const TestTimeViews& views, const EntryName& entry);

}  // namespace onnx_train
