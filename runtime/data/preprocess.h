// What is done to data before a network reads them, by input: "scale(1/255)". It belongs to a model, not to a run:
// training models, checkpoints and exported models keep it as metadata (onnx_train.preprocess: a JSON object from input
// to steps), so that training, evaluation and prediction do the same. It is no part of any graph: entry points take
// what the network reads. Plain values; any thread.
//
// Steps are calls, separated by commas, which apply from left to right. There is one: scale(X) or scale(X/Y), which
// multiplies, whether the data are stored as integers or as floats.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "onnx_passes/ir/model.h"
#include "onnx_passes/ir/tensor.h"

namespace onnx_train {

struct InputSpec;
using TensorMap = std::map<std::string, Tensor>;
class Dataset;

class Preprocess {
 public:
  Preprocess() = default;
  // That of a model's metadata. Throws Error for a step that is not known here.
  explicit Preprocess(const Model& model);
  // The scales that `--scale` takes: X for the network's float input, if it has one alone; INPUT=X for each that is
  // named. Throws UsageError for an input that is none, is a target, or takes no floats.
  Preprocess(const std::vector<std::string>& scales, const std::vector<InputSpec>& inputs);

  bool empty() const { return inputs_.empty(); }
  double scale(const std::string& input) const;  // what its data are multiplied by
  std::string text() const;                      // "image: scale(1/255)"; "nothing"
  std::string option() const;                    // as `--scale` takes it: "image=1/255"; "1"
  std::string json() const;                      // as metadata; "" when empty
  bool same(const Preprocess& other) const;      // but for how a number is written

 private:
  struct Input {
    std::string number;  // as written: "1/255"
    double scale;
  };
  void add(const std::string& input, const std::string& number, double scale);

  std::map<std::string, Input> inputs_;
};

// Throws Error unless `text` is X, X/Y or INPUT=X: what `--scale` takes.
void check_scale(const std::string& text);

// The model's own preprocessing or, if `scales` are given, theirs. `note` says which of the two is used where they
// differ, else it is "".
Preprocess preprocess_of(const Model& model, const std::vector<std::string>& scales,
                         const std::vector<InputSpec>& inputs, std::string* note);

// Multiplies the elements of a float or double tensor.
void multiply(Tensor* tensor, double factor);

// The same for a batch that a program made: replaces the tensors of inputs that are preprocessed, which may have any
// element type. Throws UsageError for one that is in the memory of a device.
void apply(const Preprocess& preprocess, const std::vector<InputSpec>& inputs, TensorMap* batch);

// "" or a sentence about bytes (uint8) that enter the network as 0 to 255, although nothing shows that it expects that.
std::string bytes_hint(const Dataset& data, const Model& model);

}  // namespace onnx_train
