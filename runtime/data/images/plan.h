// How pictures enter an input of a model: the steps, the size and the layout that they end in. Plain values; any
// thread.
#pragma once

#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/images/augment.h"
#include "runtime/data/images/picture.h"

namespace onnx_train {

struct PicturePlan {
  std::vector<Step> geometry;  // resize and crop, in their order
  size_t fixed = 0;            // of them do not depend on chance: they are done once
  int height = 0, width = 0, channels = 0;
  bool is_hwc = false, has_channel_axis = true, is_grey = false, is_bgr = false;
  bool is_bytes = false;   // the model takes uint8
  bool is_double = false;  // or float64
  Rescaling values;
  Augment augment;

  Shape row() const;
  int64_t size() const { return int64_t{height} * width * channels; }

  // The first `fixed` steps or, from there on, the others; those that are random by `key`, which may be null.
  Picture prepared(Picture picture, bool is_mask) const;
  Picture finished(const Picture& prepared, bool is_mask, const AugmentKey* key, int64_t sample) const;
  // To the network's input: floats, doubles or bytes. What is erased becomes 0.
  void write(const Picture& picture, const Box& erased, void* to) const;
};

// Plans for `spec` by the steps that `preprocess` has for it. `are_files`: their sizes differ, so that they are brought
// to the size of the input and to 0 to 1, if no steps say how; `preprocess` then gets the steps that are done, and
// `notes` say them. Throws Error if the input takes no pictures, or if no size is known.
PicturePlan picture_plan(const InputSpec& spec, bool are_files, const Augment& augment, Preprocess* preprocess,
                         std::vector<std::string>* notes);

}  // namespace onnx_train
