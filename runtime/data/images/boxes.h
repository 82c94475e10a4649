// The boxes of pictures as rows of a dataset: float[M, 5] for each sample, with a row (class, left, top, right, bottom)
// for each box, in pixels of the network's input. Rows that no box has are (-1, 0, 0, 0, 0). Boxes go where the pixels
// of their picture go. Plain values; any thread.
#pragma once

#include <optional>

#include "runtime/data/dataset.h"
#include "runtime/data/images/files.h"
#include "runtime/data/images/picture.h"

namespace onnx_train {

constexpr int64_t kBoxNumbers = 5;

// The box around what `box`, of the original, becomes in `picture`, as far as it is inside. None where less than a
// tenth of that area is left, or less than a pixel in height or width.
std::optional<LabelledBox> placed_box(const LabelledBox& box, const Picture& picture);

// The target of a loss that takes boxes: the first that is float[batch, M, 5]; null if there is none.
const InputSpec* box_target(const std::vector<InputSpec>& inputs);

// The rows that each sample has: as many as `target` takes or, where it leaves that open, as the sample with most has.
// Throws Error for a sample with more than it takes.
int64_t box_rows(const PictureFiles& files, const InputSpec& target);

}  // namespace onnx_train
