// What is done to data before a network reads them, by input: "scale(1/255)". It belongs to a model, not to a run:
// training models, checkpoints and exported models keep it as metadata (onnx_train.preprocess: a JSON object from input
// to steps), so that training, evaluation and prediction do the same. It is no part of any graph: entry points take
// what the network reads. Plain values; any thread.
//
// Steps are calls, separated by commas, which apply from left to right:
//
//   scale(X), scale(X/Y)         multiplies, whether the data are stored as integers or as floats
//   normalize(imagenet), normalize(mean=(a, b, c), std=(d, e, f))
//                                (x - mean) / std for each channel; scale(1/255) comes before it unless a scale is
//                                written
//   resize(S), resize(H, W)      pictures: the shorter side, or both; bilinear, or bicubic, nearest as last argument
//   letterbox(S), letterbox(H, W)  pictures: as large as fits, in the middle of grey; filters as those of resize
//   crop(S), crop(H, W)          pictures: the middle; center_crop is the same
//   grey, rgb, bgr, hwc, chw     pictures: the channels, and where they stand (where the model's input leaves it open)
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/tensor.h"
#include "runtime/data/data_options.h"
#include "runtime/data/steps.h"

namespace onnx_train {

struct InputSpec;
class Dataset;

// x scale + shift: one of each for all elements, or one for each channel.
struct Rescaling {
  std::vector<double> scale = {1}, shift = {0};

  bool is_identity() const { return *this == Rescaling{}; }
  bool operator==(const Rescaling&) const = default;
};

class Preprocess {
 public:
  Preprocess() = default;
  // That of a model's metadata. Throws Error for a step that is not known here.
  explicit Preprocess(const Model& model);
  // The scales that `--scale` takes: X for the network's float input, if it has one alone; INPUT=X for each that is
  // named. Throws UsageError for an input that is none, is a target, or takes no floats.
  Preprocess(const std::vector<std::string>& scales, const std::vector<InputSpec>& inputs);
  // What `--preprocess` takes: STEPS for the network's float input, or INPUT: STEPS; INPUT: STEPS.
  static Preprocess of_steps(const std::string& text, const std::vector<InputSpec>& inputs);

  bool empty() const { return inputs_.empty(); }
  const std::vector<Step>& steps(const std::string& input) const;  // none if there are none
  void set_steps(const std::string& input, std::vector<Step> steps) { inputs_[input] = std::move(steps); }
  Rescaling rescaling(const std::string& input) const;  // what its scales and normalizations do together
  // What its data are multiplied by. Throws UsageError if other steps are done to them.
  double scale(const std::string& input) const;
  std::string text() const;          // "image: scale(1/255)"; "nothing"
  std::string option() const;        // as `--scale` takes it: "image=1/255"; "1" if there are none, or other steps
  std::string steps_option() const;  // as `--preprocess` takes it; "" if option() says all
  std::string json() const;          // as metadata; "" when empty
  bool same(const Preprocess& other) const;  // but for how a number is written

 private:
  bool only_scales() const;

  std::map<std::string, std::vector<Step>> inputs_;
};

// The steps of --preprocess, and whether one of them is for pictures alone.
std::vector<std::string> preprocess_step_names();
std::vector<Step> read_preprocess_steps(const std::string& option, const std::string& text);
bool is_picture_step(const Step& step);

// Throws Error unless `text` is X, X/Y or INPUT=X: what `--scale` takes.
void check_scale(const std::string& text);

// The model's own preprocessing or, if it is given, that of `options`. `note` says which of the two is used where they
// differ, else it is "". Throws UsageError if both --scale and --preprocess are given.
Preprocess preprocess_of(const Model& model, const DataOptions& options, const std::vector<InputSpec>& inputs,
                         std::string* note);

// Transforms the elements of a float or double tensor whose rows, or itself, have the shape `row`: its first axis are
// the channels or, if that has another size, its last one. Throws Error that names `input` if neither has.
void apply_rescaling(const std::string& input, const Rescaling& affine, const Shape& row, Tensor* tensor);

// The same for a batch that a program made: replaces the tensors of inputs that are preprocessed, which may have any
// element type. Throws UsageError for one that is in the memory of a device, and for steps on pictures.
void apply(const Preprocess& preprocess, const std::vector<InputSpec>& inputs, TensorMap* batch);

// How the network's first nodes show that it expects 0 to 255 from the input: "node 'Div' divides by 255"; "" if they
// do not.
std::string bytes_expected(const Value& input);

// "" or a sentence about bytes (uint8) that enter the network as 0 to 255, although nothing shows that it expects that.
std::string bytes_hint(const Dataset& data, const Model& model);

}  // namespace onnx_train
