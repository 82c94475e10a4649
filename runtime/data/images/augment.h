// How pictures are changed at random while a network is trained. Each step draws from a stream of its own, whose key is
// (seed, epoch, sample, position of the step): what a sample looks like in an epoch depends on nothing else. A picture
// and its mask are moved alike. Plain values; any thread.
//
//   random_resized_crop        of 8% to 100% of the area, 3/4 to 4/3 as wide as high; in the place of resize and crop.
//                              (S) says the size again; scale=(a, b), ratio=(c, d)
//   random_crop                the crop of --preprocess at a random place
//   pad_crop(N)                N black pixels at each side, and a crop of the size before
//   flip, vflip                with probability 1/2, or (P)
//   rotate(D)                  by -D to D degrees
//   jitter(B), (B, C, S, H)    brightness, contrast, saturation by factors of 1 - B to 1 + B; the hue by -H to H turns
//   erase(P)                   with probability P, 2% to 33% of the area is 0 in the network's input
//   mixup(A), cutmix(A)        with another sample of the data, by a part from Beta(A, A); both: one of them each time
//   randaugment(N, M)          N of 14 changes, of strength M of 30
//
// Sources: torchvision 0.21, transforms (RandomResizedCrop, ColorJitter, RandomErasing, RandAugment, MixUp, CutMix).
#pragma once

#include <string>
#include <vector>

#include "runtime/data/dataset.h"
#include "runtime/data/images/picture.h"
#include "runtime/data/random.h"
#include "runtime/data/steps.h"

namespace onnx_train {

class Augment {
 public:
  Augment() = default;
  // What `--augment` takes; "" and "none" are nothing. Throws Error that names the column.
  explicit Augment(const std::string& text);

  bool empty() const { return steps_.empty(); }
  const Step* find(const std::string& name) const { return find_step(steps_, name); }
  bool mixes() const { return find("mixup") || find("cutmix"); }
  // Whether pictures are decoded anew for each epoch, in the place of resize and crop.
  bool crops_original() const { return find("random_resized_crop") != nullptr; }

  // A random part of a picture, to be resized to the size of the network's input.
  Box original_crop(const Picture& picture, const AugmentKey& key, int64_t sample) const;
  // Where random_crop puts the crop of --preprocess: fractions of the space above and to the left.
  std::pair<double, double> crop_position(const AugmentKey& key, int64_t sample) const;
  // All other steps that change pixels, in their order. Of a mask, those that move them.
  void change(Picture* picture, bool is_mask, const AugmentKey& key, int64_t sample) const;
  // The part that is 0 in the network's input; empty boxes have no height.
  Box erased(int height, int width, const AugmentKey& key, int64_t sample) const;

  // How a sample is mixed with another one.
  struct Mix {
    int64_t partner;
    double part;  // of the sample itself, 0 to 1; of its pixels with a box
    Box box;      // where the other's pixels are; no height: all pixels are weighted means
  };
  Mix mix(int64_t samples, int height, int width, const AugmentKey& key, int64_t sample) const;

 private:
  SplitMix64 stream(const Step& step, const AugmentKey& key, int64_t sample) const;

  std::vector<Step> steps_;
};

}  // namespace onnx_train
